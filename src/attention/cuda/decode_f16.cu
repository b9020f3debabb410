// SPDX-License-Identifier: Apache-2.0
// Decode, verify and prefill kernels for f16 KV.
#include <array>

#include "attention/cuda/launch.cuh"
#include "attention/cuda/rows.h"

namespace segue::attention::cuda {

using enum KvType;

extern constinit const std::array<Kernel, 4> decode_f16{
    decode_row<64, kF16, __half>("cuda.sm90.f16.d64", "cuda.sm90.f16.5"),
    decode_row<128, kF16, __half>("cuda.sm90.f16.d128", "cuda.sm90.f16.5"),
    decode_row<256, kF16, __half>("cuda.sm90.f16.d256", "cuda.sm90.f16.2"),
    decode_row<512, kF16, __half>("cuda.sm90.f16.d512", "cuda.sm90.f16.4")};

}  // namespace segue::attention::cuda
