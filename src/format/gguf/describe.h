// SPDX-License-Identifier: Apache-2.0
// What is in a GGUF file, as JSON: the content of `segue inspect`.
#pragma once

#include "core/json.h"
#include "format/gguf/gguf.h"

namespace segue::gguf {

/// {file, bytes, version, alignment, metadata: {key: value}, tensors: [{name, type, shape, bytes}],
///  totals: {tensors, elements, bytes, types: {type: {tensors, elements, bytes}}}}. Long arrays and
///  strings are
/// abbreviated: an array of more than 8 elements becomes {type, count, first}. Works for every
/// accepted file.
core::Json describe(const File& file);

}  // namespace segue::gguf
