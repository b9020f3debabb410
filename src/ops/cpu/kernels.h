// SPDX-License-Identifier: Apache-2.0
// The matrix kernels of one instruction level as a table of function pointers. Internal to ops: matrix.h is what
// other folders use.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "core/dtype.h"

namespace segue::ops {

/// y for one panel of rows and a run of tiles of one matrix is computed by `gemv`/`gemm`; see matmul.isa.cc.
struct TileRun {
  const std::uint8_t* tiles;   // first tile of the run
  std::int64_t tile_bytes;     // between tiles
  std::int64_t tiles_count;
  std::int64_t blocks;         // of 32 inputs; for float matrices: inputs
  const std::uint8_t* panels;  // packed rows (quantised or float panels)
  std::int64_t rows;
  float* y;                    // [rows, y_stride], at the first output of the run
  std::int64_t y_stride;
  std::int64_t outputs;        // to write, <= 16 * tiles_count
  std::uint8_t* scratch;       // scratch_bytes(blocks), aligned to 64, one per thread
};

struct Kernels {
  core::IsaLevel isa;
  int panel_rows;  // rows per full panel
  /// Packs rows [first, first + count) of x into quantised panels; `first` is a multiple of panel_rows.
  void (*quantise)(const float* x /*[rows, stride]*/, std::int64_t rows, std::int64_t inputs, std::int64_t stride,
                   std::int64_t first, std::int64_t count, std::uint8_t* panels);
  void (*run)(core::DType dtype, const TileRun& run);
};

/// The table of an available level.
const Kernels& kernels(core::IsaLevel isa);

}  // namespace segue::ops
