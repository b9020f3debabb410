// SPDX-License-Identifier: Apache-2.0
// The rows of a work item as the kernels of sm_90a hold them, and which of their scores count: row
// = query * group + head of the kv head's group, two rows to a thread, eight apart. Nothing is
// kept: item and arguments are read again where they are needed, which is rare, and registers are
// scarce.
#pragma once

#include <cstdint>

#include "attention/cuda/arguments.h"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/softmax.cuh"

namespace segue::attention::cuda {

/// By the first threads of a block: its item to shared memory. Seen by others after a barrier.
__device__ __forceinline__ void copy_item(Item* shared_item, const Item* item) {
  if (threadIdx.x < sizeof(Item) / 4) {
    reinterpret_cast<std::int32_t*>(shared_item)[threadIdx.x] =
        reinterpret_cast<const std::int32_t*>(item)[threadIdx.x];
  }
}

/// kThreads hold the rows once: those past them are other parts of the same rows.
template <int kThreads>
struct ItemRows {
  const Arguments& args;
  const Item& item;  // in shared memory

  __device__ __forceinline__ int live() const { return item.rows * args.group; }
  /// Of the thread's two; the other is 8 further on.
  __device__ __forceinline__ int first() const {
    const int thread = thread_again() & (kThreads - 1);
    return thread / 32 * 16 + thread % 32 / 4;
  }
  /// Does the warp have live rows among its first (r = 0) or last (r = 1) eight? Live ones come
  /// first.
  __device__ __forceinline__ bool warp_has_live(int r) const {
    return first() / 16 * 16 + 8 * r < live();
  }
  /// Rows past the last one count as that.
  __device__ __forceinline__ int query_of(int row) const {
    return min(row * args.group_inverse >> 16, item.rows - 1);
  }
  /// The last key that the thread's row r may see.
  __device__ __forceinline__ int last_key(int r) const {
    return item.position + query_of(first() + 8 * r);
  }

  /// The thread's part of Q [64, 16 * kSteps] as the first operand of products: part `part` of the
  /// dims of the rows' heads, zeros for rows that are not live.
  template <class T, int kHeadDim, int kSteps>
  __device__ __forceinline__ void load_queries(std::uint32_t (&q)[kSteps][4], int part,
                                               int lane) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first() + 8 * r;
      const bool is_live = row < live();
      const int query = query_of(row);
      const int head = item.kv_head * args.group + (is_live ? row - query * args.group : 0);
      const auto* words = reinterpret_cast<const std::uint32_t*>(
          static_cast<const T*>(args.q) +
          (static_cast<std::int64_t>(item.token + query) * args.q_heads + head) * kHeadDim +
          part * (16 * kSteps));
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        q[i][r] = is_live ? __ldg(words + 8 * i + lane % 4) : 0;
        q[i][2 + r] = is_live ? __ldg(words + 8 * i + 4 + lane % 4) : 0;
      }
    }
  }
};

/// Tiles of `kKeys` keys [begin, end) of which every row of the item sees every key, none if scores
/// are capped.
struct PlainTiles {
  int begin;
  int end;
};

template <int kKeys>
__device__ __forceinline__ PlainTiles plain_tiles(const Arguments& args, const Item& item) {
  const int position = __shfl_sync(~0u, item.position, 0);  // uniform registers
  const int begin =
      args.window > 0
          ? (max(position + __shfl_sync(~0u, item.rows, 0) - args.window, 0) + kKeys - 1) / kKeys
          : 0;
  return {begin, args.capped ? begin : (position + 1) / kKeys};
}

/// Caps the scores of a tile and hides what rows do not see, where there is anything to do.
template <int kThreads, int kScores>
__device__ __forceinline__ void mask_scores(float (&s)[kScores], const ItemRows<kThreads>& rows,
                                            const PlainTiles& plain, int tile) {
  if (tile >= plain.begin && tile < plain.end) return;
  if (rows.args.capped) cap_scores(s, rows.args);
  const int lane = lane_again();
  const int last_key[2] = {rows.last_key(0), rows.last_key(1)};
  hide_unseen(s, rows.args, tile, last_key, lane);
}

}  // namespace segue::attention::cuda
