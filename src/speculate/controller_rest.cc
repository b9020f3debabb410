// SPDX-License-Identifier: Apache-2.0
// When a decision stands without being weighed again. To weigh takes ten microseconds, and thirty
// to some hundred after steps that have emptied the caches: five percent of a step of a small model
// and more. While a decision stands, what is observed only waits, and is watched for surprises.
#include <algorithm>
#include <cstddef>

#include "speculate/controller.h"

namespace segue::speculate {
namespace {

// Steps for which a decision stands: twice as many each time that it has been weighed without a
// change; where nothing that could be tried is better than no drafts even with all its doubt, four
// times as many.
constexpr int kMostRest = 16;
constexpr int kMostHopelessRest = 64;

}  // namespace

/// Is what is offered what the last decision was about?
bool Controller::stands_for(std::span<const DraftOffer> offers) const {
  return std::ranges::equal(offers, rested_, [&](const DraftOffer& a, const DraftOffer& b) {
    if (a.sequence != b.sequence || a.kind != b.kind || a.ready != b.ready) return false;
    // Where no drafts help it does not matter how many there are.
    if (hopeless_) return a.available == 0 || hopeless_slots_[a.source().slot()];
    return a.available == b.available && a.grade == b.grade;
  });
}

/// Does the last decision still stand, for the same offers?
bool Controller::rests(std::span<const DraftOffer> offers) {
  if (rest_ == 0) return false;
  watch_.next();
  if (watch_.surprised() || !stands_for(offers)) {
    rest_ = 0;
    return false;
  }
  --rest_;
  return true;
}

Watch::Expected Controller::expected_step(const std::vector<Member>& members) const {
  Watch::Expected expected{.tokens = last_chosen_.tokens};
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Pick pick = last_chosen_.drafts[i];
    expected.tokens_variance += members[i].source(pick).tokens_variance(pick.draft);
    for (int s = 0; s < members[i].count; ++s) {
      const double first = members[i].sources[static_cast<std::size_t>(s)].curve[0].mean;
      expected.first_right = std::max(expected.first_right, first);
    }
  }
  if (!hopeless_) {
    expected.us = last_chosen_.step.us;
    expected.noise = costs_.noise();
  }
  return expected;
}

/// After a decision that was no probe. `same`: as the one before.
void Controller::plan_rest(const std::vector<Member>& members, std::span<const DraftOffer> offers,
                           std::span<const Decision> decisions, bool same) {
  unchanged_ = same ? unchanged_ + 1 : unchanged_ / 2;
  const int doublings = std::min(hopeless_ ? 2 * unchanged_ : unchanged_, 10) - 1;
  rest_ = doublings < 0 ? 0 : std::min(1 << doublings, hopeless_ ? kMostHopelessRest : kMostRest);
  if (rest_ == 0) return;
  waits_ = true;
  watch_.start(expected_step(members));
  rested_.assign(offers.begin(), offers.end());
  rested_decisions_.assign(decisions.begin(), decisions.end());
  hopeless_slots_.fill(false);
  for (const DraftOffer& offer : offers) {
    if (offer.available > 0) hopeless_slots_[offer.source().slot()] = hopeless_;
  }
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
