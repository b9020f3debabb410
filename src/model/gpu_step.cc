// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "model/gpu_step.h"

namespace segue::model {
namespace {

bool fits(const attention::cuda::Capacity& needed, const attention::cuda::Capacity& there) {
  return needed.items <= there.items && needed.reductions <= there.reductions &&
         needed.tile_rows <= there.tile_rows && needed.runs <= there.runs &&
         needed.partials <= there.partials && needed.table_entries <= there.table_entries;
}

/// Room for plans twice as large, so that a growing depth seldom asks for more.
attention::cuda::Capacity with_room(attention::cuda::Capacity needed) {
  needed.items *= 2;
  needed.reductions *= 2;
  needed.runs *= 2;
  needed.partials *= 2;
  needed.table_entries *= 2;
  return needed;
}

}  // namespace

Status PlannedAttention::set(const attention::PlanInput& asked, const attention::DeviceFacts& facts,
                             const device::Stream& stream) {
  if (Status status = attention::plan(asked, facts, plan); !status.ok()) return status;
  const attention::cuda::Capacity needed = attention::cuda::capacity_of(plan, tables);
  if (!on_device || !fits(needed, capacity)) {
    capacity = larger(with_room(needed), capacity);
    on_device.emplace(capacity, asked.shape.head_dim);
  }
  return on_device->upload(plan, tables, stream);
}

}  // namespace segue::model
#endif
