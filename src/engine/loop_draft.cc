// SPDX-License-Identifier: Apache-2.0
// The draft phase of a step: which drafter proposes how many tokens for which sequence. A drafter
// sees all its sequences of the step in one call; the controller chooses for sequences of
// SpecMode::kAuto, in two rounds, because some drafts cost nothing and others should be made only
// when they are worth their time.
#include <algorithm>

#include "core/clock.h"
#include "engine/loop.h"

namespace segue::engine {
namespace {

// What takes longer waited for a CPU, and that is counted already.
constexpr double kLongestWeighingUs = 500;

}  // namespace

/// Calls every drafter once for all its asks. Returns the time of those whose drafts are not free.
double Loop::run_drafters(std::span<Ask> asks) {
  double slow_us = 0;
  for (const auto& drafter_of_first : asks) {
    speculate::Drafter* const drafter =
        drafter_of_first.block->sequence->drafters[static_cast<std::size_t>(drafter_of_first.kind)];
    const auto ours = [drafter](const Ask& ask) {
      return ask.block->sequence->drafters[static_cast<std::size_t>(ask.kind)] == drafter;
    };
    if (&*std::ranges::find_if(asks, ours) != &drafter_of_first) continue;  // done before
    jobs_.clear();
    for (Ask& ask : asks) {
      if (!ours(ask)) continue;
      const Sequence& sequence = *ask.block->sequence;
      jobs_.push_back({.sequence = sequence.key,
                       .context = sequence.tokens,
                       .out = std::span(ask.tokens).first(static_cast<std::size_t>(ask.most)),
                       .sampling = sequence.sampling,
                       .target_cache = sequence.cache_id.value,
                       .hidden = sequence.hidden,
                       .stop = sequence.ignore_eos
                                   ? std::span<const std::int32_t>()
                                   : std::span<const std::int32_t>(runtime_.tokenizer->stop_ids()),
                       .suppressed = runtime_.tokenizer->suppressed_ids(),
                       .draft = {}});
    }
    const double start = core::now_us();
    drafter->draft(jobs_);
    const double us = core::now_us() - start;
    if (!drafter->ready()) slow_us += us;
    double work = 0;
    for (const speculate::DraftJob& job : jobs_) work += 1 + job.draft.tokens;
    std::size_t job = 0;
    for (Ask& ask : asks) {
      if (!ours(ask)) continue;
      ask.draft = jobs_[job++].draft;
      ask.us = us * (1 + ask.draft.tokens) / work;
      ask.block->draft_us += ask.us;
    }
  }
  return slow_us;
}

/// The first `tokens` of the draft become rows of the step.
void Loop::take_draft(const Ask& ask, int tokens) {
  Block& block = *ask.block;
  if (tokens == 0) return;
  block.rows.insert(block.rows.end(), ask.tokens.begin(), ask.tokens.begin() + tokens);
  block.drafter = block.sequence->drafters[static_cast<std::size_t>(ask.kind)]->name();
}

/// k of the sequences of SpecMode::kAuto. `asks_` holds the drafts that are made already.
void Loop::decide(std::span<Block> blocks, speculate::Controller& controller) {
  std::vector<speculate::DraftOffer> offers;  // of every decoding sequence: all share the step
  std::vector<Ask> offered;                   // [offers]
  for (Block& block : blocks) {
    if (block.prefill) continue;
    const Sequence& sequence = *block.sequence;
    const bool automatic = sequence.spec == SpecMode::kAuto && block.most > 0;
    const int kinds = automatic ? static_cast<int>(sequence.drafters.size()) : 0;
    for (int kind = 0; kind < std::max(1, kinds); ++kind) {
      speculate::DraftOffer offer{.sequence = sequence.key, .depth = block.depth};
      Ask ask{&block, kind, 0, {}, {}, 0};
      if (kind < kinds) {
        speculate::Drafter& drafter = *sequence.drafters[static_cast<std::size_t>(kind)];
        offer.kind = kind;
        offer.ready = drafter.ready();
        offer.available = block.most;
        if (offer.ready) {
          ask = *std::ranges::find_if(
              asks_, [&](const Ask& made) { return made.block == &block && made.kind == kind; });
          offer.available = ask.draft.tokens;
          offer.grade = ask.draft.grade;
          controller.observe_draft(
              sequence.key, offer.source(),
              std::span(ask.tokens).first(static_cast<std::size_t>(ask.draft.tokens)));
        } else {
          offer.behind = static_cast<int>(
              std::min<std::int64_t>(drafter.behind(sequence.key, sequence.tokens), 1 << 30));
        }
      }
      offers.push_back(offer);
      offered.push_back(ask);
    }
  }
  std::vector<speculate::Decision> decisions(offers.size());
  const double start = core::now_us();
  controller.decide(offers, decisions);
  const double took_us = core::now_us() - start;
  if (took_us < kLongestWeighingUs) {
    weighing_us_ = took_us;
    controller.observe_weighing(took_us);
  }
  asks_.clear();
  std::vector<speculate::DraftOffer> asked;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    if (decisions[i].draft == 0) continue;
    Ask& ask = offered[i];
    if (offers[i].ready) {
      take_draft(ask, decisions[i].draft);
      continue;
    }
    ask.most = decisions[i].draft;
    asks_.push_back(ask);
    asked.push_back(offers[i]);
  }
  slow_draft_us_ += run_drafters(asks_);
  for (std::size_t i = 0; i < asks_.size(); ++i) {
    const Ask& ask = asks_[i];
    const auto tokens = std::span(ask.tokens).first(static_cast<std::size_t>(ask.draft.tokens));
    const std::int64_t key = ask.block->sequence->key;
    controller.observe_draft(key, {ask.kind, ask.draft.grade}, tokens);
    controller.observe_draft_time({ask.kind, ask.draft.tokens, ask.block->depth, asked[i].behind},
                                  ask.us);
    take_draft(ask, ask.draft.tokens);
  }
}

/// Fills the decode blocks: the newest token, then as many drafts as the controller (or the fixed
/// k) wants.
void Loop::draft(std::span<Block> blocks, speculate::Controller& controller) {
  asks_.clear();
  slow_draft_us_ = 0;
  weighing_us_ = 0;
  bool any_auto = false;
  for (Block& block : blocks) {
    if (block.prefill) continue;
    const Sequence& sequence = *block.sequence;
    block.rows.assign(1, sequence.tokens.back());
    const auto room = sequence.limit - static_cast<std::int64_t>(sequence.tokens.size()) - 1;
    block.most = static_cast<int>(std::clamp<std::int64_t>(room, 0, sequence.max_draft));
    if (sequence.drafters.empty()) block.most = 0;
    if (block.most == 0) continue;
    const bool automatic = sequence.spec == SpecMode::kAuto;
    any_auto = any_auto || automatic;
    const std::size_t kinds = automatic ? sequence.drafters.size() : 1;
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      if (automatic && !sequence.drafters[kind]->ready()) continue;
      asks_.push_back({&block, static_cast<int>(kind), block.most, {}, {}, 0});
    }
  }
  slow_draft_us_ += run_drafters(asks_);
  for (const Ask& ask : asks_) {
    if (ask.block->sequence->spec != SpecMode::kAuto) take_draft(ask, ask.draft.tokens);
  }
  if (any_auto) decide(blocks, controller);
  for (Block& block : blocks) {
    if (!block.prefill) block.logits = static_cast<int>(block.rows.size());
  }
}

}  // namespace segue::engine
