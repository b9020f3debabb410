// SPDX-License-Identifier: Apache-2.0
// What a controller was told while its decision stands, to be learnt from later: after a step of a
// model its tables are no longer in the cache nearby, and to learn from four steps at once costs
// hardly more than to learn from one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "speculate/acceptance.h"
#include "speculate/cost_model.h"

namespace segue::speculate {

class Observations {
 public:
  void add_draft(std::int64_t sequence, DraftSource source, std::span<const std::int32_t> tokens) {
    events_.push_back({Kind::kDraft, sequence, source, place(tokens), tokens.size(), {}, 0});
  }
  void add_tokens(std::int64_t sequence, std::span<const std::int32_t> tokens) {
    events_.push_back({Kind::kTokens, sequence, {}, place(tokens), tokens.size(), {}, 0});
  }
  void add_step(std::span<const StepRows> rows, double us) {
    events_.push_back({Kind::kStep, 0, {}, rows_.size(), rows.size(), {}, us});
    rows_.insert(rows_.end(), rows.begin(), rows.end());
    ++steps_;
  }
  void add_draft_time(const DraftWork& work, double us) {
    events_.push_back({Kind::kDraftTime, 0, {}, 0, 0, work, us});
  }
  int steps() const { return steps_; }

  /// Tells `learner` everything in order: draft(sequence, source, tokens), tokens(sequence,
  /// tokens), step(rows, us), draft_time(work, us). Empty afterwards.
  template <typename Learner>
  void replay(Learner&& learner) {
    for (const Event& event : events_) {
      const auto tokens = [&] { return std::span(tokens_).subspan(event.first, event.count); };
      switch (event.kind) {
        case Kind::kDraft: learner.draft(event.sequence, event.source, tokens()); break;
        case Kind::kTokens: learner.tokens(event.sequence, tokens()); break;
        case Kind::kStep:
          learner.step(std::span(rows_).subspan(event.first, event.count), event.us);
          break;
        case Kind::kDraftTime: learner.draft_time(event.work, event.us); break;
      }
    }
    events_.clear();
    tokens_.clear();
    rows_.clear();
    steps_ = 0;
  }

 private:
  enum class Kind { kDraft, kTokens, kStep, kDraftTime };
  struct Event {
    Kind kind;
    std::int64_t sequence;
    DraftSource source;
    std::size_t first;  // of tokens_ or rows_
    std::size_t count;
    DraftWork work;
    double us;
  };
  std::size_t place(std::span<const std::int32_t> tokens) {
    const std::size_t first = tokens_.size();
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return first;
  }

  std::vector<Event> events_;
  std::vector<std::int32_t> tokens_;
  std::vector<StepRows> rows_;
  int steps_ = 0;
};

}  // namespace segue::speculate
