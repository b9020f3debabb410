// SPDX-License-Identifier: Apache-2.0
// Which rows of a step meet the reference before the step is timed: the reference needs memory for
// rows x heads x keys.
#pragma once

#include <vector>

#include "attention/shape.h"
#include "core/tolerance.h"

namespace segue::attention::cuda {
class World;
struct RunOptions;
struct Output;
}  // namespace segue::attention::cuda

namespace segue::lab {

inline constexpr int kCheckedRows = 64;  // of a sequence; of more, three runs of kCheckedRun rows
inline constexpr int kCheckedRun = 16;

/// The step with all but the first and the last sequence as padding; with many rows in one of the
/// two, only that one.
std::vector<attention::SequenceRows> checked_part(std::vector<attention::SequenceRows> step);

/// `found` is the output of the step, a checked_part(). Grade B; of sequences with many rows the
/// first, middle and last ones. The largest relative error is kept.
core::Verdict near_reference(attention::cuda::World& world,
                             const std::vector<attention::SequenceRows>& step,
                             const attention::cuda::Output& found, double& relative_error);

/// Runs the checked part of the step and compares it.
core::Verdict check_some(attention::cuda::World& world,
                         const std::vector<attention::SequenceRows>& step,
                         const attention::cuda::RunOptions& as, double& relative_error);

}  // namespace segue::lab
