// SPDX-License-Identifier: Apache-2.0
// The unit rule and the limits of the kernels in attention/cuda.
#include "attention/gpu.h"

namespace segue::attention {

DeviceFacts gpu_device(const device::GpuFacts& gpu, const Shape& shape) {
  const bool wide = shape.head_dim >= 256;
  DeviceFacts facts;
  facts.kind = DeviceKind::kCuda;
  facts.name = gpu.name;
  facts.multiprocessors = gpu.multiprocessors;
  facts.workgroups = gpu.multiprocessors * (shape.head_dim > 256 ? 1 : 2);
  facts.max_tile_rows = shape.head_dim > 256 ? 64 : 128;
  facts.unit_granule = wide ? 32 : 64;
  facts.min_unit = shape.window > 0 || shape.kv_heads < 4 ? facts.unit_granule : 64;
  facts.unit_steps = 8;
  facts.target_units = 32;
  // A window of 1024 in units of 160 at 16 kv heads: at most 8 of them whatever it is aligned to,
  // so that no row count makes more items than there are multiprocessors.
  facts.window_units = 6;
  facts.target_items = shape.window > 0 ? 96 : 128;
  facts.reading_rows = 64;
  return facts;
}

}  // namespace segue::attention
