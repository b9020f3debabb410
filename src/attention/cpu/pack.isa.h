// SPDX-License-Identifier: Apache-2.0
// Rows of K in a natural layout, [token][head_dim] with any stride, into a tile of the layout
// tiled16: what the products read, so that natural layouts have the same sums and the same bits. V
// needs nothing: its rows are alike in all layouts.
//
// Floor: the rows are read once, as the tile would be, and the tile is written and read in the
// nearest cache: 2 row_bytes per key. Per 16 x 16 words, 256 dims in f32 and 512 in 16 bits: 64
// loads of 16 bytes, 48 of them inserts, 32 shuffles and 16 stores on AVX-512, so about 40 cycles,
// whatever the rows; the multiply-adds of one row and head with these dims take 8 or 16. f16 adds
// a permutation per 32.
#pragma once

#include "attention/cpu/products.isa.h"

namespace segue::attention::ISA {
namespace {

/// rows: [16] of K; tile: [head_dim][16], in bf16 [head_dim / 2][16][2].
template <class Kv>
void pack_tile(const std::byte* const* rows, int head_dim, std::byte* tile) {
  const int words = head_dim * static_cast<int>(sizeof(typename Kv::Element)) / 4;
  for (int i = 0; i < words; i += 16) {
    const int word = smaller(i, words - 16);  // at head_dim 80 the last sixteen overlap
    std::byte* out = tile + word * 64;
    transpose(rows, word * 4, out);
    for (int pair = 0; Kv::kSplitPairs && pair < 16; ++pair) split_pairs(out + pair * 64);
  }
}

}  // namespace
}  // namespace segue::attention::ISA
