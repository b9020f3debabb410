// SPDX-License-Identifier: Apache-2.0
// The two products of a tile of keys in the kernels of sm_90a, as warpgroup instructions over slots
// of a ring: lines of 64 dims with the 128-byte swizzle, eight tokens to an atom. Started, not
// waited for (wgmma_wait).
#pragma once

#include <cstdint>

#include "attention/cuda/ptx.cuh"
#include "attention/cuda/wgmma.cuh"

namespace segue::attention::cuda {

/// s = q K^T: sixteen dims a step, `keys` the descriptor of the first.
template <class T, int kScores, int kSteps>
__device__ __forceinline__ void start_scores(float (&s)[kScores],
                                             const std::uint32_t (&q)[kSteps][4],
                                             std::uint64_t keys) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const std::uint64_t step = advance(keys, (i / 4) * 1024 + (i % 4) * 32);
    wgmma<T, Major::kK>(s, q[i], step, i > 0);
  }
  wgmma_commit();
}

/// o += p V: sixteen keys a step, two groups of eight tokens and `kGroupBytes` each.
template <class T, int kGroupBytes, int kOutputs, int kSteps>
__device__ __forceinline__ void start_output(float (&o)[kOutputs],
                                             const std::uint32_t (&p)[kSteps][4],
                                             std::uint64_t values) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    wgmma<T, Major::kN>(o, p[i], advance(values, i * 2 * kGroupBytes), 1);
  wgmma_commit();
}

}  // namespace segue::attention::cuda
