// SPDX-License-Identifier: Apache-2.0
// What drafting needs on every device: the rows of its step and what it asks the planner. A row of
// a plan sees the keys up to its own position; a draft sees those before it, so it is planned one
// position earlier than it is rotated to. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/plan.h"
#include "model/assistant.h"
#include "model/assistant_weights.h"

namespace segue::model {

struct DraftRows {
  std::vector<attention::SequenceRows> sequences;  // one row each
  std::vector<std::int32_t> positions;             // [sequences]

  void set(std::span<const AssistantSequence> from);
};

/// A kind of the assistant's layers over the pool of the target that it reads; `rows` must outlive
/// it.
attention::PlanInput draft_plan_input(const AssistantConfig& config, int kind,
                                      const kv::PoolSpec& pool, const DraftRows& rows);

/// What both implementations are made of. `reads`: fit() of config and target.
struct AssistantParts {
  LoadedAssistant loaded;
  std::vector<int> reads;
  const LanguageModel& target;
  core::ThreadPool& pool;
};

std::unique_ptr<Assistant> cpu_assistant(AssistantParts parts, core::IsaLevel isa);
/// kNoMemory where the weights do not fit, kDevice; in a build without CUDA it says so.
Result<std::unique_ptr<Assistant>> gpu_assistant(AssistantParts parts);

}  // namespace segue::model
