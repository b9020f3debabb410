// SPDX-License-Identifier: Apache-2.0
// An independent judge of plans: says what is wrong with one, from the contract in plan.h alone.
// Tests and the exactness check call it; the planner does not.
#pragma once

#include <span>
#include <string>

#include "attention/plan.h"

namespace segue::attention {

/// Empty when the plan keeps its contract for these sequences on this device: row tiles cover every
/// row once with the unit size of what that row sees, the items of a (tile, kv head) cover its
/// units once and in order, partials are disjoint and exactly as many as the plan says, and every
/// split has its reduction. Otherwise the first violation.
std::string check_plan(const Plan& plan, std::span<const SequenceRows> sequences,
                       const DeviceFacts& device);

}  // namespace segue::attention
