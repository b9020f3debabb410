// SPDX-License-Identifier: Apache-2.0
// The ordered reduction: a row's partials become its output, left to right by unit (merge.cuh).
//
// Bytes: runs x head_dim x 4 per row and head, from the L2. Bound: latency of one pass over a few dozen partials.
// Idea: a warp owns 128 dims of one row and head; weights of 32 units at once by a prefix maximum across the lanes
// (a maximum is exact, so this is the left fold bit for bit), then one multiply and one fused add per unit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attention/cuda/arguments.h"
#include "attention/cuda/decode.cuh"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/ptx.cuh"

namespace segue::attention::cuda {

/// Grid (rows x group of the largest tile, reductions), threads: a warp per 128 dims.
template <int kHeadDim, class T>
__global__ void __launch_bounds__(kHeadDim > 128 ? kHeadDim / 4 : 32)
    reduce(const __grid_constant__ Arguments args) {
  constexpr int kBatch = 16;  // partials in flight per thread
  constexpr int kLanes = kHeadDim >= 128 ? 32 : kHeadDim / 4;
  allow_next_launch();
  const bool listed = static_cast<int>(blockIdx.y) < args.counts->reductions;
  const Reduction reduction = listed ? args.reductions[blockIdx.y] : Reduction{};
  const int stride = reduction.rows * args.group;
  if (static_cast<int>(blockIdx.x) >= stride) {
    wait_for_previous_launch();  // always: a grid that ends early must not seem to complete the one before it
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int dim = static_cast<int>(threadIdx.x) * 4;  // place in the partial, not the dim it holds
  const std::int64_t first = reduction.partial + static_cast<std::int64_t>(blockIdx.x);
  const float* const source = args.partial_o + first * kHeadDim + dim;
  const std::uint64_t policy = policy_evict_last();
  wait_for_previous_launch();

  float maximum = -INFINITY;
  float sum = 0.0f;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int chunk = 0; chunk < reduction.runs; chunk += 32) {
    const int count = min(32, reduction.runs - chunk);
    const std::int64_t mine = first + static_cast<std::int64_t>(chunk + lane) * stride;
    const float unit_maximum = lane < count ? args.partial_m[mine] : -INFINITY;
    const float unit_sum = lane < count ? args.partial_l[mine] : 0.0f;
    float merged = unit_maximum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(~0u, merged, step);
      if (lane >= step) merged = fmaxf(merged, other);
    }
    merged = fmaxf(merged, maximum);
    const float before = __shfl_up_sync(~0u, merged, 1);
    const Weights weights = merge_weights(lane == 0 ? maximum : before, unit_maximum);
    for (int batch = 0; batch < count; batch += kBatch) {
      float4 unit[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (batch + i < count && lane < kLanes) {
          unit[i] = load_hinted(source + static_cast<std::int64_t>(chunk + batch + i) * stride * kHeadDim, policy);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int from = min(batch + i, 31);
        const float kept = __shfl_sync(~0u, weights.kept, from);
        const float added = __shfl_sync(~0u, weights.added, from);
        const float term = __shfl_sync(~0u, unit_sum, from);
        if (batch + i >= count) continue;
        if (chunk + batch + i == 0) {
          o = unit[i];
          sum = term;
          continue;
        }
        sum = merge(sum, term, kept, added);
        o.x = merge(o.x, unit[i].x, kept, added);
        o.y = merge(o.y, unit[i].y, kept, added);
        o.z = merge(o.z, unit[i].z, kept, added);
        o.w = merge(o.w, unit[i].w, kept, added);
      }
    }
    maximum = __shfl_sync(~0u, merged, count - 1);
  }

  const int query = static_cast<int>(blockIdx.x) / args.group;
  const int head = reduction.kv_head * args.group + static_cast<int>(blockIdx.x) - query * args.group;
  const std::int64_t place = static_cast<std::int64_t>(reduction.token + query) * args.q_heads + head;
  constexpr float kLog2E = 1.44269504088896340736f;
  const Finish result =
      finish(maximum, sum, args.sinks != nullptr ? __fmul_rn(args.sinks[head], kLog2E) : -INFINITY);
  if (lane < kLanes) {
    // Place 16a + 4t holds dims 16a + 2t, + 1 and 16a + 8 + 2t, + 1.
    auto* const words = reinterpret_cast<std::uint32_t*>(static_cast<T*>(args.out) + place * kHeadDim) + dim / 16 * 8 +
                        dim % 16 / 4;
    words[0] = pack(__fmul_rn(o.x, result.factor), __fmul_rn(o.y, result.factor), T{});
    words[4] = pack(__fmul_rn(o.z, result.factor), __fmul_rn(o.w, result.factor), T{});
  }
  if (args.lse != nullptr && threadIdx.x == 0) args.lse[place] = result.lse;
}

}  // namespace segue::attention::cuda
