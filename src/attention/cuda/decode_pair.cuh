// SPDX-License-Identifier: Apache-2.0
// Decode and verify attention of head_dim 512 for sm_90a: a cluster of two blocks reduces one work
// item (row tile, kv head, run of units).
//
// Bytes and operations are those of decode.cuh, and so is the bound. Idea: the two blocks split the
// dims of Q, K, V and the output: a block computes half of every score, and warps of the two that
// hold the same rows exchange these halves through distributed shared memory. A block's two
// warpgroups take turns with the tiles: while one exchanges scores and takes their exponentials,
// the other one's products run. Each owns half of the block's dims of the output, so the one whose
// turn it is hands the probabilities and the state of the softmax to the other, warp to warp. What
// decode.cuh says of a row's bits holds here too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "attention/cuda/arguments.h"
#include "attention/cuda/item_rows.cuh"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/page_window.cuh"
#include "attention/cuda/products.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/softmax.cuh"
#include "attention/cuda/unit_end.cuh"

namespace segue::attention::cuda {

/// The compile-time facts of the kernel.
template <class T>
struct PairTile {
  using Element = T;
  using Maps = NaturalMaps;
  static constexpr bool kNatural = true;  // half of the dims of a page are not contiguous
  static constexpr int kHeadDim = 512;
  static constexpr int kClusterBlocks = 2;
  static constexpr int kBlockDims = kHeadDim / kClusterBlocks;
  static constexpr int kDims = kBlockDims / 2;  // of one warpgroup's output
  static constexpr int kThreads = 256;          // that compute
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kBlockThreads = kThreads + 128;  // a third warpgroup feeds the rings
  static constexpr int kBlocks = 1;                     // resident on a multiprocessor
  static constexpr int kKeys = 64;                      // of one tile
  static constexpr int kLineBytes = kBlockDims * 2;     // of a token in a slot
  static constexpr int kSlotBytes = kKeys * kLineBytes;
  static constexpr int kKSlots = 2;
  static constexpr int kVSlots = 2;
  static constexpr int kPageEntries = 128;

  static constexpr int kVOffset = kKSlots * kSlotBytes;
  static constexpr int kExchangeOffset = kVOffset + kVSlots * kSlotBytes;
  // Of each warp: its sixteen rows' halves of the scores of a tile from the other block, then what
  // it hands to the other warpgroup.
  static constexpr int kInboxBytes = 16 * kKeys * 4;
  static constexpr int kExchangeBytes = kWarps * kInboxBytes;
  // Where a finished unit waits to be folded.
  static constexpr int kStateOffset = kExchangeOffset + kExchangeBytes;
  static constexpr int kStateBytes = 64 * kBlockDims * 4;
  static constexpr int kFoldOffset = kStateOffset + kStateBytes;
  static constexpr int kFoldBytes = 2 * 64 * 8;
  static constexpr int kPagesOffset = kFoldOffset + kFoldBytes;
  static constexpr int kItemOffset = kPagesOffset + kPageEntries * 4;
  static constexpr int kBarrierOffset = kItemOffset + static_cast<int>(sizeof(Item));
  static constexpr int kSlots = kKSlots + kVSlots;
  static constexpr int kBarriers = 2 * kSlots;   // filled, and passed by all warps that read it
  static constexpr int kExchanges = 3 * kWarps;  // arrived, handed over, free again
  static constexpr int kSharedBytes = kBarrierOffset + (kBarriers + kExchanges) * 8;

  static_assert(kSharedBytes + 1024 <= 228 * 1024);
};

template <class TileType>
__global__ void __launch_bounds__(TileType::kBlockThreads, TileType::kBlocks)
    decode_pair(const __grid_constant__ Arguments args, const __grid_constant__ NaturalMaps maps) {
  using T = typename TileType::Element;
  constexpr int kHeadDim = TileType::kHeadDim;
  constexpr int kKeys = TileType::kKeys;
  constexpr int kDims = TileType::kDims;
  constexpr int kWarps = TileType::kWarps;
  constexpr int kSlotBytes = TileType::kSlotBytes;
  constexpr int kKSlots = TileType::kKSlots;
  constexpr int kVSlots = TileType::kVSlots;
  constexpr int kGroupBytes = 8 * TileType::kLineBytes;  // eight tokens of the block's dims

  extern __shared__ __align__(1024) std::byte shared[];
  const std::uint32_t base = shared_address(shared);
  const std::uint32_t barriers = base + TileType::kBarrierOffset;

  // Warp-uniform by construction, so that descriptors stay out of the vector registers.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int part = warp >> 2;       // of the warpgroup
  const int rank = cluster_rank();  // of the block
  const int item_index = static_cast<int>(blockIdx.x) / TileType::kClusterBlocks;

  allow_next_launch();
  // The loop reads the item from shared memory: eleven registers that it does not have to keep. The
  // list is as long as the grid, so that the item and the live count are fetched at the same time.
  auto* const shared_item = reinterpret_cast<Item*>(shared + TileType::kItemOffset);
  const int live_items = args.counts->items;
  copy_item(shared_item, args.items + item_index);
  if (item_index >= live_items) {
    wait_for_previous_launch();  // always: a grid that ends early must not seem to complete the one
                                 // before it
    return;
  }
  const Item& item = *shared_item;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < TileType::kSlots; ++i) {
      barrier_init(barriers + 8 * i, 1);
      barrier_init(barriers + 8 * (TileType::kSlots + i), i < kKSlots ? kWarps / 2 : kWarps);
    }
    for (int i = 0; i < TileType::kExchanges; ++i) {
      const bool by_lanes = i / kWarps == 1;  // what is handed over: every lane says so
      barrier_init(barriers + 8 * (TileType::kBarriers + i), by_lanes ? 32 : 1);
    }
    barrier_init_fence();
  }
  const int first_tile = __shfl_sync(~0u, item.key_begin, 0) / kKeys;  // uniform registers
  const int tile_end = (__shfl_sync(~0u, item.key_end, 0) + kKeys - 1) / kKeys;

  // Plan and page tables were written before the previous kernel started; only Q, KV and partials
  // may depend on it.
  const PageWindow<kKeys, TileType::kPageEntries / 2, TileType::kPageEntries> pages{
      args, item, reinterpret_cast<std::int32_t*>(shared + TileType::kPagesOffset),
      base + TileType::kPagesOffset};
  pages.load(first_tile);
  if (!args.early) wait_for_previous_launch();
  cluster_sync();  // the other block's barriers are ready

  // One warp copies a tile of K or V, a lane a piece.
  const auto fetch = [&](bool is_v, int tile, int place) {
    const int copier = lane_again();
    const int first = copier * args.piece;
    const bool valid = first < kKeys && pages.has_piece(tile * kKeys + first);
    const std::uint32_t votes = __ballot_sync(~0u, valid);
    const int slot = is_v ? kKSlots + place : place;
    const std::uint32_t barrier = barriers + 8 * slot;
    const std::uint32_t bytes = static_cast<std::uint32_t>(args.piece * TileType::kLineBytes);
    const std::uint64_t policy = item.reread ? policy_evict_normal() : policy_evict_first();
    if (copier == 0 && votes != 0)
      barrier_expect(barrier, static_cast<std::uint32_t>(__popc(votes)) * bytes);
    __syncwarp();
    if (valid) {
      const PagePlace where = pages.place_of(tile * kKeys + first);
      tensor_copy(base + slot * kSlotBytes + first * TileType::kLineBytes, is_v ? &maps.v : &maps.k,
                  item.kv_head * args.head_lines + rank * (TileType::kBlockDims / 64),
                  where.page * args.page_groups + item.kv_head * args.head_groups + where.token / 8,
                  barrier, policy);
    }
    __syncwarp();
  };
  if (warp >= kWarps) {
    give_registers<24>();
    // K and V have a warp each, that of V fetches page tables for both. It is the one behind, and
    // overwrites what the other needs no more when its own last tile is past that.
    const bool feeds_v = warp == kWarps + 1;
    for (int tile = first_tile; warp <= kWarps + 1 && tile < tile_end; ++tile) {
      const int n = tile - first_tile;
      if (feeds_v && n > 0) {
        copy_words_wait();
        __syncwarp();
        pages.load_next(tile - 1, tile - 2);
      }
      const int slot = n % kKSlots;
      if (n >= kKSlots) {
        barrier_wait(barriers + 8 * (TileType::kSlots + (feeds_v ? kKSlots : 0) + slot),
                     (n / kKSlots - 1) & 1);
      }
      fetch(feeds_v, tile, slot);
    }
    if (args.early) wait_for_previous_launch();
    return;
  }
  take_registers<240>();
  const auto passed = [&](int slot) {
    __syncwarp();
    barrier_arrive_by_one(barriers + 8 * (TileType::kSlots + slot));
  };

  if (args.early) wait_for_previous_launch();
  const ItemRows<128> rows{args, item};
  const auto first_dim = [] {  // of the warpgroup
    return cluster_rank() * TileType::kBlockDims + thread_again() / 128 * kDims;
  };
  std::uint32_t q[TileType::kBlockDims / 16][4];
  rows.template load_queries<T, kHeadDim>(q, rank, lane);

  float s[kKeys / 2];
  // Of the warpgroup's own tile, and of the one before it, which the other warpgroup had.
  std::uint32_t p[kKeys / 16][4];
  std::uint32_t their_p[kKeys / 16][4];
  float o[kDims / 2];
  RowState state{};
  float alpha[2] = {};
  float their_alpha[2];

  // Tile n of the item is in slot n % 2 of its ring, the n / 2-th one there, and it is the turn of
  // warpgroup n % 2.
  static_assert(kKSlots == 2 && kVSlots == 2);
  const int tiles = tile_end - first_tile;
  const auto compute_scores = [&](int n) {
    barrier_wait(barriers + 8 * part, n / 2 & 1);
    const std::uint64_t keys = matrix_descriptor(base + part * kSlotBytes, 16, kGroupBytes);
    start_scores<T>(s, q, keys);
    wgmma_wait<0>();
    passed(part);
  };
  // Rows of V that no row of the tile sees may hold anything, NaN too, and 0 x NaN is NaN: they
  // become zero.
  const auto clear_unseen = [&](int n) {
    if (n > 0 && n < tiles - 1) return;
    const int key = (first_tile + n) * kKeys;
    if (key >= item.key_begin && key + kKeys <= item.key_end) return;
    std::byte* const slot =
        shared + TileType::kVOffset + n % 2 * kSlotBytes + part * (kDims / 64) * 1024;
    constexpr int kPieces = kDims / 8 * 8;  // of 16 bytes, of eight tokens
#pragma unroll 1
    for (int i = thread_again() & 127; i < kKeys / 8 * kPieces; i += 128) {
      const int here = key + i / kPieces * 8 + i / 8 % 8;
      if (here < item.key_begin || here >= item.key_end)
        *reinterpret_cast<uint4*>(slot + i / kPieces * kGroupBytes + i % kPieces * 16) =
            uint4{0, 0, 0, 0};
    }
    proxy_fence();
    sync_threads(1 + part, 128);
  };
  const auto issue_output = [&](int n, const std::uint32_t(&weights)[kKeys / 16][4]) {
    const int slot = kKSlots + n % 2;
    barrier_wait(barriers + 8 * slot, n / 2 & 1);
    clear_unseen(n);
    const std::uint64_t values =
        matrix_descriptor(base + slot * kSlotBytes + part * (kDims / 64) * 1024, 1024, kGroupBytes);
    start_output<T, kGroupBytes>(o, weights, values);
  };
  const std::uint32_t arrived = barriers + 8 * TileType::kBarriers;
  const std::uint32_t handed_over = arrived + 8 * kWarps;
  const std::uint32_t free_again = handed_over + 8 * kWarps;
  const auto inbox_of = [&](int owner) {
    return TileType::kExchangeOffset + owner * TileType::kInboxBytes + lane * 16;
  };
  // The two warps of the cluster with the same rows and tile add each other's half to their own.
  const auto send_scores = [&](int n) {
    const int inbox = inbox_of(warp);
    if (n >= 2) barrier_wait_cluster(free_again + 8 * warp, n / 2 - 1 & 1);
    if (lane == 0) barrier_expect(arrived + 8 * warp, TileType::kInboxBytes);
    const std::uint32_t theirs = address_in_cluster(base + inbox, rank ^ 1);
    const std::uint32_t their_arrived = address_in_cluster(arrived + 8 * warp, rank ^ 1);
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      store_in_cluster(theirs + i * 512,
                       make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]),
                       their_arrived);
    }
  };
  const auto receive_scores = [&](int n) {
    const int inbox = inbox_of(warp);
    barrier_wait_cluster(arrived + 8 * warp, n / 2 & 1);
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const float4 other = *reinterpret_cast<const float4*>(shared + inbox + i * 512);
      s[4 * i] = __fadd_rn(s[4 * i], other.x);
      s[4 * i + 1] = __fadd_rn(s[4 * i + 1], other.y);
      s[4 * i + 2] = __fadd_rn(s[4 * i + 2], other.z);
      s[4 * i + 3] = __fadd_rn(s[4 * i + 3], other.w);
    }
  };
  // What the warp of the other warpgroup with the same rows needs, in place of the scores that have
  // been read: every lane writes where it read.
  const auto hand_over = [&] {
    std::byte* const inbox = shared + inbox_of(warp);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      *reinterpret_cast<uint4*>(inbox + i * 512) = make_uint4(p[i][0], p[i][1], p[i][2], p[i][3]);
    *reinterpret_cast<float4*>(inbox + 4 * 512) =
        make_float4(state.maximum[0], state.maximum[1], state.sum[0], state.sum[1]);
    *reinterpret_cast<float2*>(inbox + 5 * 512) = make_float2(alpha[0], alpha[1]);
    barrier_arrive(handed_over + 8 * warp);
  };
  const auto take_over = [&](int n) {
    const int other = warp ^ 4;
    const std::byte* const inbox = shared + inbox_of(other);
    barrier_wait(handed_over + 8 * other, n / 2 & 1);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const uint4 words = *reinterpret_cast<const uint4*>(inbox + i * 512);
      their_p[i][0] = words.x, their_p[i][1] = words.y;
      their_p[i][2] = words.z, their_p[i][3] = words.w;
    }
    const float4 rows = *reinterpret_cast<const float4*>(inbox + 4 * 512);
    const float2 factors = *reinterpret_cast<const float2*>(inbox + 5 * 512);
    state.maximum[0] = rows.x, state.maximum[1] = rows.y;
    state.sum[0] = rows.z, state.sum[1] = rows.w;
    their_alpha[0] = factors.x, their_alpha[1] = factors.y;
  };
  // Adds the tile that the other warpgroup had. Then what was handed over is in registers, and the
  // other block may send that warp the next tile, if there is one: else it may be gone.
  const auto issue_their_output = [&](int n) {
    take_over(n);
    scale_output(o, their_alpha);
    issue_output(n, their_p);
    __syncwarp();
    if (n + 2 < tiles) {
      barrier_arrive_in_cluster_by_one(address_in_cluster(free_again + 8 * (warp ^ 4), rank ^ 1));
    }
  };
  const PlainTiles plain = plain_tiles<kKeys>(args, item);

  const auto unit_tiles = [&] { return __shfl_sync(~0u, item.unit, 0) / kKeys; };
  int unit_end = (first_tile / unit_tiles() + 1) * unit_tiles();
  int unit = 0;  // of the item
  for (int tile = first_tile; tile < tile_end; unit_end += unit_tiles(), ++unit) {
    const int last_tile = min(unit_end, tile_end);
    state.maximum[0] = state.maximum[1] = -INFINITY;
    state.sum[0] = state.sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kDims / 2; ++i) o[i] = 0.0f;

    const int begin = tile - first_tile;
    const int end = last_tile - first_tile;
    for (int n = begin + (begin % 2 != part ? 1 : 0); n < end; n += 2) {
      compute_scores(n);
      send_scores(n);
      if (n > begin) issue_their_output(n - 1);
      receive_scores(n);
      mask_scores(s, rows, plain, first_tile + n);
      wgmma_wait<0>();
      if (n > begin) passed(kKSlots + (n - 1) % 2);
      softmax<T>(s, state, alpha, args.exponent_scale);
      pack_probabilities<T>(p, s);
      hand_over();
      scale_output(o, alpha);
      issue_output(n, p);
      wgmma_wait<0>();
      passed(kKSlots + n % 2);
    }
    if ((end - 1) % 2 != part) {
      issue_their_output(end - 1);
      wgmma_wait<0>();
      passed(kKSlots + (end - 1) % 2);
    }
    tile = last_tile;
    // The unit's end: store, fold or finish. A partial's dims lie in the order of the accumulators
    // within each sixteen. Little is kept over the last product: there are no registers for it.
    const bool last_unit = tile == tile_end;
    const bool merging = unit > 0 && folds(item);
    // The rows' sums, and the weights of what was folded so far.
    float kept[2] = {};
    float added[2] = {};
    add_up(state);
    if (folds(item)) {
      auto* const folded =
          reinterpret_cast<float2*>(shared + TileType::kFoldOffset) + part * 64 + rows.first();
      fold_state(state, folded, unit, kept, added);
    }
    // A piece of what was folded so far: every thread's own.
    const auto state_of = [&](int piece) {
      return reinterpret_cast<float4*>(shared + TileType::kStateOffset) +
             piece * TileType::kThreads + thread_again();
    };
    if (merging) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!rows.warp_has_live(r)) continue;
#pragma unroll
        for (int i = 0; i < kDims / 16; ++i) {
          float* const mine = o + 8 * i + 2 * r;
          const float4 old = *state_of(r * (kDims / 16) + i);
          merge_four(mine, old, kept[r], added[r]);
        }
      }
    }
    if (folds(item) && !last_unit) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!rows.warp_has_live(r)) continue;
#pragma unroll
        for (int i = 0; i < kDims / 16; ++i) {
          const float* const mine = o + 8 * i + 2 * r;
          *state_of(r * (kDims / 16) + i) = four_of(mine);
        }
      }
      continue;
    }
    const bool finishes = item.emit == Emit::kFinal || (item.emit == Emit::kFoldFinal && last_unit);
    const std::uint64_t policy = policy_evict_last();
    const int here = lane_again();
    const int row = rows.first();
    const int partial = item.partial + (item.emit == Emit::kStore ? unit * rows.live() : 0) + row;
    float* const place_of_first = args.partial_o + static_cast<std::int64_t>(partial) * kHeadDim +
                                  first_dim() + 4 * (here % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = state.maximum[r];
      const float sum = state.sum[r];
      if (row + 8 * r >= rows.live()) continue;
      if (finishes) {
        const OutputRow out = output_row(rows, row + 8 * r);
        const Finish result = finish(maximum, sum, args, out.head);
        auto* const words = reinterpret_cast<std::uint32_t*>(static_cast<T*>(args.out) +
                                                             out.place * kHeadDim + first_dim());
        write_row<T>(words, o, r, result.factor, here);
        if (args.lse != nullptr && part == 0 && rank == 0 && here % 4 == 0)
          args.lse[out.place] = result.lse;
      } else {
        if (part == 0 && rank == 0 && here % 4 == 0) {
          args.partial_m[partial + 8 * r] = maximum;
          args.partial_l[partial + 8 * r] = sum;
        }
#pragma unroll
        for (int i = 0; i < kDims / 16; ++i) {
          const float* const mine = o + 8 * i + 2 * r;
          store_hinted(place_of_first + r * 8 * kHeadDim + 16 * i, four_of(mine), policy);
        }
      }
    }
  }
}

}  // namespace segue::attention::cuda
