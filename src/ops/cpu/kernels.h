// SPDX-License-Identifier: Apache-2.0
// The matrix kernels of one instruction level as a table of function pointers. Internal to ops:
// matrix.h is what other folders use.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "core/dtype.h"

namespace segue::ops {

/// A run of neighbouring tiles of one matrix, for some rows (whole panels): layout.h has the
/// layouts.
struct TileRun {
  core::DType dtype;
  std::int64_t inputs;
  const std::uint8_t* tiles;  // [tiles_count, tile_bytes]
  std::int64_t tiles_count, tile_bytes;
  const std::uint8_t* panels;  // quantised, or float panels for a float matrix
  std::int64_t rows;
  float* y;  // [rows, y_stride], at the run's first output
  std::int64_t y_stride;
  std::int64_t outputs;   // to write, in (16 * (tiles_count - 1), 16 * tiles_count]
  std::uint8_t* scratch;  // scratch_bytes(inputs), aligned to 64; the calling thread's own
};

struct Kernels {
  core::IsaLevel isa;
  int panel_rows;
  /// Packs `count` rows (whole panels, or the last ones) into quantised panels.
  void (*quantise)(const float* x /*[count, stride]*/, std::int64_t stride, std::int64_t count,
                   std::int64_t inputs, std::uint8_t* panels);
  void (*run)(const TileRun& run);
};

/// One unpacked tile.
constexpr std::int64_t scratch_bytes(std::int64_t inputs) { return inputs / 32 * (512 + 128); }

/// The table of an available level.
const Kernels& kernels(core::IsaLevel isa);

}  // namespace segue::ops
