// SPDX-License-Identifier: Apache-2.0
// What a step needs on every device: its rows, what it asks the planner, and the model's RoPE
// frequencies. Private to this folder.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/plan.h"
#include "model/lm.h"

namespace segue::model {

/// Rows of the step, and of those the ones that want logits.
std::int64_t row_count(const StepInput& input);
std::int64_t logits_count(const StepInput& input);

/// What forward() answers when it was cancelled.
Error step_cancelled();

struct StepRows {
  std::vector<attention::SequenceRows> sequences;
  std::vector<std::int32_t> positions;  // [rows]

  void set(const StepInput& input);
};

/// Of one KV group; `sequences` must outlive it.
attention::PlanInput plan_input(const StepInput& input, const Config& config, int kind,
                                std::span<const attention::SequenceRows> sequences);

/// [kinds][rotary / 2]; `factors`: the file's divisors, or empty.
std::vector<std::vector<float>> rope_frequencies(const Config& config,
                                                 const std::vector<float>& factors);

/// One record per kind, with its number of layers.
std::vector<GroupRecord> group_records(const Config& config);

}  // namespace segue::model
