// SPDX-License-Identifier: Apache-2.0
// Decode and verify attention for sm_90a: one block reduces one work item (row tile, kv head, run
// of units).
//
// Bytes: K and V of the item's keys once. Operations: 4 x 64 x head_dim a key and row group,
// whatever the rows are. Bound: device memory; the chain of one tile of keys (scores, softmax,
// output) must stay below the time in which the memory delivers the next. Idea: rows x group of a
// kv head are the 64 rows of a warpgroup product, Q and the output live in registers, K and V
// arrive by bulk copies of whole (page, head) blocks in the order that the product reads
// (docs/kernels/cuda-decode.md), and the scores of tile n + 1 run while the output of tile n does.
// A row's bits depend on the keys it sees, its unit size and nothing else: every row goes through
// the same instructions wherever it lies in the tile, keys that it does not see are masked by
// selection, and no rounding is left to the compiler. Head_dim 512 has a kernel of its own:
// decode_pair.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/cuda/arguments.h"
#include "attention/cuda/feeder.cuh"
#include "attention/cuda/item_rows.cuh"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/page_window.cuh"
#include "attention/cuda/products.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/ring.cuh"
#include "attention/cuda/softmax.cuh"
#include "attention/cuda/unit_end.cuh"

namespace segue::attention::cuda {

/// How a block uses its multiprocessor. Bits do not depend on it.
enum class Variant {
  kSpread,   // 64 rows; two or three blocks on a multiprocessor
  kFolding,  // as kSpread, but finished units wait in registers: for items of several units
  kLone,     // 64 rows; alone on a multiprocessor, with warps of their own that feed the rings
  kWide,     // 128 rows; alone on a multiprocessor
  kSparing,  // as kWide, but for items of one unit: leaves registers for blocks of the reduction
};

/// The compile-time facts of one kernel. Natural: pages come through tensor maps, as those of
/// natural layouts must.
template <int HeadDim, class T, Variant kVariant, bool Natural>
struct Tile {
  using Element = T;
  using Maps = std::conditional_t<Natural, NaturalMaps, NoMaps>;
  static constexpr bool kNatural = Natural;
  static constexpr int kHeadDim = HeadDim;
  static constexpr bool kWide = kVariant == Variant::kWide || kVariant == Variant::kSparing;
  static constexpr int kRowGroups = kWide ? 2 : 1;
  static constexpr int kClusterBlocks = 1;
  static constexpr int kBlockDims = HeadDim;
  // A warpgroup more than the rows need feeds the rings and gives its registers away.
  static constexpr bool kFeedingGroup =
      HeadDim == 128 ? kVariant != Variant::kLone : HeadDim == 64 && kWide;
  // K and V have a feeding warp each.
  static constexpr int kFeederThreads = kFeedingGroup ? 128 : kVariant == Variant::kLone ? 64 : 0;
  static constexpr bool kFeeder = kFeederThreads > 0;
  static constexpr int kThreads = 128 * kRowGroups;  // that compute
  static constexpr int kBlockThreads = kThreads + kFeederThreads;
  // At 256 turns cost prompt rows 1 to 10 %.
  static constexpr bool kTurns = kRowGroups == 2 && HeadDim <= 128;
  static constexpr int kKeys = HeadDim == 256 ? 32 : 64;  // of one tile
  // Exponentials of half precision have no room above one (kHeadroom).
  static constexpr int kSlack = std::is_same_v<T, __half> ? 0 : 8;
  static constexpr int kLineBytes = HeadDim * 2;  // of a token in a slot
  static constexpr int kSlotBytes = kKeys * kLineBytes;
  static constexpr int kBlocks = kRowGroups > 1 || kVariant == Variant::kLone ? 1
                                 : HeadDim == 64                              ? 3
                                                 : 2;  // resident on a multiprocessor
  static constexpr bool kDeep = kBlocks == 1;
  // Of a thread at entry; then of one that feeds, and of one that computes.
  static constexpr int kMostRegisters = 65536 / (kBlocks * kBlockThreads) / 8 * 8;
  static constexpr int kRegisters =
      kVariant == Variant::kSparing ? 128 : std::min(kMostRegisters, 255);
  static constexpr int kFeedingRegisters = 24;
  static constexpr int kComputingRegisters =
      (kRegisters * kBlockThreads - kFeedingRegisters * kFeederThreads) / kThreads / 8 * 8;
  static constexpr int kKSlots = kDeep ? 6 : 3;
  static constexpr int kVSlots = kDeep ? 6 : HeadDim == 256 ? 4 : 3;
  // Page tables come in chunks of eight tiles of the smallest page, or, for a feeder, twice as many
  // entries as a warp has lanes. Two are enough where one warp reads ahead; the two of a feeder may
  // be as far apart as the rings are deep.
  static constexpr int kPageChunk = kFeeder ? 64 : kKeys;
  static constexpr int kPageEntries = (kFeeder ? 4 : 2) * kPageChunk;
  using Pages = PageWindow<kKeys, kPageChunk, kPageEntries>;

  static constexpr int kVOffset = kKSlots * kSlotBytes;
  // Where a finished unit waits to be folded: in registers, or in memory, from where it comes back
  // through a landing zone in shared memory where there is one.
  static constexpr bool kFoldInRegisters =
      HeadDim <= 128 && kVariant != Variant::kSpread && kVariant != Variant::kSparing;
  static constexpr int kLanded = 8;  // 16-byte pieces of a thread on their way
  static constexpr bool kLandingZone = HeadDim == 256 && kWide;
  static constexpr int kLandingOffset = kVOffset + kVSlots * kSlotBytes;
  static constexpr int kLandingBytes = kLandingZone ? kThreads * kLanded * 16 : 0;
  static constexpr int kFoldOffset = kLandingOffset + kLandingBytes;
  static constexpr int kFoldBytes = kRowGroups * 64 * 8;
  static constexpr int kPagesOffset = kFoldOffset + kFoldBytes;
  static constexpr int kItemOffset = kPagesOffset + kPageEntries * 4;
  static constexpr int kBarrierOffset = kItemOffset + static_cast<int>(sizeof(Item));
  static constexpr int kSlots = kKSlots + kVSlots;
  static constexpr int kBarriers =
      kFeeder ? 2 * kSlots : kSlots;  // filled; with a feeder also passed by all warps
  static constexpr int kUsedBytes = kBarrierOffset + kBarriers * 8;
  static constexpr int kSharedBytes =
      kBlocks == 1 && kUsedBytes < 116 * 1024 ? 116 * 1024 : kUsedBytes;

  static_assert(HeadDim == 64 || HeadDim == 128 || HeadDim == 256);
  static_assert(kVariant != Variant::kFolding || kFoldInRegisters);
  static_assert(kVariant != Variant::kSparing || HeadDim == 128);
  static_assert(kBlocks * (kSharedBytes + 1024) <= 228 * 1024);
};

template <class TileType>
__global__ void __launch_bounds__(TileType::kBlockThreads) __maxnreg__(TileType::kRegisters)
    decode(const __grid_constant__ Arguments args,
           const __grid_constant__ typename TileType::Maps maps) {
  using T = typename TileType::Element;
  constexpr int kHeadDim = TileType::kHeadDim;
  constexpr int kRowGroups = TileType::kRowGroups;
  constexpr int kKeys = TileType::kKeys;
  constexpr int kSlotBytes = TileType::kSlotBytes;
  constexpr int kKSlots = TileType::kKSlots;
  constexpr int kVSlots = TileType::kVSlots;
  constexpr int kLanded = TileType::kLanded;
  constexpr int kGroupBytes = 8 * TileType::kLineBytes;  // eight tokens of the block's dims

  extern __shared__ __align__(1024) std::byte shared[];
  const std::uint32_t base = shared_address(shared);
  const std::uint32_t barriers = base + TileType::kBarrierOffset;

  // Warp-uniform by construction, so that descriptors stay out of the vector registers.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int item_index = static_cast<int>(blockIdx.x);

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
  // Without a feeder. The last rows of a warpgroup: there is least to fold.
  constexpr int kKWarp = TileType::kThreads / 32 - 1;
  constexpr int kVWarp = TileType::kThreads > 128 ? 3 : 2;
  const auto init_barriers = [&](int warps) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < TileType::kBarriers; ++i) {
      barrier_init(barriers + 8 * i, i < TileType::kSlots ? 1 : warps);
    }
    barrier_init_fence();
  };
  if (!TileType::kFeedingGroup) init_barriers(TileType::kThreads / 32);
  __syncthreads();
  // A row group without a row (a verify block among prefill chunks) takes no part.
  const int active_warps =
      kRowGroups == 1 || item.rows * args.group > 64 ? TileType::kThreads / 32 : 4;
  if (TileType::kFeedingGroup) init_barriers(active_warps);
  const int first_tile = __shfl_sync(~0u, item.key_begin, 0) / kKeys;  // uniform registers
  const int tile_end = (__shfl_sync(~0u, item.key_end, 0) + kKeys - 1) / kKeys;

  // Plan and page tables were written before the previous kernel started; only Q, KV and partials
  // may depend on it.
  const typename TileType::Pages pages{
      args, item, reinterpret_cast<std::int32_t*>(shared + TileType::kPagesOffset),
      base + TileType::kPagesOffset};
  pages.load(first_tile);
  if (!args.early) wait_for_previous_launch();
  __syncthreads();

  // Without a feeder: one warp copies a tile of K or V, a lane a piece.
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
      const std::uint32_t target = base + slot * kSlotBytes + first * TileType::kLineBytes;
      if constexpr (TileType::kNatural) {
        tensor_copy(
            target, is_v ? &maps.v : &maps.k, item.kv_head * args.head_lines,
            where.page * args.page_groups + item.kv_head * args.head_groups + where.token / 8,
            barrier, policy);
      } else {
        const std::byte* source = (is_v ? args.v : args.k) + where.page * args.page_stride +
                                  item.kv_head * args.head_stride +
                                  where.token * TileType::kLineBytes;
        bulk_copy(target, source, bytes, barrier, policy);
      }
    }
    __syncwarp();
  };
  if constexpr (TileType::kFeeder) {
    if (warp >= TileType::kThreads / 32) {
      if constexpr (TileType::kFeedingGroup) give_registers<TileType::kFeedingRegisters>();
      constexpr int kFirst = TileType::kThreads / 32;
      const Feeder<TileType> feeder{args, item, maps, pages, base, barriers};
      if (warp == kFirst) {
        feeder.template run<false>(first_tile, tile_end);
      } else if (warp == kFirst + 1) {
        feeder.template run<true>(first_tile, tile_end);
      }
      if (args.early) wait_for_previous_launch();
      return;
    }
    if constexpr (TileType::kFeedingGroup) {
      take_registers<TileType::kComputingRegisters>();
      if (warp >= active_warps) return;
    }
  } else {
    for (int i = 0; warp == kKWarp && i < kKSlots; ++i) fetch(false, first_tile + i, i);
    for (int i = 0; warp == kVWarp && i < kVSlots; ++i) fetch(true, first_tile + i, i);
  }
  // Without a feeder: after the scores of `tile` are complete in all warps, so is the output of
  // tile - 2, and two warps fill both slots again. With one, each warp says when it has passed a
  // slot.
  const auto refill = [&](int tile) {
    if constexpr (TileType::kFeeder) return;
    const int done = tile - item.key_begin / kKeys;  // read again rather than kept
    if (warp == kKWarp) {
      copy_words_wait();
      __syncwarp();
      fetch(false, tile + kKSlots, done % kKSlots);
      pages.load_next(tile, tile - 1);
    }
    if (warp == kVWarp && done >= 2) fetch(true, tile - 2 + kVSlots, (done - 2) % kVSlots);
  };
  const auto passed = [&](int slot) {
    if constexpr (TileType::kFeeder) {
      __syncwarp();
      barrier_arrive_by_one(barriers + 8 * (TileType::kSlots + slot));
    }
  };
  const auto sync = [&] {
    if constexpr (TileType::kFeeder) {
      sync_threads(1, active_warps * 32);
    } else {
      __syncthreads();
    }
  };

  if (args.early) wait_for_previous_launch();
  const ItemRows<TileType::kThreads> rows{args, item};
  std::uint32_t q[kHeadDim / 16][4];
  rows.template load_queries<T, kHeadDim>(q, 0, lane);

  float s[kKeys / 2];
  std::uint32_t p[kKeys / 16][4];
  float o[kHeadDim / 2];
  float accumulated[TileType::kFoldInRegisters ? kHeadDim / 2 : 1] = {};
  RowState state;
  float alpha[2];

  RingPlace<kKSlots> k_place;
  RingPlace<kVSlots> v_place;
  const auto issue_scores = [&] {
    barrier_wait(barriers + 8 * k_place.slot, k_place.parity);
    const std::uint64_t keys = matrix_descriptor(base + k_place.slot * kSlotBytes, 16, kGroupBytes);
    start_scores<T>(s, q, keys);
  };
  // Rows of V that no row of the tile sees may hold anything, NaN too, and 0 x NaN is NaN: they
  // become zero.
  const auto clear_unseen = [&](int tile) {
    if (tile > first_tile && tile < tile_end - 1) return;
    if (tile * kKeys >= item.key_begin && (tile + 1) * kKeys <= item.key_end) return;
    barrier_wait(barriers + 8 * (kKSlots + v_place.slot), v_place.parity);
    std::byte* const slot = shared + TileType::kVOffset + v_place.slot * kSlotBytes;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kSlotBytes / 16; i += active_warps * 32) {
      const int token = i / (kGroupBytes / 16) * 8 + i / 8 % 8;
      const int key = tile * kKeys + token;
      if (key < item.key_begin || key >= item.key_end)
        *reinterpret_cast<uint4*>(slot + i * 16) = uint4{0, 0, 0, 0};
    }
    proxy_fence();
    sync();
  };
  const auto issue_output = [&] {
    barrier_wait(barriers + 8 * (kKSlots + v_place.slot), v_place.parity);
    const std::uint64_t values =
        matrix_descriptor(base + TileType::kVOffset + v_place.slot * kSlotBytes, 1024, kGroupBytes);
    start_output<T, kGroupBytes>(o, p, values);
  };
  // All warps have the scores.
  const auto share_scores = [&] {
    if constexpr (TileType::kFeeder) passed(k_place.slot);
    k_place.next();
    if constexpr (!TileType::kFeeder) __syncthreads();
  };
  // Two row groups take turns with their products: the softmax of one runs beside those of the
  // other.
  const bool turns = TileType::kTurns && active_warps > 4;
  const auto my_turn = [&] {
    if (turns) sync_threads(2 + warp / 4, TileType::kThreads);
  };
  const auto your_turn = [&] {
    if (turns) arrive_threads(3 - warp / 4, TileType::kThreads);
  };
  if (warp >= 4) your_turn();
  const PlainTiles plain = plain_tiles<kKeys>(args, item);

  const auto unit_tiles = [&] { return __shfl_sync(~0u, item.unit, 0) / kKeys; };
  int unit_end = (first_tile / unit_tiles() + 1) * unit_tiles();
  int unit = 0;  // of the item
  for (int tile = first_tile; tile < tile_end; unit_end += unit_tiles(), ++unit) {
    const int last_tile = min(unit_end, tile_end);
    state.maximum[0] = state.maximum[1] = -INFINITY;
    state.sum[0] = state.sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0.0f;

    my_turn();
    issue_scores();
    your_turn();
    wgmma_wait<0>();
    share_scores();
    refill(tile);
    mask_scores(s, rows, plain, tile);
    softmax<T, TileType::kSlack>(s, state, alpha, args.exponent_scale);
    pack_probabilities<T>(p, s);
    for (++tile; tile < last_tile; ++tile) {
      clear_unseen(tile - 1);
      my_turn();
      issue_scores();
      issue_output();
      your_turn();
      wgmma_wait<1>();
      share_scores();
      refill(tile);
      mask_scores(s, rows, plain, tile);
      softmax<T, TileType::kSlack>(s, state, alpha, args.exponent_scale);
      wait_until_known(__fadd_rn(state.sum[0], state.sum[1]));  // not for the output before it
      wgmma_wait<0>();
      passed(kKSlots + v_place.slot);
      v_place.next();
      scale_output(o, alpha);
      pack_probabilities<T>(p, s);
    }
    clear_unseen(tile - 1);
    // The unit's end: store, fold or finish. A partial's dims lie in the order of the accumulators
    // within each sixteen. Little is kept over the last product: there are no registers for it.
    const bool last_unit = tile == tile_end;
    const bool merging = unit > 0 && folds(item);
    const auto target = [&](int row) {
      const int index = item.partial + (item.emit == Emit::kStore ? unit * rows.live() : 0) + row;
      return args.partial_o + static_cast<std::int64_t>(index) * kHeadDim + 4 * (lane_again() % 4);
    };
    // Pieces of what was folded so far come back while the last product runs, every thread's own.
    const auto land = [&](int piece, const float* source, int left, std::uint64_t policy) {
      const int r = piece / (kHeadDim / 16);
      if (piece < kHeadDim / 8 && 8 * r < left) {
        copy_16_async(base + TileType::kLandingOffset +
                          (piece % kLanded * TileType::kThreads + thread_again()) * 16,
                      source + r * 8 * kHeadDim + 16 * (piece % (kHeadDim / 16)), policy);
      }
      copies_commit();
    };
    if constexpr (TileType::kLandingZone) {
      if (merging) {
        __threadfence_block();
        const int row = rows.first();
        const float* source = target(row);
        asm volatile("" : "+l"(source));
        const int left = rows.live() - row;
#pragma unroll
        for (int piece = 0; piece < kLanded; ++piece)
          land(piece, source, left, policy_evict_last());
      }
    }
    my_turn();
    issue_output();
    if (warp < 4 || !last_unit) your_turn();
    // While the product runs: the rows' sums, and the weights of what was folded so far.
    float kept[2] = {};
    float added[2] = {};
    add_up(state);
    if (folds(item)) {
      auto* const folded = reinterpret_cast<float2*>(shared + TileType::kFoldOffset) + rows.first();
      fold_state(state, folded, unit, kept, added);
    }
    wgmma_wait<0>();
    passed(kKSlots + v_place.slot);
    v_place.next();

    const bool finishes = item.emit == Emit::kFinal || (item.emit == Emit::kFoldFinal && last_unit);
    const std::uint64_t policy = policy_evict_last();
    if (merging) {
      const int row = rows.first();
      const int left = rows.live() - row;  // from the thread's first on
      const float* source = target(row);
      asm volatile("" : "+l"(source));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!rows.warp_has_live(r)) continue;
#pragma unroll
        for (int i = 0; i < kHeadDim / 16; ++i) {
          float* const mine = o + 8 * i + 2 * r;
          float4 old;
          if constexpr (TileType::kFoldInRegisters) {
            old = four_of(accumulated + 8 * i + 2 * r);
          } else if constexpr (TileType::kLandingZone) {
            const int piece = r * (kHeadDim / 16) + i;
            copies_wait<kLanded - 1>();
            old = reinterpret_cast<const float4*>(
                shared +
                TileType::kLandingOffset)[piece % kLanded * TileType::kThreads + thread_again()];
            land(piece + kLanded, source, left, policy);
          } else {
            if (i % 4 == 0)
              __syncwarp();  // no more than four loads in flight: there are no registers for them
            if (8 * r >= left) continue;
            old = load_4_hinted(source + r * 8 * kHeadDim + 16 * i, policy);
          }
          merge_four(mine, old, kept[r], added[r]);
        }
      }
    }
    const int here = lane_again();
    const int row = rows.first();
    float* const place_of_first = target(row);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = state.maximum[r];
      const float sum = state.sum[r];
      if (row + 8 * r >= rows.live()) continue;
      if (finishes) {
        const OutputRow out = output_row(rows, row + 8 * r);
        const Finish result = finish(maximum, sum, args, out.head);
        auto* const words =
            reinterpret_cast<std::uint32_t*>(static_cast<T*>(args.out) + out.place * kHeadDim);
        write_row<T>(words, o, r, result.factor, here);
        if (args.lse != nullptr && here % 4 == 0) args.lse[out.place] = result.lse;
      } else if (!TileType::kFoldInRegisters || !folds(item) || last_unit) {
        if (here % 4 == 0 && (!folds(item) || last_unit)) {
          const int index = item.partial + (folds(item) ? 0 : unit * rows.live()) + row + 8 * r;
          args.partial_m[index] = maximum;
          args.partial_l[index] = sum;
        }
#pragma unroll
        for (int i = 0; i < kHeadDim / 16; ++i) {
          const float* const mine = o + 8 * i + 2 * r;
          store_hinted(place_of_first + r * 8 * kHeadDim + 16 * i, four_of(mine), policy);
        }
      }
    }
    if constexpr (TileType::kFoldInRegisters) {
      if (folds(item) && !last_unit) {
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) accumulated[i] = o[i];
      }
    }
  }
}

}  // namespace segue::attention::cuda
