// SPDX-License-Identifier: Apache-2.0
// One JSON document per step: what ran, why, and how long. What `--trace` writes.
#pragma once

#include "core/json.h"
#include "engine/loop.h"

namespace segue::engine {

/// rows, depth (largest), k and accepted (sums), prefill, the sequences one by one, per KV group
/// the kernel, path, workgroups, bytes of K and V in all its layers and microseconds, and the times
/// of the step.
core::Json trace_step(const StepReport& report, std::int64_t step);

}  // namespace segue::engine
