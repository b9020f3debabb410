// SPDX-License-Identifier: Apache-2.0
// Matrix: weights of linear layers on a GPU, in the order in which tensor cores take them, so that
// every load of a product is 16 bytes a lane and 512 a warp, with nothing between. Several layers
// over the same input may be one matrix, their outputs side by side.
//
// A lane is (g, t) = (lane / 4, lane % 4). Of half h of a block of 32 inputs it holds inputs
// 8 t + 4 h .. 8 t + 4 h + 3 of outputs g and g + 8: with inputs in this order the other operand, a
// row of activations, is read as it lies, 16 bytes a lane.
//   kBf16     [outputs / 16][inputs / 32][2 halves][32 lanes][8]
//   kFourBit  [outputs / 16][inputs / 64][32 lanes][2 blocks][2 halves] words of eight levels, 8
//             added, then [outputs / 16][inputs / 64][8 g][2 blocks][outputs g, g + 8] scales.
//             Place i of the eight in bf16's order is nibble i / 2 + i % 2 * 4 of the word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/thread_pool.h"
#include "device/device.h"
#include "ops/cpu/matrix.h"

namespace segue::ops::cuda {

inline constexpr int kTileOutputs = 16;
inline constexpr int kInputBlock = 32;  // inputs of a matrix are whole blocks, zeros behind them

constexpr std::int64_t in_blocks(std::int64_t inputs) {
  return (inputs + kInputBlock - 1) / kInputBlock * kInputBlock;
}

/// Where (output, input) lies in a matrix of `blocks` = inputs / 32.
constexpr std::int64_t packed_index(std::int64_t blocks, std::int64_t output, std::int64_t input) {
  const std::int64_t tile = output / kTileOutputs, high = output % kTileOutputs / 8;
  const std::int64_t place = input % kInputBlock;
  const std::int64_t lane = output % 8 * 4 + place / 8;
  const std::int64_t element = (place % 4 / 2 * 2 + high) * 2 + place % 2;
  return ((tile * blocks + input / kInputBlock) * 2 + place % 8 / 4) * 256 + lane * 8 + element;
}

enum class Form : std::uint8_t {
  kBf16,     // rounded once, whatever the file has
  kFourBit,  // levels of -8 .. 7 and a 16-bit scale per 32 inputs: the file's own numbers
};

/// kFourBit where every part has that (Q4_0, W4_BF16; the same in all) and inputs are a multiple of
/// 64.
Form form_of(std::span<const ops::Matrix* const> parts);
/// Bytes on the device.
std::int64_t bytes_of(Form form, std::int64_t outputs, std::int64_t inputs);

class Matrix {
 public:
  Matrix() = default;  // empty: outputs() == 0

  /// Uploads in a form that the parts have. They have the same inputs; all but the last a multiple
  /// of 16 outputs (CHECK). Returns when the copy is done.
  static Matrix upload(std::span<const ops::Matrix* const> parts, Form form, core::ThreadPool& pool,
                       const device::Stream& stream);

  std::int64_t outputs() const { return outputs_; }
  std::int64_t inputs() const { return inputs_; }  // a multiple of 32: in_blocks() of the parts'
  std::int64_t bytes() const { return static_cast<std::int64_t>(data_.bytes()); }
  Form form() const { return form_; }
  const void* weights() const { return data_.as<>(); }
  /// The elements of kBf16 (CHECK): what a table of embeddings is read from.
  const std::uint16_t* elements() const;
  /// Of kFourBit; null otherwise.
  const void* scales() const;
  bool bf16_scales() const { return bf16_scales_; }  // otherwise f16

 private:
  device::Buffer data_;
  std::int64_t outputs_ = 0;
  std::int64_t inputs_ = 0;
  Form form_ = Form::kBf16;
  bool bf16_scales_ = false;
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
