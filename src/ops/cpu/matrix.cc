// SPDX-License-Identifier: Apache-2.0
// Preparing matrices and dividing products among threads.
#include "ops/cpu/matrix.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "core/check.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/layout.h"
#include "ops/cpu/repack.h"

namespace segue::ops {
namespace {

/// What levels of 4 bits with scales of this type are stored as.
std::optional<core::DType> packed_dtype(core::DType scales) {
  switch (scales) {
    case core::DType::kF16: return core::DType::kQ4_0;
    case core::DType::kBF16: return core::DType::kW4_BF16;
    case core::DType::kF32: return core::DType::kW4_F32;
    default: return std::nullopt;
  }
}

}  // namespace

Result<Matrix> Matrix::prepare(const core::TensorView& tensor, core::IsaLevel isa,
                               WeightMemory& memory, core::ThreadPool& pool) {
  const core::DTypeInfo info = core::dtype_info(tensor.dtype);
  if (tensor.dtype == core::DType::kI32) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("tensor {}: {} is no weight type", tensor.name, info.name)};
  }
  const std::int64_t inputs = tensor.shape[0], outputs = tensor.shape[1];
  if (tensor.shape[2] != 1 || tensor.shape[3] != 1 || inputs < 1 || outputs < 1 ||
      inputs % info.block_elements != 0) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("tensor {}: shape [{}, {}, {}, {}] is no matrix of {} (blocks of {})",
                             tensor.name, inputs, outputs, tensor.shape[2], tensor.shape[3],
                             info.name, info.block_elements)};
  }
  const std::int64_t row_bytes = inputs / info.block_elements * info.block_bytes;
  if (tensor.bytes != outputs * row_bytes || tensor.data == nullptr) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("tensor {}: {} bytes for [{}, {}] {}, which needs {}", tensor.name,
                             tensor.bytes, inputs, outputs, info.name, outputs * row_bytes)};
  }
  const auto fill = [&](std::int64_t first, int count, std::uint8_t* tile) {
    repack_tile(tensor.dtype, tensor.data + first * row_bytes, row_bytes, count, inputs, tile);
  };
  return build(tensor.name, {tensor.dtype, inputs, outputs}, isa, memory, pool, fill);
}

Result<Matrix> Matrix::prepare_packed(const core::TensorView& words, const core::TensorView& scales,
                                      core::IsaLevel isa, WeightMemory& memory,
                                      core::ThreadPool& pool) {
  constexpr int kLevelsPerWord = 8;
  const std::optional<core::DType> dtype = packed_dtype(scales.dtype);
  if (words.dtype != core::DType::kI32 || !dtype) {
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("tensor {}: levels in {} with scales in {} (allowed: I32 with F16, BF16 "
                    "or F32)",
                    words.name, core::dtype_info(words.dtype).name,
                    core::dtype_info(scales.dtype).name)};
  }
  const std::int64_t inputs = scales.shape[0] * kBlock, outputs = words.shape[1];
  const bool fits = scales.shape[0] >= 1 && outputs >= 1 && scales.shape[1] == outputs &&
                    words.shape[0] == inputs / kLevelsPerWord &&
                    words.elements() == outputs * words.shape[0] &&
                    scales.elements() == outputs * scales.shape[0];
  if (!fits) {
    return Error{
        ErrorCode::kInvalidFile,
        fmt::format("tensor {}: {} words of 8 levels and {} scales for {} and {} outputs do "
                    "not fit groups of {}",
                    words.name, words.shape[0], scales.shape[0], outputs, scales.shape[1], kBlock)};
  }
  const std::int64_t scale_row = scales.shape[0] * core::dtype_info(scales.dtype).block_bytes;
  const std::int64_t word_row = words.shape[0] * 4;
  if (words.data == nullptr || scales.data == nullptr || words.bytes != outputs * word_row ||
      scales.bytes != outputs * scale_row) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("tensor {}: {} bytes of levels and {} of scales, {} and {} are needed",
                             words.name, words.bytes, scales.bytes, outputs * word_row,
                             outputs * scale_row)};
  }
  const std::int64_t row_bytes = inputs / kBlock * core::dtype_info(*dtype).block_bytes;
  const auto fill = [&](std::int64_t first, int count, std::uint8_t* tile) {
    std::vector<std::byte> rows(static_cast<std::size_t>(count * row_bytes));
    for (int i = 0; i < count; ++i) {
      pack_w4_row(*dtype, words.data + (first + i) * word_row,
                  scales.data + (first + i) * scale_row, inputs, rows.data() + i * row_bytes);
    }
    repack_tile(*dtype, rows.data(), row_bytes, count, inputs, tile);
  };
  return build(words.name, {*dtype, inputs, outputs}, isa, memory, pool, fill);
}

template <class Fill>
Result<Matrix> Matrix::build(const std::string& name, const Shape& shape, core::IsaLevel isa,
                             WeightMemory& memory, core::ThreadPool& pool, const Fill& fill) {
  const std::int64_t tiles = (shape.outputs + kTileOutputs - 1) / kTileOutputs;
  Matrix matrix;
  matrix.outputs_ = shape.outputs;
  matrix.inputs_ = shape.inputs;
  matrix.tile_bytes_ = tile_size(shape.dtype, shape.inputs);
  matrix.bytes_ = tiles * matrix.tile_bytes_;
  matrix.dtype_ = shape.dtype;
  matrix.isa_ = isa;
  auto* data = reinterpret_cast<std::uint8_t*>(memory.allocate(matrix.bytes_));
  if (data == nullptr) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("tensor {}: no memory for {} bytes", name, matrix.bytes_)};
  }
  matrix.tiles_ = data;
  constexpr std::int64_t kTilesPerTask = 16;
  pool.for_each((tiles + kTilesPerTask - 1) / kTilesPerTask, [&](std::int64_t task, int) {
    const std::int64_t last = std::min(tiles, (task + 1) * kTilesPerTask);
    for (std::int64_t tile = task * kTilesPerTask; tile < last; ++tile) {
      const std::int64_t first = tile * kTileOutputs;
      fill(first, static_cast<int>(std::min<std::int64_t>(kTileOutputs, shape.outputs - first)),
           data + tile * matrix.tile_bytes_);
    }
  });
  return matrix;
}

void Matrix::dequantize_row(std::int64_t output, float* out) const {
  CHECK(output >= 0 && output < outputs_);
  read_lane(dtype_, tiles_ + output / kTileOutputs * tile_bytes_,
            static_cast<int>(output % kTileOutputs), inputs_, out);
}

namespace {

std::int64_t tiles_of(const Matrix& w) { return (w.outputs() + kTileOutputs - 1) / kTileOutputs; }

/// Part of one product: tiles [first, last) for rows [row, row + rows).
void run_part(Rows& x, const Product& product, std::int64_t first, std::int64_t last,
              std::int64_t row, std::int64_t rows, core::ThreadPool& pool, std::uint8_t* scratch) {
  const Matrix& w = *product.w;
  const auto* panels = is_float(w.dtype()) ? reinterpret_cast<const std::uint8_t*>(x.floats(pool))
                                           : x.quantised(pool);
  const std::int64_t row_bytes =
      is_float(w.dtype()) ? w.inputs() * 4 : w.inputs() / kBlock * kRowBlockBytes;
  TileRun run{};
  run.dtype = w.dtype();
  run.inputs = w.inputs();
  run.tiles = w.tiles() + first * w.tile_bytes();
  run.tiles_count = last - first;
  run.tile_bytes = w.tile_bytes();
  run.panels = panels + row * row_bytes;
  run.rows = rows;
  run.y = product.y + row * product.y_stride + first * kTileOutputs;
  run.y_stride = product.y_stride;
  run.outputs = std::min(w.outputs(), last * kTileOutputs) - first * kTileOutputs;
  run.scratch = scratch;
  x.kernels().run(run);
}

/// Few rows: each thread gets one contiguous share of the bytes of all products, so that it reads
/// one stream.
void run_streaming(Rows& x, std::span<const Product> products, core::ThreadPool& pool) {
  std::int64_t total = 0;
  for (const Product& product : products) total += product.w->bytes();
  pool.run([&](int worker) {
    const std::int64_t from = total * worker / pool.threads(),
                       to = total * (worker + 1) / pool.threads();
    std::int64_t start = 0;
    for (const Product& product : products) {
      const std::int64_t tile_bytes = product.w->tile_bytes(), tiles = tiles_of(*product.w);
      const auto tile_at = [&](std::int64_t byte) {
        return std::clamp<std::int64_t>((byte - start + tile_bytes / 2) / tile_bytes, 0, tiles);
      };
      const std::int64_t first = tile_at(from), last = tile_at(to);
      if (first < last) run_part(x, product, first, last, 0, x.rows(), pool, x.scratch(worker));
      start += product.w->bytes();
    }
  });
}

/// Many rows: tasks of some rows (their panels stay in the second-level cache) by some tiles.
constexpr std::int64_t kTaskRows = 256;
constexpr std::int64_t kTaskTiles = 4;
constexpr std::int64_t kStreamingRows = 16;

void run_tasks(Rows& x, std::span<const Product> products, core::ThreadPool& pool) {
  const std::int64_t row_tasks = (x.rows() + kTaskRows - 1) / kTaskRows;
  std::int64_t tile_tasks = 0;
  for (const Product& product : products)
    tile_tasks += (tiles_of(*product.w) + kTaskTiles - 1) / kTaskTiles;
  pool.for_each(row_tasks * tile_tasks, [&](std::int64_t task, int worker) {
    const std::int64_t row = task / tile_tasks * kTaskRows;
    std::int64_t rest = task % tile_tasks;
    for (const Product& product : products) {
      const std::int64_t tiles = tiles_of(*product.w),
                         tasks = (tiles + kTaskTiles - 1) / kTaskTiles;
      if (rest < tasks) {
        run_part(x, product, rest * kTaskTiles, std::min(tiles, (rest + 1) * kTaskTiles), row,
                 std::min(kTaskRows, x.rows() - row), pool, x.scratch(worker));
        return;
      }
      rest -= tasks;
    }
  });
}

}  // namespace

void matmul(Rows& x, std::span<const Product> products, core::ThreadPool& pool) {
  if (x.rows() == 0) return;
  for (const Product& product : products) {
    CHECK(product.w->inputs() == x.inputs() && product.w->isa() == x.isa());
    CHECK(product.y_stride >= product.w->outputs());
    is_float(product.w->dtype()) ? static_cast<void>(x.floats(pool))
                                 : static_cast<void>(x.quantised(pool));
  }
  x.reserve_scratch(pool.threads());
  x.rows() <= kStreamingRows ? run_streaming(x, products, pool) : run_tasks(x, products, pool);
}

}  // namespace segue::ops
