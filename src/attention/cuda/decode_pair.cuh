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
#include "attention/cuda/merge.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/softmax.cuh"
#include "attention/cuda/wgmma.cuh"

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
  constexpr int kPageMask = TileType::kPageEntries - 1;
  constexpr int kChunk = TileType::kPageEntries / 2;
  constexpr int kGroupBytes = 8 * TileType::kLineBytes;  // eight tokens of the block's dims

  extern __shared__ __align__(1024) std::byte shared[];
  const std::uint32_t base = shared_address(shared);
  auto* const page_ids = reinterpret_cast<std::int32_t*>(shared + TileType::kPagesOffset);
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
  if (threadIdx.x < sizeof(Item) / 4) {
    reinterpret_cast<std::int32_t*>(shared_item)[threadIdx.x] =
        reinterpret_cast<const std::int32_t*>(args.items + item_index)[threadIdx.x];
  }
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
      barrier_init(barriers + 8 * (TileType::kBarriers + i), 1);
    }
    barrier_init_fence();
  }
  const int first_tile = __shfl_sync(~0u, item.key_begin, 0) / kKeys;  // uniform registers
  const int tile_end = (__shfl_sync(~0u, item.key_end, 0) + kKeys - 1) / kKeys;

  // Plan and page tables were written before the previous kernel started; only Q, KV and partials
  // may depend on it.
  const auto page_of = [&](int key) {
    const int page = static_cast<int>(__umulhi(static_cast<unsigned>(key), args.page_inverse));
    return page + (key - page * args.page_size >= args.page_size ? 1 : 0);
  };
  const auto chunk_of = [&](int tile) { return page_of(tile * kKeys) / kChunk; };
  {
    const int entry = chunk_of(first_tile) * kChunk + static_cast<int>(threadIdx.x);
    if (threadIdx.x < TileType::kPageEntries && entry < item.table_count &&
        entry <= page_of(item.key_end - 1)) {
      page_ids[entry & kPageMask] = args.tables[item.table + entry];
    }
  }
  if (!args.early) wait_for_previous_launch();
  cluster_sync();  // the other block's barriers are ready

  // One warp copies a tile of K or V, a lane a piece.
  const auto fetch = [&](bool is_v, int tile, int place) {
    const int copier = lane_again();
    const int first = copier * args.piece;
    const int key = tile * kKeys + first;
    const bool valid =
        first < kKeys && tile < tile_end && key < item.key_end && key + args.piece > item.key_begin;
    const std::uint32_t votes = __ballot_sync(~0u, valid);
    const int slot = is_v ? kKSlots + place : place;
    const std::uint32_t barrier = barriers + 8 * slot;
    const std::uint32_t bytes = static_cast<std::uint32_t>(args.piece * TileType::kLineBytes);
    const std::uint64_t policy = item.reread ? policy_evict_normal() : policy_evict_first();
    if (copier == 0 && votes != 0)
      barrier_expect(barrier, static_cast<std::uint32_t>(__popc(votes)) * bytes);
    __syncwarp();
    if (valid) {
      const int ordinal = page_of(key);
      int page = page_ids[ordinal & kPageMask];
      page = static_cast<unsigned>(page) < static_cast<unsigned>(args.pages) ? page : 0;
      const int token = key - ordinal * args.page_size;
      tensor_copy(base + slot * kSlotBytes + first * TileType::kLineBytes, is_v ? &maps.v : &maps.k,
                  item.kv_head * args.head_lines + rank * (TileType::kBlockDims / 64),
                  page * args.page_groups + item.kv_head * args.head_groups + token / 8, barrier,
                  policy);
    }
    __syncwarp();
  };
  const auto next_pages = [&](int tile) {
    const int chunk = chunk_of(tile);
    if (tile == item.key_begin / kKeys || chunk == chunk_of(tile - 1)) return;
    // The chunk before this one is used up: its entries take the chunk after this one.
    for (int i = lane_again(); i < kChunk; i += 32) {
      const int entry = (chunk + 1) * kChunk + i;
      if (entry < item.table_count && entry <= page_of(item.key_end - 1)) {
        copy_word_async(base + TileType::kPagesOffset + 4 * (entry & kPageMask),
                        args.tables + item.table + entry);
      }
    }
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
        next_pages(tile - 1);
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
  // Recomputed where they are needed, which is rare: registers are scarce. Rows past the last count
  // as the last one.
  const auto live_rows = [&] { return item.rows * args.group; };
  const auto first_row = [] {  // of the thread's two; the other is 8 further on
    const int thread = thread_again() & 127;
    return thread / 32 * 16 + thread % 32 / 4;
  };
  const auto first_dim = [] {  // of the warpgroup
    return cluster_rank() * TileType::kBlockDims + thread_again() / 128 * kDims;
  };
  const auto query_of = [&](int row) { return min(row * args.group_inverse >> 16, item.rows - 1); };
  constexpr int kQSteps = TileType::kBlockDims / 16;
  std::uint32_t q[kQSteps][4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row() + 8 * r;
    const bool live = row < live_rows();
    const int query = query_of(row);
    const int head = item.kv_head * args.group + (live ? row - query * args.group : 0);
    const auto* words = reinterpret_cast<const std::uint32_t*>(
        static_cast<const T*>(args.q) +
        (static_cast<std::int64_t>(item.token + query) * args.q_heads + head) * kHeadDim +
        rank * TileType::kBlockDims);
#pragma unroll
    for (int i = 0; i < kQSteps; ++i) {
      q[i][r] = live ? __ldg(words + 8 * i + lane % 4) : 0;
      q[i][2 + r] = live ? __ldg(words + 8 * i + 4 + lane % 4) : 0;
    }
  }

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
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kQSteps; ++i) {
      const std::uint64_t step = advance(keys, (i / 4) * 1024 + (i % 4) * 32);
      wgmma<T, Major::kK>(s, q[i], step, i > 0);
    }
    wgmma_commit();
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
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      wgmma<T, Major::kN>(o, weights[i], advance(values, i * 2 * kGroupBytes), 1);
    wgmma_commit();
  };
  const auto scale_output = [&](const float(&factor)[2]) {
    if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kDims / 2; ++i) o[i] = __fmul_rn(o[i], factor[i / 2 % 2]);
    }
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
    __syncwarp();
    barrier_arrive_by_one(handed_over + 8 * warp);
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
    scale_output(their_alpha);
    issue_output(n, their_p);
    __syncwarp();
    if (n + 2 < tiles) {
      barrier_arrive_in_cluster_by_one(address_in_cluster(free_again + 8 * (warp ^ 4), rank ^ 1));
    }
  };
  // Tiles of which every row sees every key, unless scores are capped.
  const int position = __shfl_sync(~0u, item.position, 0);
  const int plain_begin =
      args.window > 0
          ? (max(position + __shfl_sync(~0u, item.rows, 0) - args.window, 0) + kKeys - 1) / kKeys
          : 0;
  const int plain_end = args.capped ? plain_begin : (position + 1) / kKeys;
  const auto mask_scores = [&](int tile) {
    if (tile >= plain_begin && tile < plain_end) return;
    if (args.capped) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s[i] = cap(__fmul_rn(s[i], args.score_scale));
    }
    const int here = lane_again();
    const int last_key[2] = {item.position + query_of(first_row()),
                             item.position + query_of(first_row() + 8)};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int key = tile * kKeys + 8 * (i / 4) + 2 * (here % 4) + i % 2;
      const int last = last_key[i / 2 % 2];
      const bool visible = key <= last && (args.window == 0 || key > last - args.window);
      s[i] = visible ? s[i] : -INFINITY;
    }
  };
  const auto pack_probabilities = [&] {
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) p[i][e] = pack(s[8 * i + 2 * e], s[8 * i + 2 * e + 1], T{});
    }
  };

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
      mask_scores(first_tile + n);
      wgmma_wait<0>();
      if (n > begin) passed(kKSlots + (n - 1) % 2);
      softmax<T>(s, state, alpha, args.exponent_scale);
      pack_probabilities();
      hand_over();
      scale_output(alpha);
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
    const auto folds = [&] { return item.emit == Emit::kFold || item.emit == Emit::kFoldFinal; };
    const bool merging = unit > 0 && folds();
    // Of the thread's two rows: live ones come first, and a warp has eight of either kind.
    const auto live = [&](int r) { return first_row() / 16 * 16 + 8 * r < live_rows(); };
    // The rows' sums, and the weights of what was folded so far.
    float kept[2] = {};
    float added[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.sum[r] = __fadd_rn(state.sum[r], __shfl_xor_sync(~0u, state.sum[r], 1));
      state.sum[r] = __fadd_rn(state.sum[r], __shfl_xor_sync(~0u, state.sum[r], 2));
    }
    if (folds()) {
      auto* const folded =
          reinterpret_cast<float2*>(shared + TileType::kFoldOffset) + part * 64 + first_row();
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
    // A piece of what was folded so far: every thread's own.
    const auto state_of = [&](int piece) {
      return reinterpret_cast<float4*>(shared + TileType::kStateOffset) +
             piece * TileType::kThreads + thread_again();
    };
    if (merging) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!live(r)) continue;
#pragma unroll
        for (int i = 0; i < kDims / 16; ++i) {
          float* const mine = o + 8 * i + 2 * r;
          const float4 old = *state_of(r * (kDims / 16) + i);
          mine[0] = merge(old.x, mine[0], kept[r], added[r]);
          mine[1] = merge(old.y, mine[1], kept[r], added[r]);
          mine[4] = merge(old.z, mine[4], kept[r], added[r]);
          mine[5] = merge(old.w, mine[5], kept[r], added[r]);
        }
      }
    }
    if (folds() && !last_unit) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!live(r)) continue;
#pragma unroll
        for (int i = 0; i < kDims / 16; ++i) {
          const float* const mine = o + 8 * i + 2 * r;
          *state_of(r * (kDims / 16) + i) = make_float4(mine[0], mine[1], mine[4], mine[5]);
        }
      }
      continue;
    }
    const bool finishes = item.emit == Emit::kFinal || (item.emit == Emit::kFoldFinal && last_unit);
    const std::uint64_t policy = policy_evict_last();
    const int here = lane_again();
    const int row = first_row();
    const int partial = item.partial + (item.emit == Emit::kStore ? unit * live_rows() : 0) + row;
    float* const place_of_first = args.partial_o + static_cast<std::int64_t>(partial) * kHeadDim +
                                  first_dim() + 4 * (here % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = state.maximum[r];
      const float sum = state.sum[r];
      if (row + 8 * r >= live_rows()) continue;
      if (finishes) {
        const int query = query_of(row + 8 * r);
        const int head = item.kv_head * args.group + row + 8 * r - query * args.group;
        const std::int64_t place =
            static_cast<std::int64_t>(item.token + query) * args.q_heads + head;
        constexpr float kLog2E = 1.44269504088896340736f;
        const Finish result = finish(
            maximum, sum, args.sinks != nullptr ? __fmul_rn(args.sinks[head], kLog2E) : -INFINITY);
        auto* const words = reinterpret_cast<std::uint32_t*>(static_cast<T*>(args.out) +
                                                             place * kHeadDim + first_dim());
#pragma unroll
        for (int i = 0; i < kDims / 8; ++i) {
          words[4 * i + here % 4] = pack(__fmul_rn(o[4 * i + 2 * r], result.factor),
                                         __fmul_rn(o[4 * i + 2 * r + 1], result.factor), T{});
        }
        if (args.lse != nullptr && part == 0 && rank == 0 && here % 4 == 0)
          args.lse[place] = result.lse;
      } else {
        if (part == 0 && rank == 0 && here % 4 == 0) {
          args.partial_m[partial + 8 * r] = maximum;
          args.partial_l[partial + 8 * r] = sum;
        }
#pragma unroll
        for (int i = 0; i < kDims / 16; ++i) {
          const float* const mine = o + 8 * i + 2 * r;
          store_hinted(place_of_first + r * 8 * kHeadDim + 16 * i,
                       make_float4(mine[0], mine[1], mine[4], mine[5]), policy);
        }
      }
    }
  }
}

}  // namespace segue::attention::cuda
