// SPDX-License-Identifier: Apache-2.0
// What a finished unit becomes in the kernels of sm_90a: folded into what came before it, or the
// output of its rows. The arithmetic is that of merge.cuh. A thread has the output of two rows in
// the order of the accumulators: element 8 i + 2 r + {0, 1, 4, 5} of row r are four dims of sixteen
// i, and lie together in partials.
#pragma once

#include <cstdint>

#include "attention/cuda/arguments.h"
#include "attention/cuda/item_rows.cuh"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/softmax.cuh"

namespace segue::attention::cuda {

__device__ __forceinline__ bool folds(const Item& item) {
  return item.emit == Emit::kFold || item.emit == Emit::kFoldFinal;
}

/// The sums of the four lanes of a row, in all of them.
__device__ __forceinline__ void add_up(RowState& state) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state.sum[r] = __fadd_rn(state.sum[r], __shfl_xor_sync(~0u, state.sum[r], 1));
    state.sum[r] = __fadd_rn(state.sum[r], __shfl_xor_sync(~0u, state.sum[r], 2));
  }
}

/// By a whole warp: folds the state of unit `unit` into that of those before it, which waits in
/// shared memory. Sets the weights with which the outputs are merged.
__device__ __forceinline__ void fold_state(RowState& state, float2* folded, int unit,
                                           float (&kept)[2], float (&added)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float2 before = unit > 0 ? folded[8 * r] : make_float2(-INFINITY, 0.0f);
    if (unit > 0) {
      const Weights weights = merge_weights(before.x, state.maximum[r]);
      kept[r] = weights.kept;
      added[r] = weights.added;
      state.maximum[r] = weights.maximum;
      state.sum[r] = merge(before.y, state.sum[r], weights.kept, weights.added);
    }
    __syncwarp();  // the lanes of a row have read its state
    if (lane_again() % 4 == 0) folded[8 * r] = make_float2(state.maximum[r], state.sum[r]);
    __syncwarp();
  }
}

/// Four dims of a row, `mine` the first of them, as they lie in partials.
__device__ __forceinline__ float4 four_of(const float* mine) {
  return make_float4(mine[0], mine[1], mine[4], mine[5]);
}
__device__ __forceinline__ void merge_four(float* mine, float4 old, float kept, float added) {
  mine[0] = merge(old.x, mine[0], kept, added);
  mine[1] = merge(old.y, mine[1], kept, added);
  mine[4] = merge(old.z, mine[4], kept, added);
  mine[5] = merge(old.w, mine[5], kept, added);
}

/// A row's place in the output, [rows, q_heads], and its q head.
struct OutputRow {
  std::int64_t place;
  int head;
};
template <int kThreads>
__device__ __forceinline__ OutputRow output_row(const ItemRows<kThreads>& rows, int row) {
  const int query = rows.query_of(row);
  const int head = rows.item.kv_head * rows.args.group + row - query * rows.args.group;
  return {static_cast<std::int64_t>(rows.item.token + query) * rows.args.q_heads + head, head};
}

/// Writes the thread's dims of one row: `o` are its accumulators, `words` the first of its output.
template <class T, int kOutputs>
__device__ __forceinline__ void write_row(std::uint32_t* words, const float (&o)[kOutputs], int r,
                                          float factor, int lane) {
#pragma unroll
  for (int i = 0; i < kOutputs / 4; ++i) {
    words[4 * i + lane % 4] =
        pack(__fmul_rn(o[4 * i + 2 * r], factor), __fmul_rn(o[4 * i + 2 * r + 1], factor), T{});
  }
}

}  // namespace segue::attention::cuda
