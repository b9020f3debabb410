// SPDX-License-Identifier: Apache-2.0
// Decode, verify and prefill kernels for bf16 KV on compute capability 8.0 and later.
#include <array>

#include "attention/cuda/rows.h"
#include "attention/cuda/sm80/launch.cuh"

namespace segue::attention::cuda::sm80 {

using enum KvType;

extern constinit const std::array<Kernel, 6> decode_bf16{
    decode_row<64, kBF16, __nv_bfloat16>("cuda.sm80.bf16.d64", "cuda.sm80.bf16.1"),
    decode_row<80, kBF16, __nv_bfloat16>("cuda.sm80.bf16.d80", "cuda.sm80.bf16.1"),
    decode_row<96, kBF16, __nv_bfloat16>("cuda.sm80.bf16.d96", "cuda.sm80.bf16.1"),
    decode_row<128, kBF16, __nv_bfloat16>("cuda.sm80.bf16.d128", "cuda.sm80.bf16.1"),
    decode_row<256, kBF16, __nv_bfloat16>("cuda.sm80.bf16.d256", "cuda.sm80.bf16.1"),
    decode_row<512, kBF16, __nv_bfloat16>("cuda.sm80.bf16.d512", "cuda.sm80.bf16.1")};

}  // namespace segue::attention::cuda::sm80
