// SPDX-License-Identifier: Apache-2.0
// The part of an item's page table that the kernels of sm_90a keep in shared memory, and where by
// it a piece of keys lies: one bulk copy, `Arguments::piece` tokens that never cross a page.
#pragma once

#include <cstdint>

#include "attention/cuda/arguments.h"
#include "attention/cuda/ptx.cuh"

namespace segue::attention::cuda {

struct PagePlace {
  int page;
  int token;  // of the page
};

/// Tiles of kKeys keys. The table comes in chunks of kChunk entries; kEntries, a power of two, are
/// kept: entry e at e % kEntries.
template <int kKeys, int kChunk, int kEntries>
struct PageWindow {
  const Arguments& args;
  const Item& item;       // in shared memory
  std::int32_t* ids;      // [kEntries] in shared memory
  std::uint32_t address;  // of the same

  __device__ __forceinline__ int page_of(int key) const {
    const int page = static_cast<int>(__umulhi(static_cast<unsigned>(key), args.page_inverse));
    return page + (key - page * args.page_size >= args.page_size ? 1 : 0);
  }
  __device__ __forceinline__ int chunk_of(int tile) const { return page_of(tile * kKeys) / kChunk; }

  /// By the block's threads: the chunk of the item's first tile and the one after it.
  __device__ __forceinline__ void load(int first_tile) const {
    const int entry = chunk_of(first_tile) * kChunk + static_cast<int>(threadIdx.x);
    if (threadIdx.x < 2 * kChunk && entry < item.table_count &&
        entry <= page_of(item.key_end - 1)) {
      ids[entry & (kEntries - 1)] = args.tables[item.table + entry];
    }
  }
  /// By one warp that is at `tile` and was at `before`, asynchronously (copy_words_wait): if
  /// another chunk begins between them, the one before is used up, and its entries take the chunk
  /// after this one.
  __device__ __forceinline__ void load_next(int tile, int before) const {
    const int chunk = chunk_of(tile);
    if (tile == item.key_begin / kKeys || chunk == chunk_of(before)) return;
    for (int i = lane_again(); i < kChunk; i += 32) {
      const int entry = (chunk + 1) * kChunk + i;
      if (entry < item.table_count && entry <= page_of(item.key_end - 1)) {
        copy_word_async(address + 4 * (entry & (kEntries - 1)), args.tables + item.table + entry);
      }
    }
  }

  /// Does the item read any key of the piece that begins at `key`?
  __device__ __forceinline__ bool has_piece(int key) const {
    return key < item.key_end && key + args.piece > item.key_begin;
  }
  /// Of a key that has_piece().
  __device__ __forceinline__ PagePlace place_of(int key) const {
    const int ordinal = page_of(key);
    const int page = ids[ordinal & (kEntries - 1)];
    return {static_cast<unsigned>(page) < static_cast<unsigned>(args.pages) ? page : 0,
            key - ordinal * args.page_size};
  }
};

}  // namespace segue::attention::cuda
