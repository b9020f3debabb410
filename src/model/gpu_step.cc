// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "model/gpu_step.h"

#include <algorithm>

#include <fmt/format.h>

#include "kv/sizing.h"

namespace segue::model {
namespace {

bool fits(const attention::cuda::Capacity& needed, const attention::cuda::Capacity& there) {
  return needed.items <= there.items && needed.reductions <= there.reductions &&
         needed.runs <= there.runs && needed.partials <= there.partials &&
         needed.table_entries <= there.table_entries;
}

/// Plans of one row have room for those of a verify step of the largest k.
constexpr std::int64_t kVerifyRows = 16;
constexpr int kMostTileRows = 128;  // of any kernel

/// Room for plans twice as large, so that a growing depth seldom asks for more: buffers that move
/// take the graphs with them.
attention::cuda::Capacity with_room(attention::cuda::Capacity needed, std::int64_t rows) {
  const auto factor = static_cast<int>(std::max<std::int64_t>(2, 2 * kVerifyRows / rows));
  needed.items *= factor;
  needed.reductions *= factor;
  needed.tile_rows = kMostTileRows;
  needed.runs *= 2;
  needed.partials *= factor;
  needed.table_entries *= 2;
  return needed;
}

}  // namespace

Status fits_on_gpu(const Place& place, std::int64_t bytes, const std::string& path) {
  const Result<std::int64_t> free = device::gpu_free_bytes();
  if (!free.ok()) return free.error();
  if (bytes <= *free) return {};
  return Error{ErrorCode::kNoMemory,
               fmt::format("'{}': the weights need {} on a GPU; {} has {}, of which {} are free",
                           path, kv::bytes_text(bytes), place.gpu.name,
                           kv::bytes_text(place.gpu.memory_bytes), kv::bytes_text(*free))};
}

Status PlannedAttention::set(const attention::PlanInput& asked, const attention::DeviceFacts& facts,
                             const device::Stream& stream) {
  if (Status status = attention::plan(asked, facts, plan); !status.ok()) return status;
  const attention::cuda::Capacity needed = attention::cuda::capacity_of(plan, tables);
  if (!on_device || !fits(needed, capacity)) {
    capacity = larger(with_room(needed, plan.rows), capacity);
    on_device.emplace(capacity, asked.shape.head_dim);
  }
  return on_device->upload(plan, tables, stream);
}

}  // namespace segue::model
#endif
