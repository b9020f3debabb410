// SPDX-License-Identifier: Apache-2.0
// The unit rule and the limits of the kernels in attention/cuda.
#include "attention/gpu.h"

#include <fmt/format.h>

namespace segue::attention {

DeviceFacts gpu_device(const device::GpuFacts& gpu, const Shape& shape) {
  const bool wide = shape.head_dim >= 256;
  DeviceFacts facts;
  facts.kind = DeviceKind::kCuda;
  facts.name = gpu.name;
  facts.multiprocessors = gpu.multiprocessors;
  facts.residents = shape.head_dim > 256 ? 1 : 2;
  facts.workgroups = gpu.multiprocessors * facts.residents;
  facts.max_tile_rows = shape.head_dim > 256 ? 64 : 128;
  facts.unit_granule = wide ? 32 : 64;
  facts.min_unit = shape.window > 0 || shape.kv_heads < 4 ? facts.unit_granule : 64;
  facts.unit_steps = 8;
  facts.target_units = 32;
  // A window of 1024 in units of 160 at 16 kv heads: at most 8 of them whatever it is aligned to,
  // so that no row count makes more items than there are multiprocessors.
  facts.window_units = 6;
  facts.target_items = shape.window > 0 ? 96 : 128;
  // Up to 4K keys a unit is 1/16 of them: a batch folds half as often, and a lone sequence writes
  // half the partials. At head_dim 512, where a tile of keys takes longest, up to 3K: a lone
  // sequence of 4K pays 5 % for what a batch gains 10 to 15 % from (2026-11).
  facts.coarse_keys = shape.head_dim > 256 ? 3072 : 4096;
  facts.prefill_unit = 1024;
  facts.reading_rows = 64;
  // A start is 3 us in which a multiprocessor could read 50 keys of head_dim 512. A partial is
  // written and read, two floats an element; a key is read, two halves an element, for 64 rows.
  facts.item_keys = 50;
  facts.merge_keys = 128;
  return facts;
}

Status check_gpu(const device::GpuFacts& gpu) {
  if (gpu.major == 9 && gpu.minor == 0) return {};
  return Error{ErrorCode::kUnsupported,
               fmt::format("{} has compute capability {}.{}; the attention kernels are for 9.0",
                           gpu.name, gpu.major, gpu.minor)};
}

}  // namespace segue::attention
