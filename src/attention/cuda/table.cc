// SPDX-License-Identifier: Apache-2.0
// The GPU's rows of the kernel table, and the facts that plans need about it.
#include <algorithm>

#include "attention/cuda/launch.h"
#include "attention/cuda/rows.h"

namespace segue::attention {

std::span<const Kernel> cuda_kernels() {
  static const std::vector<Kernel> rows = [] {
    std::vector<Kernel> joined(cuda::decode_bf16.begin(), cuda::decode_bf16.end());
    joined.insert(joined.end(), cuda::decode_f16.begin(), cuda::decode_f16.end());
    return joined;
  }();
  return rows;
}

namespace cuda {

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

}  // namespace cuda
}  // namespace segue::attention
