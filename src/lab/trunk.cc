// SPDX-License-Identifier: Apache-2.0
// A fork shares the trunk's pages, so a depth is prefilled once for all alternatives and rounds.
#include "lab/trunk.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "core/check.h"

namespace segue::lab {

Status check_room(const model::Config& config, std::int64_t depth, std::int64_t room) {
  if (depth + room <= config.context) return {};
  return Error{
      ErrorCode::kUsage,
      fmt::format("depth {} and {} tokens after it need {} positions; the model has {}, so "
                  "that a depth of {} is allowed",
                  depth, room, depth + room, config.context,
                  std::max<std::int64_t>(0, config.context - room))};
}

Result<std::unique_ptr<Trunk>> Trunk::create(engine::Runtime& runtime, engine::LoopOptions loop,
                                             TrunkOptions options) {
  loop.context = options.depth + options.room;
  loop.max_sequences += 1;
  loop.cancelled = options.cancelled;
  if (Status status = check_room(runtime.model->config(), options.depth, options.room);
      !status.ok()) {
    return status.error();
  }
  auto trunk = std::unique_ptr<Trunk>(new Trunk(std::move(options)));
  Result<std::unique_ptr<engine::Loop>> made = engine::Loop::create(runtime, loop);
  if (!made.ok()) return made.error();
  trunk->loop_ = std::move(made).value();
  if (Status status = trunk->fill(*runtime.tokenizer); !status.ok()) return status.error();
  trunk->base_.ignore_eos = true;
  trunk->loop_->admit(trunk->base_);
  return trunk;
}

Status Trunk::fill(const text::Tokenizer& tokenizer) {
  std::vector<std::int32_t> text;
  if (!options_.text.empty()) {
    text = tokenizer.encode_prompt(options_.text, false);
    if (text.empty()) {
      return Error{ErrorCode::kInvalidFile,
                   "the text that is to fill the context has no token of the model's vocabulary"};
    }
  } else {
    const auto ids = std::views::iota(0, static_cast<std::int32_t>(tokenizer.vocab_size()));
    if (std::ranges::all_of(ids, [&](std::int32_t id) { return tokenizer.is_control(id); })) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("all {} tokens of the model's vocabulary are control tokens; needed "
                               "to fill the context: at least one that is none",
                               tokenizer.vocab_size())};
    }
  }
  std::uint64_t state = 1;
  while (static_cast<std::int64_t>(filler_.size()) < options_.depth) {
    if (!text.empty()) {
      filler_.insert(filler_.end(), text.begin(), text.end());
      continue;
    }
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto token = static_cast<std::int32_t>(
        (state >> 33) % static_cast<std::uint64_t>(tokenizer.vocab_size()));
    if (!tokenizer.is_control(token)) filler_.push_back(token);
  }
  return {};
}

void Trunk::prepare(std::span<speculate::Drafter* const> drafters) {
  for (speculate::Drafter* const drafter : drafters) {
    if (std::ranges::find(base_.drafters, drafter) == base_.drafters.end())
      base_.drafters.push_back(drafter);
  }
}

Status Trunk::check_cancelled() const {
  if (options_.cancelled && options_.cancelled())
    return Error{ErrorCode::kCancelled, "interrupted"};
  return {};
}

Status Trunk::finish(engine::Sequence& sequence,
                     const std::function<void(std::int64_t rows)>& stepped) {
  engine::Sequence* const one = &sequence;
  while (!sequence.finished) {
    if (Status status = check_cancelled(); !status.ok()) return status;
    const Result<engine::StepReport> report =
        loop_->step({&one, 1}, attention::Policy::kSegue, unused_);
    if (!report.ok()) return report.error();
    if (stepped) stepped(report->sequences[0].rows);
  }
  return {};
}

Status Trunk::grow(std::int64_t depth) {
  CHECK(depth > base_.prompt_tokens && depth <= options_.depth);
  base_.tokens.assign(filler_.begin(), filler_.begin() + depth);
  base_.prompt_tokens = depth;
  base_.limit = depth + 1;
  base_.finished.reset();
  if (Status status = finish(base_, options_.prefilled); !status.ok()) return status;
  base_.limit = depth + options_.room;
  base_.finished.reset();
  return {};
}

Result<std::vector<std::int32_t>> Trunk::own_tokens() {
  Result<engine::Sequence> own = fork();
  if (!own.ok()) return own.error();
  if (Status status = finish(*own); !status.ok()) return status.error();
  loop_->release(*own);
  return std::move(own->tokens);
}

}  // namespace segue::lab
