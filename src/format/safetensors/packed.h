// SPDX-License-Identifier: Apache-2.0
// Linear weights in the "pack-quantized" form of compressed-tensors, as Gemma 4's quantised
// releases have them: signed 4-bit levels in int32 words and one scale per 32 inputs. Only this
// form is read; what a config or a checkpoint says otherwise is refused.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/json.h"
#include "core/tensor.h"
#include "format/safetensors/safetensors.h"
#include "segue/error.h"

namespace segue::safetensors {

/// Views of one weight, as ops::Matrix::prepare_packed takes them.
struct PackedWeight {
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  core::TensorView words;   // I32 {inputs / 8, outputs}
  core::TensorView scales;  // F16, BF16 or F32 {inputs / 32, outputs}
};

/// Does the checkpoint hold `linear` ("model.layers.0.mlp.up_proj") in packed form?
bool is_packed(const Checkpoint& checkpoint, std::string_view linear);

/// The tensors `linear`.weight_packed, .weight_scale and .weight_shape, whose shapes must fit. A
/// zero point or an activation order is kUnsupported.
Result<PackedWeight> packed_weight(const Checkpoint& checkpoint, std::string_view linear);

/// config.json's quantization_config: kUnsupported, naming the member, what it says and what is
/// read, unless every group is 4-bit integers, symmetric, in groups of 32, and nothing else is
/// quantised.
Status check_quantization(const core::Json& quantization_config);

}  // namespace segue::safetensors
