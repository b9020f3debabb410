// SPDX-License-Identifier: Apache-2.0
// Matrix: weights of linear layers on a GPU, in bf16 and in the order in which tensor cores take
// them, so that every load of a product is 16 bytes a lane and 512 a warp, with nothing between.
// Several layers over the same input may be one matrix, their outputs side by side.
//
// Order: [outputs / 16][inputs / 32][2][32 lanes][8]. Lane (g, t) = (lane / 4, lane % 4) of half h
// holds inputs 8 t + 4 h .. 8 t + 4 h + 3 of outputs g and g + 8: with inputs in this order the
// other operand, a row of activations, is read as it lies, 16 bytes a lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/thread_pool.h"
#include "device/device.h"
#include "ops/cpu/matrix.h"

namespace segue::ops::cuda {

inline constexpr int kTileOutputs = 16;
inline constexpr int kInputBlock = 32;  // inputs of a matrix are whole blocks

/// Where (output, input) lies in a matrix of `blocks` = inputs / 32.
constexpr std::int64_t packed_index(std::int64_t blocks, std::int64_t output, std::int64_t input) {
  const std::int64_t tile = output / kTileOutputs, high = output % kTileOutputs / 8;
  const std::int64_t place = input % kInputBlock;
  const std::int64_t lane = output % 8 * 4 + place / 8;
  const std::int64_t element = (place % 4 / 2 * 2 + high) * 2 + place % 2;
  return ((tile * blocks + input / kInputBlock) * 2 + place % 8 / 4) * 256 + lane * 8 + element;
}

class Matrix {
 public:
  Matrix() = default;  // empty: outputs() == 0

  /// Dequantises, rounds to bf16 and uploads. The parts have the same inputs, a multiple of 32; all
  /// but the last a multiple of 16 outputs (CHECK). Returns when the copy is done.
  static Matrix upload(std::span<const ops::Matrix* const> parts, core::ThreadPool& pool,
                       const device::Stream& stream);

  std::int64_t outputs() const { return outputs_; }
  std::int64_t inputs() const { return inputs_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(data_.bytes()); }
  const std::uint16_t* data() const { return data_.as<std::uint16_t>(); }

  /// Bytes on the device of a matrix of that shape.
  static std::int64_t bytes_of(std::int64_t outputs, std::int64_t inputs) {
    return (outputs + kTileOutputs - 1) / kTileOutputs * kTileOutputs * inputs * 2;
  }

 private:
  device::Buffer data_;
  std::int64_t outputs_ = 0;
  std::int64_t inputs_ = 0;
};

/// y[row][output] = sum over inputs of w[output][input] * x[row][input], sums in f32. The bits of a
/// row are a function of that row and the matrix: not of the other rows, nor of how many there are.
struct Product {
  const Matrix* w = nullptr;
  const std::uint16_t* x = nullptr;  // [rows, inputs] bf16, device memory
  float* y = nullptr;                // [rows, outputs] device memory
  std::int64_t rows = 0;
  /// Weights may be loaded before the kernel before this one ends: good where that one is short.
  bool early = true;
  int width = 0;  // few rows: 1, 2 or 4 tiles of 16 outputs a block; 0: by the matrix
};
void product(const Product& args, int multiprocessors, const device::Stream& stream);

}  // namespace segue::ops::cuda
