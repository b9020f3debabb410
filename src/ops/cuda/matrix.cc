// SPDX-License-Identifier: Apache-2.0
// Block formats to bf16 in tensor core order, on the host, a piece of tiles at a time.
#include "ops/cuda/matrix.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"

namespace segue::ops::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{32} << 20;

/// One tile of outputs: rows [first, first + 16) of `part`; rows past its end are zero.
void pack_tile(const ops::Matrix& part, std::int64_t first, std::vector<float>& row,
               std::uint16_t* out /*[inputs / 32, 512]*/) {
  const std::int64_t blocks = part.inputs() / kInputBlock;
  row.resize(static_cast<std::size_t>(part.inputs()));
  for (std::int64_t o = 0; o < kTileOutputs; ++o) {
    if (first + o < part.outputs()) {
      part.dequantize_row(first + o, row.data());
    } else {
      std::ranges::fill(row, 0.0f);
    }
    std::array<std::int64_t, kInputBlock> places;
    for (std::int64_t i = 0; i < kInputBlock; ++i)
      places[static_cast<std::size_t>(i)] = packed_index(blocks, o, i);
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        out[block * 512 + places[i]] =
            core::f32_to_bf16(row[static_cast<std::size_t>(block) * kInputBlock + i]);
      }
    }
  }
}

}  // namespace

Matrix Matrix::upload(std::span<const ops::Matrix* const> parts, core::ThreadPool& pool,
                      const device::Stream& stream) {
  Matrix matrix;
  matrix.inputs_ = parts.front()->inputs();
  CHECK(matrix.inputs_ % kInputBlock == 0);
  for (const ops::Matrix* part : parts) {
    CHECK(part->inputs() == matrix.inputs_);
    CHECK(part == parts.back() || part->outputs() % kTileOutputs == 0);
    matrix.outputs_ += part->outputs();
  }
  matrix.data_ =
      device::Buffer(static_cast<std::size_t>(bytes_of(matrix.outputs_, matrix.inputs_)));
  const auto tile_elements = static_cast<std::size_t>(kTileOutputs * matrix.inputs_);
  const auto piece_tiles = static_cast<std::int64_t>(
      std::max<std::size_t>(1, kPieceBytes / (tile_elements * sizeof(std::uint16_t))));
  std::vector<std::uint16_t> piece;
  std::vector<std::vector<float>> rows(static_cast<std::size_t>(pool.threads()));
  auto* to = matrix.data_.as<std::uint16_t>();
  for (const ops::Matrix* part : parts) {
    const std::int64_t tiles = (part->outputs() + kTileOutputs - 1) / kTileOutputs;
    for (std::int64_t first = 0; first < tiles;) {
      const std::int64_t count = std::min(tiles - first, piece_tiles);
      piece.resize(static_cast<std::size_t>(count) * tile_elements);
      pool.for_each(count, [&](std::int64_t tile, int worker) {
        pack_tile(*part, (first + tile) * kTileOutputs, rows[static_cast<std::size_t>(worker)],
                  piece.data() + static_cast<std::size_t>(tile) * tile_elements);
      });
      device::copy_to_device(to, piece.data(), piece.size() * sizeof(std::uint16_t), stream);
      stream.synchronize();
      to += piece.size();
      first += count;
    }
  }
  return matrix;
}

}  // namespace segue::ops::cuda
