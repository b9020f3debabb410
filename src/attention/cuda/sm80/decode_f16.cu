// SPDX-License-Identifier: Apache-2.0
// Decode, verify and prefill kernels for f16 KV on compute capability 8.0 and later.
#include <array>

#include "attention/cuda/rows.h"
#include "attention/cuda/sm80/launch.cuh"

namespace segue::attention::cuda::sm80 {

using enum KvType;

extern constinit const std::array<Kernel, 6> decode_f16{
    decode_row<64, kF16, __half>("cuda.sm80.f16.d64", "cuda.sm80.f16.1"),
    decode_row<80, kF16, __half>("cuda.sm80.f16.d80", "cuda.sm80.f16.1"),
    decode_row<96, kF16, __half>("cuda.sm80.f16.d96", "cuda.sm80.f16.1"),
    decode_row<128, kF16, __half>("cuda.sm80.f16.d128", "cuda.sm80.f16.1"),
    decode_row<256, kF16, __half>("cuda.sm80.f16.d256", "cuda.sm80.f16.1"),
    decode_row<512, kF16, __half>("cuda.sm80.f16.d512", "cuda.sm80.f16.1")};

}  // namespace segue::attention::cuda::sm80
