// SPDX-License-Identifier: Apache-2.0
// Cold cells as `segue cells` runs them, simulated: step times by rows, drafts that an oracle makes
// right with given probabilities, and a machine whose clock is noisy. What is random is a function
// of the seed.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "speculate/controller.h"
#include "speculate/controller_simulation.h"

namespace segue::speculate::simulation {

/// What steps of `batch` sequences at `depth` take.
struct CellCost {
  std::string name;
  std::int64_t batch = 1;
  double depth = 512;
  std::vector<std::pair<double, double>> ms;  // by rows of the step
  double draft_ms = 0;  // of one drafted token; 0: drafts are ready before the decision
  RowPrior rows = kCpuRows;
  double weighing_ms = 0;  // of a decision that did not merely stand
};

/// Measured milliseconds of a step that takes `ms` undisturbed.
using Clock = std::function<double(double ms)>;

/// Independent noise, and steps in a hundred that something else makes three times as long.
class NoisyClock {
 public:
  explicit NoisyClock(std::uint64_t seed) : seed_(seed) {}
  double operator()(double ms) {
    constexpr double kNoise = 0.05, kOutliers = 0.01, kOutlier = 3;
    const double disturbed = uniform(seed_, ++draws_, 7) < kOutliers ? kOutlier : 1;
    return ms * disturbed * std::max(0.5, 1 + kNoise * bell(seed_, ++draws_));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t draws_ = 0;
};

struct CellRun {
  double ms = 0;       // undisturbed, with what weighing took
  double yielded = 0;  // tokens as k drafts yield them on average: luck is no property of a choice
  std::array<int, kMaxDraft + 1> steps_by_k{};  // of the first sequence
  int mixed_steps = 0;                          // with different k in a batch
  std::int64_t weighings = 0;                   // decisions that did not merely stand
  double ms_per_token() const { return ms / yielded; }
};

/// 256 tokens for each sequence. `fixed` < 0: a controller that knows nothing.
inline CellRun run_cell(const CellCost& cost, const Acceptance& acceptance, int fixed,
                        std::uint64_t seed, Clock clock) {
  constexpr double kTokens = 256;
  CellRun run;
  Controller controller({.rows = cost.rows});
  const auto batch = static_cast<std::size_t>(cost.batch);
  const bool ready = cost.draft_ms == 0;
  std::vector<std::int64_t> tokens(batch, 0);
  std::vector<std::vector<std::int32_t>> drafts(batch);
  std::vector<DraftOffer> offers(batch);
  std::vector<StepRows> rows(batch);
  double generated = 0;
  while (generated < kTokens * static_cast<double>(batch)) {
    for (std::size_t i = 0; i < batch; ++i) {
      drafts[i].clear();
      const auto position = static_cast<std::uint64_t>(tokens[i]);
      const double depth = cost.depth + static_cast<double>(tokens[i]);
      for (int j = 0; j < 8; ++j) {
        const bool right = uniform(seed * 31 + i, position, static_cast<std::uint64_t>(j)) <
                           acceptance(j, depth, tokens[i]);
        drafts[i].push_back(right ? static_cast<std::int32_t>(tokens[i]) + j : -1);
      }
      const auto id = static_cast<std::int64_t>(i);
      offers[i] = {.sequence = id,
                   .depth = static_cast<std::int64_t>(depth),
                   .available = 8,
                   .ready = ready};
      if (fixed < 0 && ready) controller.observe_draft(id, {}, drafts[i]);
    }
    std::vector<Decision> decisions(batch, Decision{std::max(0, fixed), false});
    if (fixed < 0) {
      controller.decide(offers, decisions);
      controller.observe_weighing(1000 * cost.weighing_ms);
    }
    ++run.steps_by_k[static_cast<std::size_t>(decisions[0].draft)];
    run.mixed_steps += std::ranges::any_of(
        decisions, [&](const Decision& one) { return one.draft != decisions[0].draft; });
    double total_rows = 0;
    for (std::size_t i = 0; i < batch; ++i) {
      const int k = decisions[i].draft;
      const auto id = static_cast<std::int64_t>(i);
      rows[i] = {offers[i].depth, 1 + k};
      total_rows += 1 + k;
      if (!ready && k > 0) {
        run.ms += k * cost.draft_ms;
        if (fixed < 0) {
          controller.observe_draft(id, {}, std::span(drafts[i]).first(static_cast<std::size_t>(k)));
          controller.observe_draft_time({.tokens = k, .depth = offers[i].depth},
                                        1000 * clock(k * cost.draft_ms));
        }
      }
      double product = 1;
      run.yielded += 1;
      for (int j = 0; j < k; ++j)
        run.yielded += product *= acceptance(j, static_cast<double>(offers[i].depth), tokens[i]);
      std::vector<std::int32_t> committed(1, static_cast<std::int32_t>(tokens[i]));
      for (int j = 0; j < k && drafts[i][static_cast<std::size_t>(j)] >= 0; ++j)
        committed.push_back(static_cast<std::int32_t>(tokens[i]) + j + 1);
      if (fixed < 0) controller.observe_tokens(id, committed);
      tokens[i] += static_cast<std::int64_t>(committed.size());
      generated += static_cast<double>(committed.size());
    }
    const double step_ms = interpolate(cost.ms, total_rows);
    if (fixed < 0) controller.observe_step(rows, 1000 * clock(step_ms));
    run.ms += step_ms;
  }
  if (fixed < 0) run.weighings = *controller.explain().find("weighings")->as_int();
  run.ms += static_cast<double>(run.weighings) * cost.weighing_ms;
  return run;
}

}  // namespace segue::speculate::simulation
