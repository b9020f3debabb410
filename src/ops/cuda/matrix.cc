// SPDX-License-Identifier: Apache-2.0
// Block formats to tensor core order, on the host, a piece of tiles at a time.
#include "ops/cuda/matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"
#include "ops/cpu/layout.h"

namespace segue::ops::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{32} << 20;

/// One tile of outputs: rows [first, first + 16) of `part`; rows past its end are zero, and inputs.
void pack_tile(const ops::Matrix& part, std::int64_t first, std::vector<float>& row,
               std::uint16_t* out /*[inputs / 32, 512]*/) {
  const std::int64_t blocks = in_blocks(part.inputs()) / kInputBlock;
  row.assign(static_cast<std::size_t>(blocks * kInputBlock), 0.0f);
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

constexpr int kWordsOfPair = 32 * 4;   // of two blocks of a tile
constexpr int kScalesOfPair = 16 * 2;  // the same

/// One tile of a matrix whose blocks are levels and a scale of 16 bits (ops/cpu/layout.h).
void pack_levels(const ops::Matrix& part, std::int64_t tile, std::uint32_t* words,
                 std::uint16_t* scales) {
  constexpr int kQuants = ops::kLayoutQ4_0.quant_bytes;
  const std::int64_t blocks = part.inputs() / kInputBlock;
  const std::uint8_t* const from = part.tiles() + tile * part.tile_bytes();
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::uint8_t* const quants = from + block * kQuants;
    const auto level = [quants](int output, int input) {
      const int pair = quants[64 * (input % 16 / 4) + 4 * output + input % 4];
      return static_cast<std::uint32_t>(input < 16 ? pair & 15 : pair >> 4);
    };
    std::uint32_t* const to = words + block / 2 * kWordsOfPair + block % 2 * 2;
    for (int lane = 0; lane < 32; ++lane) {
      for (int half = 0; half < 2; ++half) {
        std::uint32_t word = 0;
        for (int i = 0; i < 8; ++i) {
          const int output = lane / 4 + i / 2 % 2 * 8;
          const int input = lane % 4 * 8 + half * 4 + i / 4 * 2 + i % 2;
          word |= level(output, input) << (4 * (i / 2 + i % 2 * 4));
        }
        to[lane * 4 + half] = word;
      }
    }
    const std::uint8_t* const of_block = from + blocks * kQuants + block * 2 * kTileOutputs;
    for (int output = 0; output < kTileOutputs; ++output) {
      std::memcpy(scales + block / 2 * kScalesOfPair + output % 8 * 4 + block % 2 * 2 + output / 8,
                  of_block + 2 * output, 2);
    }
  }
}

std::int64_t tiles_of(std::int64_t outputs) { return (outputs + kTileOutputs - 1) / kTileOutputs; }

/// Bytes of the levels, which the scales follow.
std::int64_t level_bytes(std::int64_t outputs, std::int64_t inputs) {
  return tiles_of(outputs) * kTileOutputs * inputs / 2;
}

/// Where the tiles of a part go.
struct Target {
  std::byte* weights;
  std::byte* scales;  // kFourBit
};

/// Packs and copies all tiles of a part, some of them at a time; moves `to` behind them.
void send_part(const ops::Matrix& part, Form form, Target& to, core::ThreadPool& pool,
               const device::Stream& stream) {
  const bool levels = form == Form::kFourBit;
  const auto elements = static_cast<std::size_t>(kTileOutputs * in_blocks(part.inputs()));
  const std::size_t weight_bytes = levels ? elements / 2 : elements * 2;  // of a tile
  const std::size_t scale_bytes = levels ? elements / kInputBlock * 2 : 0;
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / weight_bytes));
  std::vector<std::uint32_t> weights;
  std::vector<std::uint16_t> scales;
  std::vector<std::vector<float>> rows(static_cast<std::size_t>(pool.threads()));
  const std::int64_t tiles = tiles_of(part.outputs());
  for (std::int64_t first = 0; first < tiles; first += most) {
    const std::int64_t count = std::min(tiles - first, most);
    const auto size = static_cast<std::size_t>(count);
    weights.resize(size * weight_bytes / 4);
    scales.resize(size * scale_bytes / 2);
    pool.for_each(count, [&](std::int64_t tile, int worker) {
      const auto at = static_cast<std::size_t>(tile);
      std::uint32_t* const out = weights.data() + at * weight_bytes / 4;
      if (levels) return pack_levels(part, first + tile, out, scales.data() + at * scale_bytes / 2);
      pack_tile(part, (first + tile) * kTileOutputs, rows[static_cast<std::size_t>(worker)],
                reinterpret_cast<std::uint16_t*>(out));
    });
    device::copy_to_device(to.weights, weights.data(), size * weight_bytes, stream);
    if (levels) device::copy_to_device(to.scales, scales.data(), size * scale_bytes, stream);
    stream.synchronize();
    to.weights += size * weight_bytes;
    to.scales += size * scale_bytes;
  }
}

}  // namespace

Form form_of(std::span<const ops::Matrix* const> parts) {
  const core::DType dtype = parts.front()->dtype();
  const bool levels = dtype == core::DType::kQ4_0 || dtype == core::DType::kW4_BF16;
  const bool all = std::ranges::all_of(parts, [dtype](const ops::Matrix* part) {
    return part->dtype() == dtype && part->inputs() % (2 * kInputBlock) == 0;
  });
  return levels && all ? Form::kFourBit : Form::kBf16;
}

std::int64_t bytes_of(Form form, std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t elements = tiles_of(outputs) * kTileOutputs * in_blocks(inputs);
  return form == Form::kBf16 ? elements * 2 : elements / 2 + elements / kInputBlock * 2;
}

Matrix Matrix::upload(std::span<const ops::Matrix* const> parts, Form form, core::ThreadPool& pool,
                      const device::Stream& stream) {
  CHECK(form == Form::kBf16 || form_of(parts) == form);
  Matrix matrix;
  matrix.form_ = form;
  matrix.bf16_scales_ = parts.front()->dtype() == core::DType::kW4_BF16;
  matrix.inputs_ = in_blocks(parts.front()->inputs());
  for (const ops::Matrix* part : parts) {
    CHECK(part->inputs() == parts.front()->inputs());
    CHECK(part == parts.back() || part->outputs() % kTileOutputs == 0);
    matrix.outputs_ += part->outputs();
  }
  matrix.data_ =
      device::Buffer(static_cast<std::size_t>(bytes_of(form, matrix.outputs_, matrix.inputs_)));
  std::byte* const begin = matrix.data_.as<>();
  Target to{begin, begin + level_bytes(matrix.outputs_, matrix.inputs_)};
  for (const ops::Matrix* part : parts) send_part(*part, form, to, pool, stream);
  return matrix;
}

const std::uint16_t* Matrix::elements() const {
  CHECK(form_ == Form::kBf16);
  return data_.as<std::uint16_t>();
}

const void* Matrix::scales() const {
  return form_ == Form::kFourBit ? data_.as<>() + level_bytes(outputs_, inputs_) : nullptr;
}

}  // namespace segue::ops::cuda
