// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "lab/gpu_check.h"

#include <algorithm>

#include "attention/cuda/harness/world.h"

namespace segue::lab {

using attention::SequenceRows;
using attention::cuda::Output;
using attention::cuda::RunOptions;
using attention::cuda::World;

std::vector<SequenceRows> checked_part(std::vector<SequenceRows> step) {
  const auto many =
      std::ranges::find_if(step, [](const SequenceRows& rows) { return rows.rows > kCheckedRows; });
  const auto kept = static_cast<std::size_t>(many - step.begin());
  for (std::size_t i = 0; i < step.size(); ++i) {
    const bool keep = many != step.end() ? i == kept : i == 0 || i + 1 == step.size();
    if (!keep) step[i] = {};
  }
  return step;
}

core::Verdict near_reference(World& world, const std::vector<SequenceRows>& step,
                             const Output& found, double& relative_error) {
  core::Verdict worst;
  const auto compare = [&](const std::vector<SequenceRows>& rows, const Output& output) {
    const core::Verdict verdict = world.check(rows, output);
    relative_error = std::max(relative_error, world.relative_error());
    if (worst.ok && (!verdict.ok || verdict.worst_ratio >= worst.worst_ratio)) worst = verdict;
  };
  const auto many =
      std::ranges::find_if(step, [](const SequenceRows& rows) { return rows.rows > kCheckedRows; });
  if (many == step.end()) {
    compare(step, found);
    return worst;
  }
  const auto width = static_cast<std::ptrdiff_t>(world.shape().q_heads) * world.shape().head_dim;
  std::vector<SequenceRows> part = step;
  SequenceRows& rows = part[static_cast<std::size_t>(many - step.begin())];
  for (const int first : {0, many->rows / 2, many->rows - kCheckedRun}) {
    Output run;
    run.out.assign(found.out.begin() + first * width,
                   found.out.begin() + (first + kCheckedRun) * width);
    rows = {many->depth + first, kCheckedRun, many->prefill};
    compare(part, run);
  }
  return worst;
}

core::Verdict check_some(World& world, const std::vector<SequenceRows>& step, const RunOptions& as,
                         double& relative_error) {
  const std::vector<SequenceRows> part = checked_part(step);
  return near_reference(world, part, world.run(part, as), relative_error);
}

}  // namespace segue::lab
#endif
