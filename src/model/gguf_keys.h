// SPDX-License-Identifier: Apache-2.0
// What a GGUF file states about its model beyond what config_gguf.cc reads: keys that would change
// the output, and the values with which they do not. Keys that never change it are not here.
#pragma once

#include "format/gguf/gguf.h"
#include "model/config.h"
#include "segue/error.h"

namespace segue::model {

/// kUnsupported, with the key and its value, when the file asks for something that the forward pass
/// of `config`, which was read from it, does not do.
Status check_keys(const gguf::File& file, const Config& config);

}  // namespace segue::model
