// SPDX-License-Identifier: Apache-2.0
// Matrix: the weights of one linear layer, repacked once at load so that 16 outputs are computed
// side by side. The repacking is lossless and keeps the number of bytes of the file's block format
// (decoding is bound by them). matmul: y = W x for several matrices over the same rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/weight_memory.h"
#include "segue/error.h"

namespace segue::ops {

class Matrix {
 public:
  Matrix() = default;  // empty: outputs() == 0

  /// Repacks a 1- or 2-dimensional tensor (shape[0] inputs, shape[1] outputs) into `memory`, in
  /// parallel. The tensor's bytes are not needed afterwards. Every dtype but I32; inputs must be
  /// whole blocks of the dtype. Fails with kInvalidFile when shape and bytes disagree, kUnsupported
  /// for the dtype, kNoMemory.
  static Result<Matrix> prepare(const core::TensorView& tensor, core::IsaLevel isa,
                                WeightMemory& memory, core::ThreadPool& pool);

  /// The same from the "pack-quantized" form of compressed-tensors, 4 bits, symmetric, groups of
  /// 32: `words` is I32 of shape {inputs / 8, outputs}, element 8 k + j of a row in bits 4 j .. 4 j
  /// + 3 of its word k with 8 added; `scales` is F16, BF16 or F32 of shape {inputs / 32, outputs}.
  /// Becomes Q4_0, W4_BF16 or W4_F32: no level and no scale is rounded.
  static Result<Matrix> prepare_packed(const core::TensorView& words,
                                       const core::TensorView& scales, core::IsaLevel isa,
                                       WeightMemory& memory, core::ThreadPool& pool);

  std::int64_t outputs() const { return outputs_; }
  std::int64_t inputs() const { return inputs_; }
  std::int64_t bytes() const { return bytes_; }  // as stored here
  core::DType dtype() const { return dtype_; }
  core::IsaLevel isa() const { return isa_; }

  /// The stored weights of one output as floats: the embedding lookup of a tied table.
  void dequantize_row(std::int64_t output, float* out /*[inputs]*/) const;

  const std::uint8_t* tiles() const { return tiles_; }  // [tiles, tile_bytes], see layout.h
  std::int64_t tile_bytes() const { return tile_bytes_; }

 private:
  struct Shape {
    core::DType dtype;
    std::int64_t inputs, outputs;
  };
  /// `fill(first, outputs, tile)` writes each zeroed tile from its first output on, in parallel.
  template <class Fill>
  static Result<Matrix> build(const std::string& name, const Shape& shape, core::IsaLevel isa,
                              WeightMemory& memory, core::ThreadPool& pool, const Fill& fill);

  const std::uint8_t* tiles_ = nullptr;
  std::int64_t outputs_ = 0, inputs_ = 0, bytes_ = 0, tile_bytes_ = 0;
  core::DType dtype_ = core::DType::kF32;
  core::IsaLevel isa_ = core::IsaLevel::kPortable;
};

struct Product {
  const Matrix* w;
  float* y;               // [rows, y_stride], the first w->outputs() of each row are written
  std::int64_t y_stride;  // floats between rows, >= w->outputs()
};

/// All products in one parallel region. The bits of a row of y are a function of that row of x, the
/// matrix and the instruction level only: not of the other rows, the other products or the number
/// of threads.
void matmul(Rows& x, std::span<const Product> products, core::ThreadPool& pool);

inline void matmul(Rows& x, const Product& product, core::ThreadPool& pool) {
  matmul(x, std::span<const Product>(&product, 1), pool);
}

}  // namespace segue::ops
