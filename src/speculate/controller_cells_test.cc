// SPDX-License-Identifier: Apache-2.0
// Cold cells as `segue cells` runs them, on a simulated small CPU that it shares with others: steps
// whose rows cost a fifth of a step and more, row counts that stand out, and others that slow the
// machine down for some steps at a time. The costs are those of the demonstration pair on two cores
// (bench/results/never-slower-pair.json); what is random is a function of the seed.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "speculate/controller.h"
#include "speculate/controller_simulation.h"

namespace segue::speculate {
namespace {

using namespace simulation;  // NOLINT(google-build-using-namespace)

/// Times of a step of `batch` sequences at `depth`, by its rows, milliseconds.
struct Pair {
  std::int64_t batch;
  double depth;
  std::vector<std::pair<double, double>> ms;
};
const std::vector<Pair>& pairs() {
  static const std::vector<Pair> all{
      {1, 512, {{1, 0.605}, {2, 0.74}, {3, 0.913}, {4, 1.056}, {5, 1.219}, {6, 1.392}, {9, 1.925}}},
      {1, 4096, {{1, 0.734}, {2, 0.984}, {3, 1.288}, {4, 1.55}, {5, 1.853}, {9, 3.056}}},
      {4, 512, {{4, 1.046}, {8, 1.616}, {9, 1.7}, {12, 2.688}, {20, 4.148}, {36, 6.905}}},
      {4, 4096, {{4, 2.154}, {8, 3.38}, {9, 3.6}, {12, 5.2}, {20, 8.2}, {36, 13.4}}}};
  return all;
}

/// What other programs do to step times. A step that waits a time slice of theirs is measured
/// without it, as the engine does, but for a few.
class SharedMachine {
 public:
  /// Steps of a batch scatter more: 19 % were measured for four sequences, 10 % for one.
  SharedMachine(std::uint64_t seed, std::int64_t batch)
      : seed_(seed), step_noise_(batch > 1 ? 0.09 : 0.06) {}

  double measured_ms(double ms) {
    constexpr double kCalmMs = 120, kBusyMs = 15, kSlow = 1.45, kSliceMs = 4, kSeen = 0.95;
    constexpr double kMood = 0.08, kMoodSteps = 100;
    const double keep = std::exp(-1 / kMoodSteps);
    mood_ = keep * mood_ + std::sqrt(1 - keep * keep) * kMood * bell(seed_, ++draws_);
    double us = ms * std::exp(mood_ + step_noise_ * bell(seed_, ++draws_)) * (busy_ ? kSlow : 1);
    if (busy_ && next() < 1 - std::exp(-us / kSliceMs) && next() > kSeen) us += kSliceMs;
    if (next() < 1 - std::exp(-us / (busy_ ? kBusyMs : kCalmMs))) busy_ = !busy_;
    return us;
  }

 private:
  double next() { return uniform(seed_, ++draws_, 7); }

  std::uint64_t seed_;
  double step_noise_;
  std::uint64_t draws_ = 0;
  double mood_ = 0;
  bool busy_ = false;
};

/// Undisturbed milliseconds per token, tokens as k drafts yield them on average: luck is no
/// property of the choice. `fixed` < 0: a controller that knows nothing.
double cell(const Pair& pair, const Acceptance& acceptance, int fixed, std::uint64_t seed) {
  constexpr double kTokens = 256;
  Controller controller;
  SharedMachine machine(seed, pair.batch);
  const auto batch = static_cast<std::size_t>(pair.batch);
  std::vector<std::int64_t> tokens(batch, 0);
  std::vector<std::vector<std::int32_t>> drafts(batch);
  std::vector<DraftOffer> offers(batch);
  std::vector<StepRows> rows(batch);
  double generated = 0, yielded = 0, ms = 0;
  while (generated < kTokens * static_cast<double>(batch)) {
    for (std::size_t i = 0; i < batch; ++i) {
      drafts[i].clear();
      const auto position = static_cast<std::uint64_t>(tokens[i]);
      const double depth = pair.depth + static_cast<double>(tokens[i]);
      for (int j = 0; j < 8; ++j) {
        const bool right = uniform(seed * 31 + i, position, static_cast<std::uint64_t>(j)) <
                           acceptance(j, depth, tokens[i]);
        drafts[i].push_back(right ? static_cast<std::int32_t>(tokens[i]) + j : -1);
      }
      const auto id = static_cast<std::int64_t>(i);
      offers[i] = {.sequence = id, .depth = static_cast<std::int64_t>(depth), .available = 8};
      if (fixed < 0) controller.observe_draft(id, {}, drafts[i]);
    }
    std::vector<Decision> decisions(batch, Decision{std::max(0, fixed), false});
    if (fixed < 0) controller.decide(offers, decisions);
    double total_rows = 0;
    for (std::size_t i = 0; i < batch; ++i) {
      const int k = decisions[i].draft;
      rows[i] = {offers[i].depth, 1 + k};
      total_rows += 1 + k;
      double product = 1;
      yielded += 1;
      for (int j = 0; j < k; ++j)
        yielded += product *= acceptance(j, static_cast<double>(offers[i].depth), tokens[i]);
      std::vector<std::int32_t> committed(1, static_cast<std::int32_t>(tokens[i]));
      for (int j = 0; j < k && drafts[i][static_cast<std::size_t>(j)] >= 0; ++j)
        committed.push_back(static_cast<std::int32_t>(tokens[i]) + j + 1);
      if (fixed < 0) controller.observe_tokens(static_cast<std::int64_t>(i), committed);
      tokens[i] += static_cast<std::int64_t>(committed.size());
      generated += static_cast<double>(committed.size());
    }
    const double step_ms = interpolate(pair.ms, total_rows);
    if (fixed < 0) controller.observe_step(rows, 1000 * machine.measured_ms(step_ms));
    ms += step_ms;
  }
  return ms / yielded;
}

struct Ratios {
  double to_off;
  double to_best;
};
Ratios compare(const Pair& pair, const Acceptance& acceptance) {
  constexpr int kSeeds = 24;
  std::array<double, 5> fixed{};
  double controlled = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    controlled += cell(pair, acceptance, -1, seed);
    for (std::size_t i = 0; i < fixed.size(); ++i)
      fixed[i] += cell(pair, acceptance, i == 0 ? 0 : 1 << (i - 1), seed);
  }
  return {fixed[0] / controlled, *std::ranges::min_element(fixed) / controlled};
}

TEST(ControllerCells, OnASharedMachineWhoseRowsAreDearLittleIsLost) {
  // Where the best k stands out of its neighbours and the gain is small, a cell of 256 tokens ends
  // before that is known: the bars of single cells are what is reached, not what is promised.
  double sum = 0;
  int cells = 0;
  for (const Pair& pair : pairs()) {
    for (const double p : {0.0, 0.12, 0.46, 0.8, 0.95}) {
      const Ratios found = compare(pair, [p](int, double, std::int64_t) { return p; });
      std::printf("batch %d depth %.0f acceptance %.2f: off %.3f best %.3f\n",
                  static_cast<int>(pair.batch), pair.depth, p, found.to_off, found.to_best);
      EXPECT_GE(found.to_off, 0.98) << pair.batch << " " << pair.depth << " " << p;
      EXPECT_GE(found.to_best, 0.95) << pair.batch << " " << pair.depth << " " << p;
      sum += found.to_best;
      ++cells;
    }
  }
  EXPECT_GE(sum / cells, 0.983);
}

}  // namespace
}  // namespace segue::speculate
