// SPDX-License-Identifier: Apache-2.0
// Decode, verify and prefill attention for compute capability 8.0 and later, without what only 9.0
// has: one block reduces one work item (row tile, kv head, run of units).
//
// Bytes: K and V of the item's keys once. Operations: 4 x 16 x head_dim a key and sixteen rows, as
// many sixteens as there are rows. Bound: device memory, if the chain of one tile of keys (scores,
// exchange, softmax, output) stays below the time in which the memory delivers the next. Idea: rows
// x group of a kv head are up to four sixteens of rows of `mma.sync`; warps split the dims, in the
// first product and in the second, so that a warp's queries and output stay in registers at any
// head_dim and K and V are read from shared memory by two warps at most; the parts of the scores
// are added through shared memory in one order. K and V arrive by 16-byte asynchronous copies in a
// ring whose length is what the GPU's shared memory allows (docs/kernels/cuda-sm80.md). A row's
// bits depend on the keys it sees, its unit size and nothing else: every row goes through the same
// instructions wherever it lies, keys that it does not see are masked by selection, keys that no
// row sees are never fetched (zeros take their place), and no rounding is left to the compiler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/arguments.h"
#include "attention/cuda/item_rows.cuh"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/sm80/mma.cuh"
#include "attention/cuda/softmax.cuh"

namespace segue::attention::cuda::sm80 {

/// What this family's launches add to Arguments.
struct Ring {
  std::int64_t token_stride;  // natural layouts, bytes
  std::int32_t swizzled;      // 1: kSwizzled8
  std::int32_t slots;         // 2 to kMostSlots
};
inline constexpr int kMostSlots = 7;

/// The compile-time facts of one kernel.
template <int HeadDim, class T>
struct Tile {
  using Element = T;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kSlices = HeadDim >= 256 ? 4 : 2;    // of the dims, a warp each
  static constexpr int kPadded = (HeadDim + 31) / 32 * 32;  // dims in shared memory, zeros behind
  static constexpr int kDims = kPadded / kSlices;           // of one warp
  static constexpr int kRowGroups = 2;                      // of warps; sixteens of rows alternate
  static constexpr int kSixteens = 2;                       // of rows, of one warp
  static constexpr int kRows = 16 * kSixteens * kRowGroups;
  static constexpr int kThreads = 32 * kSlices * kRowGroups;
  // Of one tile. At 512 the scores of 32 would not fit beside q and o.
  static constexpr int kKeys = HeadDim > 256 ? 16 : HeadDim == 256 ? 32 : 64;
  static constexpr int kResidents = HeadDim <= 128 ? 2 : 1;
  // Sixteen bytes between keys, so that eight keys' pieces at the same dims lie in different banks.
  static constexpr int kPitch = kPadded * 2 + 16;
  static constexpr int kSlotBytes = kKeys * kPitch;
  static constexpr int kExchangeBytes = kSlices * kRows * kKeys * 4;
  static constexpr int kFoldOffset = kExchangeBytes;
  static constexpr int kFoldBytes = 2 * kRows * 8;  // of the units so far, read and written in turn
  static constexpr int kItemOffset = kFoldOffset + kFoldBytes;
  static constexpr int kRingOffset = kItemOffset + static_cast<int>(sizeof(Item));
  static constexpr int kPieces = kPadded / 8;  // of 16 bytes, of a key
  static constexpr int kCopies = kKeys * kPieces / kThreads;

  static_assert(HeadDim % 16 == 0 && kDims % 16 == 0 && kRingOffset % 16 == 0);
  static_assert(kKeys * kPieces % kThreads == 0);
  static_assert(kRingOffset + 2 * kSlotBytes <= 99 * 1024);  // consumer GPUs
};

template <class TileType>
__global__ void __launch_bounds__(TileType::kThreads, TileType::kResidents)
    decode(const __grid_constant__ Arguments args, const __grid_constant__ Ring ring) {
  using T = typename TileType::Element;
  constexpr int kHeadDim = TileType::kHeadDim;
  constexpr int kDims = TileType::kDims;
  constexpr int kKeys = TileType::kKeys;
  constexpr int kSlices = TileType::kSlices;
  constexpr int kSixteens = TileType::kSixteens;
  constexpr int kPitch = TileType::kPitch;
  constexpr int kKeyWords = (kKeys + 31) / 32;

  extern __shared__ __align__(128) std::byte shared[];
  const std::uint32_t base = shared_address(shared);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int slice = warp % kSlices;
  const int row_group = warp / kSlices;

  allow_next_launch();
  auto* const shared_item = reinterpret_cast<Item*>(shared + TileType::kItemOffset);
  if (static_cast<int>(blockIdx.x) >= args.counts->items) {
    wait_for_previous_launch();  // a grid that ends early must not seem to complete the one before
    return;
  }
  copy_item(shared_item, args.items + blockIdx.x);
  __syncthreads();
  const Item& item = *shared_item;  // read again rather than kept in registers
  const auto first_tile = [&] { return item.key_begin / kKeys; };
  const auto tile_end = [&] { return (item.key_end + kKeys - 1) / kKeys; };

  // --- the ring: K and V of the tiles in turn, uses 0, 1, 2, ... of `ring.slots` slots ---

  // Lane i knows where keys i (and 32 + i) of a tile lie, if it has as many. Page numbers are
  // fetched a tile ahead: their latency would precede every copy.
  std::int32_t page_ahead[kKeyWords];
  std::int64_t key_at[kKeyWords];  // byte offset from the pools' starts; -1: a key that no row sees
  const auto page_of = [&](int key) {
    return args.page_shift >= 0 ? key >> args.page_shift : key / args.page_size;
  };
  const auto look_ahead = [&](int tile) {
#pragma unroll
    for (int i = 0; i < kKeyWords; ++i) {
      const int key = tile * kKeys + 32 * i + lane;
      page_ahead[i] = -1;
      if (key >= item.key_begin && key < item.key_end) {
        const int entry = page_of(key);
        if (entry < item.table_count) page_ahead[i] = __ldg(args.tables + item.table + entry);
      }
    }
  };
  const auto locate = [&](int tile) {
#pragma unroll
    for (int i = 0; i < kKeyWords; ++i) {
      const int key = tile * kKeys + 32 * i + lane;
      const int token = key - page_of(key) * args.page_size;
      const int page = static_cast<unsigned>(page_ahead[i]) < static_cast<unsigned>(args.pages)
                           ? page_ahead[i]
                           : 0;
      const std::int64_t within =
          ring.swizzled != 0
              ? static_cast<std::int64_t>(token / 8 * (8 * kHeadDim * 2) + token % 8 * 128)
              : token * ring.token_stride;
      const bool seen = key >= item.key_begin && key < item.key_end;
      key_at[i] = seen ? page * args.page_stride + item.kv_head * args.head_stride + within : -1;
    }
  };
  const auto offset_of = [&](int key) {
    std::int64_t offset = __shfl_sync(~0u, key_at[0], key % 32);
#pragma unroll
    for (int i = 1; i < kKeyWords; ++i) {
      const std::int64_t other = __shfl_sync(~0u, key_at[i], key % 32);
      offset = key / 32 == i ? other : offset;
    }
    return offset;
  };
  const auto fill = [&](int slot, const std::byte* pool) {
    const std::uint64_t policy = item.reread ? policy_evict_normal() : policy_evict_first();
    const std::uint32_t target = base + TileType::kRingOffset + slot * TileType::kSlotBytes;
#pragma unroll(kHeadDim > 256 ? 1 : 2)
    for (int i = 0; i < TileType::kCopies; ++i) {
      const int index = i * TileType::kThreads + static_cast<int>(threadIdx.x);
      const int key = index / TileType::kPieces;
      const int piece = index % TileType::kPieces;
      const std::int64_t offset = offset_of(key);
      const bool wanted = offset >= 0 && (TileType::kPadded == kHeadDim || piece < kHeadDim / 8);
      const int at =
          ring.swizzled != 0 ? piece / 8 * 1024 + ((piece % 8) ^ (key % 8)) * 16 : piece * 16;
      copy_16_or_zeros(target + key * kPitch + piece * 16, wanted ? pool + offset + at : pool,
                       wanted ? 16 : 0, policy);
    }
  };
  int filled = 0;  // uses that are filled, on their way, or past the last one
  int slot = 0;    // of the next one to fill; once the ring is full also of the one in use
  const auto fill_next = [&] {
    const int tile = first_tile() + filled / 2;
    if (tile < tile_end()) {
      if (filled % 2 == 0) {
        locate(tile);
        look_ahead(tile + 1);
      }
      fill(slot, filled % 2 == 0 ? args.k : args.v);
    }
    copies_commit();  // a group for every use, empty ones too: waiting counts groups
    ++filled;
    slot = slot + 1 == ring.slots ? 0 : slot + 1;
  };

  look_ahead(first_tile());
  if (!args.early) wait_for_previous_launch();
  for (int i = 0; i < ring.slots; ++i) fill_next();
  if (args.early) wait_for_previous_launch();

  // --- rows: sixteen j of a warp holds rows 16 (2 j + row_group) and on ---

  // Worked out again where it is needed: registers are scarce.
  const auto live_rows = [&] { return item.rows * args.group; };
  const int row_first = row_group * 16 + lane / 4;  // of sixteen 0; the other row is 8 further on
  const auto row_of = [&](int j, int r) { return row_first + 32 * j + 8 * r; };
  const auto query_of = [&](int row) { return min(row / args.group, item.rows - 1); };
  const auto sixteens = [&] { return (live_rows() - row_group * 16 + 31) / 32; };
  // A sixteenth of dims that only pads.
  const auto padding = [&](int i) {
    return TileType::kPadded != kHeadDim && slice * (kDims / 16) + i >= kHeadDim / 16;
  };

  std::uint32_t q[kSixteens][kDims / 16][4];
#pragma unroll
  for (int j = 0; j < kSixteens; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_of(j, r);
      const bool live = row < live_rows();
      const int query = query_of(row);
      const int head = item.kv_head * args.group + (live ? row - query * args.group : 0);
      const auto* words = reinterpret_cast<const std::uint32_t*>(
          static_cast<const T*>(args.q) +
          (static_cast<std::int64_t>(item.token + query) * args.q_heads + head) * kHeadDim +
          slice * kDims);
#pragma unroll
      for (int i = 0; i < kDims / 16; ++i) {
        const bool read = live && !padding(i);
        q[j][i][r] = read ? __ldg(words + 8 * i + lane % 4) : 0;
        q[j][i][2 + r] = read ? __ldg(words + 8 * i + 4 + lane % 4) : 0;
      }
    }
  }

  // Element [slice][sixteen of rows][eight keys][lane]: one float4 a lane, what `multiply` gave it.
  auto* const exchange = reinterpret_cast<float4*>(shared);
  const auto exchanged = [&](int part, int j, int eight) {
    return exchange + ((part * 4 + 2 * j + row_group) * (kKeys / 8) + eight) * 32 + lane;
  };
  // This warp's dims of the scores of all keys, sixteen keys at a time.
  const auto score = [&](std::uint32_t slot, auto count) {
    const std::uint32_t source = slot + (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16 +
                                 static_cast<std::uint32_t>(slice * kDims * 2);
#pragma unroll
    for (int sixteen = 0; sixteen < kKeys / 16; ++sixteen) {
      float s[count.value][2][4] = {};
#pragma unroll
      for (int i = 0; i < kDims / 16; ++i) {
        std::uint32_t k[4];
        load_matrices(k, source + sixteen * 16 * kPitch + i * 32);
#pragma unroll
        for (int j = 0; j < count.value; ++j) {
          multiply(s[j][0], q[j][i], k[0], k[1], T{});
          multiply(s[j][1], q[j][i], k[2], k[3], T{});
        }
      }
#pragma unroll
      for (int j = 0; j < count.value; ++j) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
          *exchanged(slice, j, 2 * sixteen + n) =
              make_float4(s[j][n][0], s[j][n][1], s[j][n][2], s[j][n][3]);
      }
    }
  };
  // The parts added in one order, the same in every warp.
  const auto sum_parts = [&](float(&s)[kKeys / 2], int j) {
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      float4 sum = *exchanged(0, j, i);
      const float4 next = *exchanged(1, j, i);
      sum = make_float4(__fadd_rn(sum.x, next.x), __fadd_rn(sum.y, next.y),
                        __fadd_rn(sum.z, next.z), __fadd_rn(sum.w, next.w));
      if constexpr (kSlices == 4) {
        const float4 a = *exchanged(2, j, i);
        const float4 b = *exchanged(3, j, i);
        sum = make_float4(
            __fadd_rn(sum.x, __fadd_rn(a.x, b.x)), __fadd_rn(sum.y, __fadd_rn(a.y, b.y)),
            __fadd_rn(sum.z, __fadd_rn(a.z, b.z)), __fadd_rn(sum.w, __fadd_rn(a.w, b.w)));
      }
      s[4 * i] = sum.x, s[4 * i + 1] = sum.y, s[4 * i + 2] = sum.z, s[4 * i + 3] = sum.w;
    }
  };
  const auto mask = [&](float(&s)[kKeys / 2], int tile, int j) {
    if (args.capped) cap_scores(s, args);
    const int last_first_key = args.window > 0 ? item.position + item.rows - args.window : 0;
    if ((tile + 1) * kKeys <= item.position + 1 && tile * kKeys >= last_first_key) return;
    const int last_key[2] = {item.position + query_of(row_of(j, 0)),
                             item.position + query_of(row_of(j, 1))};
    hide_unseen(s, args, tile, last_key, lane);
  };

  float o[kSixteens][kDims / 8][4];
  RowState state[kSixteens];
  // Softmax of this warp's rows and their output over its dims. Sixteen rows after the other: V
  // comes twice from shared memory, but the probabilities of 32 rows do not fit beside q and o.
  const auto output = [&](std::uint32_t slot, int tile, auto count) {
    const std::uint32_t source =
        slot + lane % 16 * kPitch + lane / 16 * 16 + static_cast<std::uint32_t>(slice * kDims * 2);
#pragma unroll
    for (int j = 0; j < count.value; ++j) {
      float s[kKeys / 2];
      float alpha[2];
      sum_parts(s, j);
      mask(s, tile, j);
      softmax<T>(s, state[j], alpha, args.exponent_scale);
      if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < kDims / 8; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) o[j][i][e] = __fmul_rn(o[j][i][e], alpha[e / 2]);
        }
      }
      std::uint32_t p[kKeys / 16][4];
      pack_probabilities<T>(p, s);
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
        for (int d = 0; d < kDims / 16; ++d) {
          std::uint32_t v[4];
          load_transposed(v, source + i * 16 * kPitch + d * 32);
          multiply(o[j][2 * d], p[i], v[0], v[1], T{});
          multiply(o[j][2 * d + 1], p[i], v[2], v[3], T{});
        }
      }
    }
  };
  const auto for_my_rows = [&](auto&& body) {
    if (sixteens() >= 2) {
      body(std::integral_constant<int, 2>{});
    } else if (sixteens() == 1) {
      body(std::integral_constant<int, 1>{});
    }
  };
  const auto reset = [&] {
#pragma unroll
    for (int j = 0; j < kSixteens; ++j) {
      state[j] = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
      for (int i = 0; i < kDims / 8; ++i) o[j][i][0] = o[j][i][1] = o[j][i][2] = o[j][i][3] = 0.0f;
    }
  };

  // The unit that ends with tile - 1: store, fold or finish. A partial's dims lie in the order of
  // the products within each sixteen, as reduce.cuh reads them.
  const auto end_unit = [&](int tile) {
    const bool folds = item.emit == Emit::kFold || item.emit == Emit::kFoldFinal;
    const int unit = (tile - 1) * kKeys / item.unit - item.key_begin / item.unit;
    const bool merges = folds && unit > 0;
    const int parity = unit % 2;
    const bool last_unit = tile == tile_end();
    const bool finishes = item.emit == Emit::kFinal || (item.emit == Emit::kFoldFinal && last_unit);
    const std::uint64_t policy = policy_evict_last();
    auto* const folded = reinterpret_cast<float2*>(shared + TileType::kFoldOffset);
    const int first = item.partial + (item.emit == Emit::kStore ? unit * live_rows() : 0);
#pragma unroll
    for (int j = 0; j < kSixteens; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sum = state[j].sum[r];
        float maximum = state[j].maximum[r];
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
        const int row = row_of(j, r);
        const bool live = row < live_rows();
        float* const place = args.partial_o + static_cast<std::int64_t>(first + row) * kHeadDim +
                             slice * kDims + 4 * (lane % 4);
        if (merges) {
          const float2 before = folded[(1 - parity) * TileType::kRows + row];
          const Weights weights = merge_weights(before.x, maximum);
          maximum = weights.maximum;
          sum = merge(before.y, sum, weights.kept, weights.added);
#pragma unroll
          for (int i = 0; i < kDims / 16; ++i) {
            // No more than two loads in flight: there are no registers for them.
            if (i % 2 == 0) __syncwarp();
            if (!live || padding(i)) continue;
            const float4 old = load_4_hinted(place + 16 * i, policy);
            float(&a)[4] = o[j][2 * i];
            float(&b)[4] = o[j][2 * i + 1];
            a[2 * r] = merge(old.x, a[2 * r], weights.kept, weights.added);
            a[2 * r + 1] = merge(old.y, a[2 * r + 1], weights.kept, weights.added);
            b[2 * r] = merge(old.z, b[2 * r], weights.kept, weights.added);
            b[2 * r + 1] = merge(old.w, b[2 * r + 1], weights.kept, weights.added);
          }
        }
        if (!live) continue;
        // All warps of the row have read the other half of this since the barriers of the tile.
        if (folds && slice == 0 && lane % 4 == 0)
          folded[parity * TileType::kRows + row] = make_float2(maximum, sum);
        if (finishes) {
          const int query = query_of(row);
          const int head = item.kv_head * args.group + row - query * args.group;
          const std::int64_t out =
              static_cast<std::int64_t>(item.token + query) * args.q_heads + head;
          const Finish result = finish(maximum, sum, args, head);
          auto* const words = reinterpret_cast<std::uint32_t*>(static_cast<T*>(args.out) +
                                                               out * kHeadDim + slice * kDims);
#pragma unroll
          for (int i = 0; i < kDims / 8; ++i) {
            if (padding(i / 2)) continue;
            words[4 * i + lane % 4] = pack(__fmul_rn(o[j][i][2 * r], result.factor),
                                           __fmul_rn(o[j][i][2 * r + 1], result.factor), T{});
          }
          if (args.lse != nullptr && slice == 0 && lane % 4 == 0) args.lse[out] = result.lse;
        } else {
          if (slice == 0 && lane % 4 == 0 && (!folds || last_unit)) {
            args.partial_m[first + row] = maximum;
            args.partial_l[first + row] = sum;
          }
#pragma unroll
          for (int i = 0; i < kDims / 16; ++i) {
            if (padding(i)) continue;
            const float(&a)[4] = o[j][2 * i];
            const float(&b)[4] = o[j][2 * i + 1];
            store_hinted(place + 16 * i,
                         make_float4(a[2 * r], a[2 * r + 1], b[2 * r], b[2 * r + 1]), policy);
          }
        }
      }
    }
  };

  const auto next_slot = [&](bool refills) {
    copies_wait_at_most(ring.slots - 2);
    __syncthreads();  // everybody's copies are there, and the slot before this one is free
    if (refills) fill_next();
    return base + TileType::kRingOffset + slot * TileType::kSlotBytes;
  };
  for (int tile = first_tile(); tile < tile_end();) {
    reset();
    do {
      const std::uint32_t k = next_slot(tile > first_tile());
      for_my_rows([&](auto count) { score(k, count); });
      const std::uint32_t v = next_slot(true);
      for_my_rows([&](auto count) { output(v, tile, count); });
      ++tile;
    } while (tile < tile_end() && tile % (item.unit / kKeys) != 0);
    end_unit(tile);
  }
}

}  // namespace segue::attention::cuda::sm80
