// SPDX-License-Identifier: Apache-2.0
// How weights and activations lie in memory; the same for every instruction level.
//
// A matrix is a sequence of tiles of 16 outputs (the last one padded with zero weights). A tile of
// a block format holds the quants of all its blocks of 32 inputs, then all its scales, rounded up
// to 64 bytes:
//
//   quants of one block, for element k-groups g = 0..7 (elements 4g .. 4g+3 of the block), outputs
//   o, i = 0..3:
//     Q8_0        [8 g][16 o][4 i] int8
//     4-bit       [4 g][16 o][4 i] nibbles: low = group g, high = group g + 4 256 bytes 5-bit
//     4-bit, then [8 g] u64 whose bit 4 o + i is the fifth bit                           320 bytes
//     6-bit       4-bit, then [2 h][16 o][4 i]: bits 2 j, 2 j + 1 are the upper bits of group 4 h +
//     j  384 bytes
//   scales of one group of blocks (1 block, or 8 for the K formats), f16 unless said otherwise:
//     Q4_0 Q5_0 Q8_0   d [16 o]
//     W4_BF16 W4_F32   d [16 o] in bf16, f32
//     Q4_1 Q5_1        d [16 o], m [16 o]
//     Q4_K Q5_K        d [16 o], dmin [16 o], [8 block][16 o] u8 (low nibble: low 4 bits of the
//     scale, high: of the
//                      minimum), [4 pair][16 o] u8 (upper 2 bits: scale, minimum of the even block,
//                      then of the odd)
//     Q6_K             d [16 o], [16 sub-block][16 o] int8
//
// The totals are those of the file's blocks. A tile of a float format is [inputs][16 o] of its
// type.
//
// Activations: rows are gathered in panels of up to Kernels::panel_rows = P rows (all full but the
// last). A panel of M rows is, for each block: int8 q [M][32], f32 scale [M], f32 scale * sum [M],
// i32 -128 * sum [M], and the same of the first and of the second 16 elements [M] each;
// kRowBlockBytes per row. Float panels are f32 [inputs][M].
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace segue::ops {

constexpr int kTileOutputs = 16;
constexpr int kBlock = 32;
constexpr int kRowBlockBytes = kBlock + 5 * 4;
constexpr int kLineBytes = 64;

struct TileLayout {
  int quant_bytes;  // per block of 32 inputs
  int scale_bytes;  // per group of blocks
  int group_blocks;
};

constexpr TileLayout kLayoutQ8_0{512, 32, 1};
constexpr TileLayout kLayoutQ4_0{256, 32, 1};
constexpr TileLayout kLayoutQ4_1{256, 64, 1};
constexpr TileLayout kLayoutQ5_0{320, 32, 1};
constexpr TileLayout kLayoutQ5_1{320, 64, 1};
constexpr TileLayout kLayoutW4_BF16 = kLayoutQ4_0;
constexpr TileLayout kLayoutW4_F32{256, 64, 1};
constexpr TileLayout kLayoutQ4_K{256, 256, 8};
constexpr TileLayout kLayoutQ5_K{320, 256, 8};
constexpr TileLayout kLayoutQ6_K{384, 288, 8};

constexpr bool is_float(core::DType dtype) {
  return dtype == core::DType::kF32 || dtype == core::DType::kF16 || dtype == core::DType::kBF16;
}

constexpr TileLayout tile_layout(core::DType dtype) {
  switch (dtype) {
    case core::DType::kQ4_0: return kLayoutQ4_0;
    case core::DType::kQ4_1: return kLayoutQ4_1;
    case core::DType::kQ5_0: return kLayoutQ5_0;
    case core::DType::kQ5_1: return kLayoutQ5_1;
    case core::DType::kQ8_0: return kLayoutQ8_0;
    case core::DType::kQ4_K: return kLayoutQ4_K;
    case core::DType::kQ5_K: return kLayoutQ5_K;
    case core::DType::kQ6_K: return kLayoutQ6_K;
    case core::DType::kW4_BF16: return kLayoutW4_BF16;
    case core::DType::kW4_F32: return kLayoutW4_F32;
    default: return {0, 0, 1};
  }
}

}  // namespace segue::ops
