// SPDX-License-Identifier: Apache-2.0
// Decode, verify and prefill kernels for bf16 KV.
#include <array>

#include "attention/cuda/launch.cuh"
#include "attention/cuda/rows.h"

namespace segue::attention::cuda {

using enum KvType;

extern constinit const std::array<Kernel, 4> decode_bf16{
    decode_row<64, kBF16, __nv_bfloat16>("cuda.sm90.bf16.d64", "cuda.sm90.bf16.6"),
    decode_row<128, kBF16, __nv_bfloat16>("cuda.sm90.bf16.d128", "cuda.sm90.bf16.6"),
    decode_row<256, kBF16, __nv_bfloat16>("cuda.sm90.bf16.d256", "cuda.sm90.bf16.6"),
    decode_row<512, kBF16, __nv_bfloat16>("cuda.sm90.bf16.d512", "cuda.sm90.bf16.4")};

}  // namespace segue::attention::cuda
