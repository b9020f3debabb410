// SPDX-License-Identifier: Apache-2.0
// When a decision stands without being weighed again. To weigh takes ten to thirty microseconds,
// more after a step that has emptied the caches: two percent of a step of a small model. While a
// decision stands, what is observed only waits.
#include <algorithm>

#include "speculate/controller.h"

namespace segue::speculate {
namespace {

// Steps for which a decision stands once it has been weighed as often without a change; where
// nothing that could be tried is better than no drafts even with all its doubt, for longer.
constexpr int kMostRest = 8;
constexpr int kMostHopelessRest = 16;
// Drafts that bring less than this share of what they promised are weighed anew.
constexpr double kDisappointing = 0.5;

}  // namespace

/// Does the last decision still stand, for the same offers?
bool Controller::rests(std::span<const DraftOffer> offers) {
  if (rest_ == 0) return false;
  const auto same = [](const DraftOffer& a, const DraftOffer& b) {
    return a.sequence == b.sequence && a.available == b.available && a.kind == b.kind &&
           a.grade == b.grade && a.ready == b.ready;
  };
  const double promised = last_chosen_.tokens * ++rested_steps_;
  const bool disappointing = last_chosen_.shape.extra_rows() > 0 &&
                             static_cast<double>(rested_tokens_) < kDisappointing * promised;
  if (disappointing || !std::ranges::equal(offers, rested_, same)) {
    rest_ = 0;
    return false;
  }
  --rest_;
  return true;
}

/// After a decision that was no probe. `same`: as the one before. `hopeless`: no drafts help.
void Controller::plan_rest(std::span<const DraftOffer> offers, std::span<const Decision> decisions,
                           bool same, bool hopeless) {
  unchanged_ = same ? unchanged_ + 1 : unchanged_ / 2;
  rest_ = std::min(unchanged_, hopeless ? kMostHopelessRest : kMostRest);
  if (rest_ == 0) return;
  waits_ = true;
  rested_steps_ = 0;
  rested_tokens_ = 0;
  rested_.assign(offers.begin(), offers.end());
  rested_decisions_.assign(decisions.begin(), decisions.end());
}

void Controller::digest() {
  if (!waits_) return;
  waits_ = false;
  rest_ = 0;
  struct Learner {
    Controller& controller;
    void draft(std::int64_t sequence, DraftSource source, std::span<const std::int32_t> tokens) {
      controller.sequences_[sequence].acceptance.draft(source, tokens);
    }
    void tokens(std::int64_t sequence, std::span<const std::int32_t> tokens) {
      controller.sequences_[sequence].acceptance.commit(tokens, controller.shared_);
    }
    void step(std::span<const StepRows> rows, double us) {
      // Steps with the same rows count as one that was measured so often.
      const auto alike = [](const StepRows& a, const StepRows& b) { return a.rows == b.rows; };
      if (!std::ranges::equal(rows, run_rows, alike)) learn_run();
      run_rows.assign(rows.begin(), rows.end());
      run_us.push_back(us);
    }
    void draft_time(const DraftWork& work, double us) { controller.costs_.observe_draft(work, us); }
    void learn_run() {
      if (run_us.empty()) return;
      const std::size_t middle = run_us.size() / 2;
      std::ranges::sort(run_us);
      const double median =
          run_us.size() % 2 == 1 ? run_us[middle] : 0.5 * (run_us[middle - 1] + run_us[middle]);
      controller.learn_step(run_rows, median, static_cast<int>(run_us.size()));
      run_us.clear();
    }
    std::vector<StepRows> run_rows{};
    std::vector<double> run_us{};
  };
  Learner learner{*this};
  waiting_.replay(learner);
  learner.learn_run();
}

}  // namespace segue::speculate
