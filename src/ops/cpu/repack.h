// SPDX-License-Identifier: Apache-2.0
// Between the file's block formats and the tiles of layout.h, lossless in both directions. Plain
// code: it runs once per load and is bound by memory for Q8_0, by shuffling nibbles for the rest.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace segue::ops {

/// Bytes of one tile, rounded up to 64. `inputs` is a multiple of the dtype's block.
std::int64_t tile_size(core::DType dtype, std::int64_t inputs);

/// Fills one tile (zeroed by the caller) from `outputs` <= 16 rows of the file.
void repack_tile(core::DType dtype, const std::byte* rows /*[outputs, row_bytes]*/,
                 std::int64_t row_bytes, int outputs, std::int64_t inputs, std::uint8_t* tile);

/// One row of Q4_0, W4_BF16 or W4_F32 blocks from int32 words of eight levels each, element 8 k + j
/// in bits 4 j .. 4 j + 3 of word k with 8 added, and scales as the dtype has them.
void pack_w4_row(core::DType dtype, const std::byte* words /*[inputs / 8] i32*/,
                 const std::byte* scales /*[inputs / 32]*/, std::int64_t inputs,
                 std::byte* row /*[inputs / 32] blocks*/);

/// The weights of output `lane` of a tile as floats.
void read_lane(core::DType dtype, const std::uint8_t* tile, int lane, std::int64_t inputs,
               float* out /*[inputs]*/);

}  // namespace segue::ops
