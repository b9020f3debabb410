// SPDX-License-Identifier: Apache-2.0
// What is in a checkpoint, as JSON: the content of `segue inspect` for safetensors.
#pragma once

#include "core/json.h"
#include "format/safetensors/safetensors.h"

namespace segue::safetensors {

/// {file, bytes, files: [{file, bytes, tensors}], metadata: {key: text} of the first file,
///  tensors: [{name, type, shape, bytes}], totals: {tensors, elements, bytes, types: {type:
///  {tensors, elements, bytes}}}}. Shapes are as stored: the contiguous axis last.
core::Json describe(const Checkpoint& checkpoint);

}  // namespace segue::safetensors
