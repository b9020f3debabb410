// SPDX-License-Identifier: Apache-2.0
// The ordered reduction: a row's partials become its output, left to right by unit (merge.cuh).
//
// Bytes: runs x head_dim x 4 per row and head, from the L2. Bound: latency of one pass over a few
// dozen partials. Idea: a warp owns 32 or 128 dims of one row and head, so that few rows still
// spread over many multiprocessors and all partials of up to kRuns units are in flight at once, in
// registers; it turns the maxima of 32 units at a time into weights by a prefix maximum across its
// lanes (a maximum is exact, so this is the left fold bit for bit), then one multiply and one fused
// add per unit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attention/cuda/arguments.h"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/softmax.cuh"

namespace segue::attention::cuda {

/// kWidth floats of a partial at an address that is a multiple of their size.
template <int kWidth>
__device__ __forceinline__ void load_hinted(float (&values)[kWidth], const float* source,
                                            std::uint64_t policy) {
  if constexpr (kWidth == 4) {
    const float4 piece = load_4_hinted(source, policy);
    values[0] = piece.x, values[1] = piece.y, values[2] = piece.z, values[3] = piece.w;
  } else {
    static_assert(kWidth == 1);
    values[0] = load_1_hinted(source, policy);
  }
}

/// Grid (rows x group of the largest tile, reductions or fewer, head_dim / (32 kWidth), rounded
/// up), one warp. A multiple of 16 dims; lanes past the last one carry nothing. With fewer, a block
/// takes every gridDim.y-th reduction. kRuns, a multiple of 32: partials that a thread has in
/// flight.
template <int kHeadDim, class T, int kRuns, int kWidth>
__global__ void __launch_bounds__(32) reduce(const __grid_constant__ Arguments args) {
  allow_next_launch();
  const int lane = static_cast<int>(threadIdx.x);
  const int place =
      (static_cast<int>(blockIdx.z) * 32 + lane) * kWidth;  // of the first, in the partial
  const bool used = kHeadDim % (32 * kWidth) == 0 || place < kHeadDim;
  const std::uint64_t policy = policy_evict_last();
  // Narrow warps are all in the chain: one addition a load, and none of the loads behind the
  // shuffles that weights take, where ptxas would put them. Of wide ones (more rows) the registers
  // of addresses kept apart let fewer sit beside a decode block, which spreads them more evenly.
  constexpr bool kNarrow = kWidth == 1;
  // The list is at least as long as the grid, and a live reduction has rows and runs: asked like
  // this, all of it is under way before the first branch. It is in the chain wherever the block
  // finds no room beside those of the decode kernel.
  const int first_index = static_cast<int>(blockIdx.y);
  Reduction reduction = args.reductions[first_index];
  const int reductions = args.counts->reductions;
  bool live = (first_index < reductions) & (reduction.rows > 0) & (reduction.runs > 0);
  bool waited = false;
  for (int index = first_index; live; live = index < reductions) {
    if (index != first_index) reduction = args.reductions[index];
    index += static_cast<int>(gridDim.y);
    const int stride = reduction.rows * args.group;
    if (static_cast<int>(blockIdx.x) >= stride) continue;
    const int runs = reduction.runs;
    const std::int64_t first = reduction.partial + static_cast<std::int64_t>(blockIdx.x);
    const float* source = args.partial_o + first * kHeadDim + place;
    const int step = stride * kHeadDim;  // from a run to the next
    if (!waited) wait_for_previous_launch();
    waited = true;

    float maximum = -INFINITY;
    float sum = 0.0f;
    float o[kWidth]{};
    for (int pass = 0; pass < runs; pass += kRuns) {
      float units[kRuns][kWidth];
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
        if (pass + i < runs && used)
          load_hinted(units[i], kNarrow ? source : source + (pass + i) * step, policy);
        if constexpr (kNarrow) {
          source += step;
          asm volatile("" : "+l"(source));
        }
      }
      if constexpr (kNarrow) __syncwarp();
      float unit_maximum[kRuns / 32];
      float unit_sum[kRuns / 32];
#pragma unroll
      for (int i = 0; i < kRuns / 32; ++i) {
        const int run = pass + 32 * i + lane;
        const std::int64_t at = first + static_cast<std::int64_t>(run) * stride;
        unit_maximum[i] = run < runs ? args.partial_m[at] : -INFINITY;
        unit_sum[i] = run < runs ? args.partial_l[at] : 0.0f;
      }
#pragma unroll
      for (int chunk = 0; chunk < kRuns / 32; ++chunk) {
        if (pass + 32 * chunk >= runs) break;
        float merged = unit_maximum[chunk];
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
          const float other = __shfl_up_sync(~0u, merged, distance);
          if (lane >= distance) merged = fmaxf(merged, other);
        }
        merged = fmaxf(merged, maximum);
        const float before = __shfl_up_sync(~0u, merged, 1);
        const Weights weights = merge_weights(lane == 0 ? maximum : before, unit_maximum[chunk]);
        maximum = __shfl_sync(~0u, merged,
                              31);  // lanes past the last run hold -inf: the last lane has them all
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (pass + 32 * chunk + i >= runs) break;
          const float kept = __shfl_sync(~0u, weights.kept, i);
          const float added = __shfl_sync(~0u, weights.added, i);
          const float term = __shfl_sync(~0u, unit_sum[chunk], i);
          const bool start = pass + 32 * chunk + i == 0;
          sum = start ? term : merge(sum, term, kept, added);
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            const float unit = units[32 * chunk + i][e];
            o[e] = start ? unit : merge(o[e], unit, kept, added);
          }
        }
      }
    }

    const int query = static_cast<int>(blockIdx.x) / args.group;
    const int head =
        reduction.kv_head * args.group + static_cast<int>(blockIdx.x) - query * args.group;
    const std::int64_t row =
        static_cast<std::int64_t>(reduction.token + query) * args.q_heads + head;
    const Finish result = finish(maximum, sum, args, head);
    // Place 16a + 4t + e holds dim 16a + 2t + e % 2 + 8 (e / 2); an even place and the next make a
    // word.
    auto* const words =
        reinterpret_cast<std::uint32_t*>(static_cast<T*>(args.out) + row * kHeadDim) +
        place / 16 * 8;
#pragma unroll
    for (int e = 0; e < kWidth; e += 2) {
      const float mine = __fmul_rn(o[e], result.factor);
      const float next = kWidth > 1 ? __fmul_rn(o[(e + 1) % kWidth], result.factor)
                                    : __shfl_down_sync(~0u, mine, 1);
      const int at = (place + e) % 16;
      if (at % 2 == 0 && used) words[at / 4 + at % 4 / 2 * 4] = pack(mine, next, T{});
    }
    if (args.lse != nullptr && place == 0) args.lse[row] = result.lse;
  }
  // Always: a grid that ends early must not seem to complete the one before it.
  if (!waited) wait_for_previous_launch();
}

}  // namespace segue::attention::cuda
