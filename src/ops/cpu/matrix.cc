// SPDX-License-Identifier: Apache-2.0
// Preparing matrices and dividing products among threads.
#include "ops/cpu/matrix.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/check.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/layout.h"
#include "ops/cpu/repack.h"

namespace segue::ops {

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
  const std::int64_t tiles = (outputs + kTileOutputs - 1) / kTileOutputs;
  Matrix matrix;
  matrix.outputs_ = outputs;
  matrix.inputs_ = inputs;
  matrix.tile_bytes_ = tile_size(tensor.dtype, inputs);
  matrix.bytes_ = tiles * matrix.tile_bytes_;
  matrix.dtype_ = tensor.dtype;
  matrix.isa_ = isa;
  auto* data = reinterpret_cast<std::uint8_t*>(memory.allocate(matrix.bytes_));
  if (data == nullptr) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("tensor {}: no memory for {} bytes", tensor.name, matrix.bytes_)};
  }
  matrix.tiles_ = data;
  constexpr std::int64_t kTilesPerTask = 16;
  pool.for_each((tiles + kTilesPerTask - 1) / kTilesPerTask, [&](std::int64_t task, int) {
    const std::int64_t last = std::min(tiles, (task + 1) * kTilesPerTask);
    for (std::int64_t tile = task * kTilesPerTask; tile < last; ++tile) {
      const std::int64_t first = tile * kTileOutputs;
      repack_tile(tensor.dtype, tensor.data + first * row_bytes, row_bytes,
                  static_cast<int>(std::min<std::int64_t>(kTileOutputs, outputs - first)), inputs,
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
