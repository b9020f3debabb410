// SPDX-License-Identifier: Apache-2.0
// How large a plan can become for any step within given limits: the sizes that a captured graph and
// its buffers are bound to, known before the first step.
#pragma once

#include <cstdint>

#include "attention/plan.h"
#include "attention/shape.h"

namespace segue::attention {

/// Every step has at most this.
struct StepLimits {
  int sequences = 1;
  int rows_per_sequence = 1;
  std::int64_t rows = 0;    // of all sequences together; 0: sequences * rows_per_sequence
  std::int64_t kv_len = 0;  // of the longest sequence, its rows in the step included
};

/// No plan within the limits is larger in any of these.
struct PlanCapacity {
  std::int64_t tiles = 0;
  std::int64_t items = 0;
  std::int64_t reductions = 0;
  int tile_rows = 0;          // rows x group of the largest row tile
  std::int64_t runs = 0;      // partials of the longest reduction, per row and head
  std::int64_t partials = 0;  // as Plan::partials
};

/// A bound, not the least one: tiles by unit classes, items by workgroups (`segue`) or by the
/// segments of a modelled policy, partials by units.
PlanCapacity plan_capacity(const Shape& shape, const DeviceFacts& device, Policy policy,
                           const StepLimits& limits);

}  // namespace segue::attention
