// SPDX-License-Identifier: Apache-2.0
// The rows that this folder adds to the kernel table, one array per translation unit of kernels.
#pragma once

#include <array>

#include "attention/kernel.h"

namespace segue::attention::cuda {

extern const std::array<Kernel, 4> decode_bf16;
extern const std::array<Kernel, 4> decode_f16;

namespace sm80 {
extern const std::array<Kernel, 6> decode_bf16;
extern const std::array<Kernel, 6> decode_f16;
}  // namespace sm80

}  // namespace segue::attention::cuda
