// SPDX-License-Identifier: Apache-2.0
// The two warps that do nothing but feed the rings of a block, one with K and one with V.
//
// What binds is their own pace: on a multiprocessor whose other warps are busy an instruction takes
// ten cycles and more, and a warp that looks up the pages of every tile takes 2000 cycles for one
// of 64 keys, where the memory takes 1500. So a lane finds one piece (what a copy brings), and 32
// lanes those of several tiles; a tile then costs its waits, one announcement and its copies.
// Order: scores need K first, the output V last. V of a tile is asked for when K of the tile before
// has landed; asked for side by side, V ran up to two tiles ahead and K came last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/cuda/arguments.h"
#include "attention/cuda/page_window.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/cuda/ring.cuh"

namespace segue::attention::cuda {

template <class TileType>
struct Feeder {
  static constexpr int kKeys = TileType::kKeys;
  static constexpr int kKSlots = TileType::kKSlots;
  static constexpr int kVSlots = TileType::kVSlots;
  // Tiles of K under way, which keeps the memory busy: with more, the first tiles of all blocks
  // would land together with the last.
  static constexpr int kAhead = 2;
  // Not where rings of three slots meet the slower copies of tensor maps: 2.5 % (2026-12-01).
  static constexpr bool kKFirst = TileType::kDeep || !TileType::kNatural;
  // A tensor map's coordinate, or an address.
  using Source = std::conditional_t<TileType::kNatural, int, const std::byte*>;

  const Arguments& args;
  const Item& item;  // in shared memory
  const typename TileType::Maps& maps;
  const TileType::Pages& pages;
  std::uint32_t base;      // of the slots
  std::uint32_t barriers;  // of K's slots, V's slots: filled; and of both: passed by all warps

  /// Tiles [first_tile, tile_end), by one warp. That of K fetches page tables too. It has waited
  /// for a chunk of them when it asks for K of the first tile of the chunk before, which has landed
  /// when V's warp gets as far as the chunk: that is four tiles and more later.
  template <bool kIsV>
  __device__ __forceinline__ void run(int first_tile, int tile_end) const {
    constexpr int kSlots = kIsV ? kVSlots : kKSlots;
    const int pieces = kKeys / args.piece;  // of a tile
    const int tiles = 32 / pieces;          // whose pieces the lanes have found
    const std::uint32_t bytes = static_cast<std::uint32_t>(args.piece * TileType::kLineBytes);
    // Kept: they would be found again for every tile.
    const std::uint32_t slots =
        __shfl_sync(~0u, base + (kIsV ? kKSlots * TileType::kSlotBytes : 0), 0);
    const std::uint32_t k_filled = __shfl_sync(~0u, barriers, 0);
    const std::uint32_t v_filled = k_filled + 8 * kKSlots;
    const std::uint32_t filled = kIsV ? v_filled : k_filled;
    const std::uint32_t passed = filled + 8 * (kKSlots + kVSlots);
    RingPlace<kSlots> place;
    RingPlace<kSlots> landed;
    RingPlace<kKSlots> k_landed;
    RingPlace<kVSlots> v_landed;
    const auto wait_for_next = [](std::uint32_t of_ring, auto& next) {
      barrier_wait(of_ring + 8 * next.slot, next.parity);
      next.next();
    };
    Source source{};
    std::uint32_t votes = 0;  // lanes that have a piece
    int found = 0;            // tiles left of those whose pieces are found
    for (int tile = first_tile; tile < tile_end; ++tile, --found, place.next()) {
      if (found == 0) {
        found = tiles;
        if constexpr (!kIsV) pages.load_next(tile, tile - tiles);
        const int key = tile * kKeys + lane_again() * args.piece;
        const bool valid = pages.has_piece(key);
        votes = __ballot_sync(~0u, valid);
        if (valid) source = source_of<kIsV>(pages.place_of(key));
      }
      const int begin = (tiles - found) * pieces;  // the first lane that has a piece of the tile
      const std::uint32_t of_tile = votes >> begin & ((1u << pieces) - 1);
      const int piece = lane_again() - begin;
      const bool has_one = piece >= 0 && piece < pieces && (of_tile >> piece & 1) != 0;
      const std::uint32_t barrier = filled + 8 * place.slot;
      const std::uint32_t target = slots + place.slot * TileType::kSlotBytes + piece * bytes;
      const int index = tile - first_tile;
      if (index >= kSlots) barrier_wait(passed + 8 * place.slot, place.parity ^ 1);
      if (lane_again() == 0 && of_tile != 0)
        barrier_expect(barrier, static_cast<std::uint32_t>(__popc(of_tile)) * bytes);
      if constexpr (kKFirst) {
        if (index >= (kIsV ? 1 : kAhead)) wait_for_next(k_filled, k_landed);
        // K does not go a round ahead of V's warp, which would miss a phase of K's barrier.
        if (!kIsV && index >= kKSlots - 1) wait_for_next(v_filled, v_landed);
      } else if (index >= kAhead) {
        wait_for_next(filled, landed);
      }
      if constexpr (!kIsV) copy_words_wait();
      __syncwarp();
      // Not before the waits: a feeding warp has 24 registers.
      const std::uint64_t policy = item.reread ? policy_evict_normal() : policy_evict_first();
      if (has_one) copy<kIsV>(target, source, bytes, barrier, policy);
      __syncwarp();
    }
  }

 private:
  template <bool kIsV>
  __device__ __forceinline__ Source source_of(PagePlace where) const {
    if constexpr (TileType::kNatural) {
      return where.page * args.page_groups + item.kv_head * args.head_groups + where.token / 8;
    } else {
      return (kIsV ? args.v : args.k) + where.page * args.page_stride +
             item.kv_head * args.head_stride + where.token * TileType::kLineBytes;
    }
  }

  template <bool kIsV>
  __device__ __forceinline__ void copy(std::uint32_t target, Source source, std::uint32_t bytes,
                                       std::uint32_t barrier, std::uint64_t policy) const {
    if constexpr (TileType::kNatural) {
      tensor_copy(target, kIsV ? &maps.v : &maps.k, item.kv_head * args.head_lines, source, barrier,
                  policy);
    } else {
      bulk_copy(target, source, bytes, barrier, policy);
    }
  }
};

}  // namespace segue::attention::cuda
