// SPDX-License-Identifier: Apache-2.0
// Cold cells as `segue cells` runs them, on simulated machines. Costs: the demonstration pair on
// two cores (bench/results/never-slower-pair.json), where rows cost a fifth of a step and more and
// some row counts stand out; Gemma 3 270M on the same (never-slower.json); on an H200 a 31B shape
// (cuda-ladder-31b-h200.json), where rows are nearly free and every step that verifies few is dear
// where many are right, and the shape of Gemma 3 270M, of which a batch of four jumps at 33 rows.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "speculate/controller.h"
#include "speculate/controller_cells.h"
#include "speculate/controller_simulation.h"

namespace segue::speculate {
namespace {

using namespace simulation;  // NOLINT(google-build-using-namespace)

const std::vector<CellCost>& pairs() {
  static const std::vector<CellCost> all{
      {"pair",
       1,
       512,
       {{1, 0.605}, {2, 0.74}, {3, 0.913}, {4, 1.056}, {5, 1.219}, {6, 1.392}, {9, 1.925}}},
      {"pair", 1, 4096, {{1, 0.734}, {2, 0.984}, {3, 1.288}, {4, 1.55}, {5, 1.853}, {9, 3.056}}},
      {"pair", 4, 512, {{4, 1.046}, {8, 1.616}, {9, 1.7}, {12, 2.688}, {20, 4.148}, {36, 6.905}}},
      {"pair", 4, 4096, {{4, 2.154}, {8, 3.38}, {9, 3.6}, {12, 5.2}, {20, 8.2}, {36, 13.4}}}};
  return all;
}

const CellCost kGemma{
    "Gemma 270M", 1, 512, {{1, 9.9}, {2, 10.64}, {3, 11.27}, {5, 12.45}, {9, 15.1}}};
const CellCost kGpu{
    "31B shape on a GPU", 1, 1024, {{1, 16.23}, {2, 16.4}, {5, 16.84}, {9, 17.2}}, 0, kGpuRows};
const CellCost kSmallOnGpu{"270M shape on a GPU",
                           1,
                           512,
                           {{1, 0.61}, {2, 0.645}, {3, 0.672}, {5, 0.723}, {9, 0.835}},
                           0,
                           kGpuRows};
const CellCost kSmallBatchOnGpu{
    "270M shape on a GPU",
    4,
    512,
    {{4, 0.735}, {8, 0.82}, {12, 0.93}, {20, 1.21}, {32, 1.6}, {33, 2.6}, {36, 2.75}},
    0,
    kGpuRows};
// Every verify step takes a path that is three times as slow.
const CellCost kSlowPathOnGpu{
    "slow path on a GPU", 1, 16384, {{1, 28.3}, {2, 82.1}, {9, 84.9}}, 0, kGpuRows};

struct Profile {
  const char* name;
  Acceptance acceptance;
};
const std::vector<Profile>& profiles() {
  const auto constant = [](double p) { return [p](int, double, std::int64_t) { return p; }; };
  static const std::vector<Profile> all{
      {"0", constant(0)},
      {"0.12", constant(0.12)},
      {"0.46", constant(0.46)},
      {"0.8", constant(0.8)},
      {"0.95", constant(0.95)},
      {"falling",
       [](int, double depth, std::int64_t) {
         return 0.93 - 0.43 * std::log(std::max(depth, 100.0) / 100) / std::log(860.0);
       }},
      {"alternating",
       [](int, double, std::int64_t token) { return token / 50 % 2 == 0 ? 0.9 : 0.1; }}};
  return all;
}

/// What other programs do to step times. A step that waits a time slice of theirs is measured
/// without it, as the engine does, but for a few.
class SharedMachine {
 public:
  /// Steps of a batch scatter more: 19 % were measured for four sequences, 10 % for one.
  SharedMachine(std::uint64_t seed, std::int64_t batch)
      : seed_(seed), step_noise_(batch > 1 ? 0.09 : 0.06) {}

  double operator()(double ms) {
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

struct Ratios {
  double to_off = 0;
  double to_best = 0;
  double oracle = 0;  // the most that can be reached, over the best fixed k
  double weighings = 0;
  int best = 0;
};

/// An oracle knows the best k and still measures one step of something else: without drafts, or of
/// k = 1 where no drafts are best.
double oracle_ratio(const CellCost& cost, const Acceptance& acceptance, int best,
                    double best_ms_per_token) {
  constexpr double kTokens = 256;
  const auto rows = static_cast<double>(cost.batch);
  const int other = best == 0 ? 1 : 0;
  const double ms = interpolate(cost.ms, rows * (1 + other)) + rows * other * cost.draft_ms;
  const double tokens = rows * (1 + other * acceptance(0, cost.depth, 0));
  const double rest_ms = (rows * kTokens - tokens) * best_ms_per_token;
  return rows * kTokens * best_ms_per_token / (ms + rest_ms);
}

Ratios compare(const CellCost& cost, const Acceptance& acceptance, int seeds,
               const std::function<Clock(std::uint64_t seed)>& clock) {
  constexpr std::array<int, 7> kFixed{0, 1, 2, 3, 4, 6, 8};
  std::array<double, kFixed.size()> fixed{};
  double controlled = 0;
  Ratios ratios;
  for (int i = 1; i <= seeds; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    const CellRun run = run_cell(cost, acceptance, -1, seed, clock(seed));
    controlled += run.ms_per_token();
    ratios.weighings += static_cast<double>(run.weighings) / seeds;
    for (std::size_t k = 0; k < fixed.size(); ++k)
      fixed[k] += run_cell(cost, acceptance, kFixed[k], seed, clock(seed)).ms_per_token();
  }
  const auto best = std::ranges::min_element(fixed);
  ratios.to_off = fixed[0] / controlled;
  ratios.to_best = *best / controlled;
  ratios.best = kFixed[static_cast<std::size_t>(best - fixed.begin())];
  ratios.oracle = oracle_ratio(cost, acceptance, ratios.best, *best / seeds);
  return ratios;
}

/// Of the best fixed k at least so much, or what an oracle reaches less so much.
struct Bars {
  double least = 0.97;
  double under_oracle = 0.025;
};

/// With independent noise of 5 % and one step in a hundred three times as long.
double noisy_cells(const CellCost& cost, int seeds, const Bars& bars = {}) {
  double sum = 0;
  for (const Profile& profile : profiles()) {
    const Ratios found = compare(cost, profile.acceptance, seeds,
                                 [](std::uint64_t seed) { return NoisyClock(seed); });
    std::printf(
        "%s, batch %d, depth %.0f, acceptance %s: off %.3f best (k %d) %.3f oracle %.3f "
        "weighings %.0f\n",
        cost.name.c_str(), static_cast<int>(cost.batch), cost.depth, profile.name, found.to_off,
        found.best, found.to_best, found.oracle, found.weighings);
    EXPECT_GE(found.to_off, 0.98) << cost.name << " " << cost.depth << " " << profile.name;
    // Where few steps make a cell, the first ones are much of it for an oracle, too: with 95 %
    // right and rows nearly free a cell has 35 steps.
    EXPECT_GE(found.to_best,
              std::min(found.best == 0 ? 0.98 : bars.least, found.oracle - bars.under_oracle))
        << cost.name << " " << cost.depth << " " << profile.name;
    sum += found.to_best / static_cast<double>(profiles().size());
  }
  return sum;
}

TEST(ControllerCells, ThePairLosesLittleToNoise) {
  for (const CellCost& pair : pairs()) EXPECT_GE(noisy_cells(pair, 24), 0.985);
}

TEST(ControllerCells, ALargerModelLosesLittleToNoise) { EXPECT_GE(noisy_cells(kGemma, 24), 0.98); }

TEST(ControllerCells, WhereRowsAreNearlyFreeLittleIsLost) {
  const Bars bars{.least = 0.975, .under_oracle = 0.01};
  EXPECT_GE(noisy_cells(kGpu, 24, bars), 0.985);
  CellCost assistant = kGpu;
  assistant.draft_ms = 0.45;
  EXPECT_GE(noisy_cells(assistant, 24, bars), 0.98);
  EXPECT_GE(noisy_cells(kSmallOnGpu, 24, bars), 0.99);
}

TEST(ControllerCells, WhatLiesBeforeAJumpIsTried) {
  // A cell of 95 % has 45 steps, of which one or two lie beyond the jump.
  EXPECT_GE(noisy_cells(kSmallBatchOnGpu, 24, {.least = 0.95, .under_oracle = 0.03}), 0.985);
}

TEST(ControllerCells, SequencesThatAreAlikeHaveTheSameKOnAGpu) {
  // What they differ by is what few drafts show, and each new number of rows is recorded first.
  int mixed = 0;
  int steps = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    const CellRun run =
        run_cell(kSmallBatchOnGpu, profiles()[3].acceptance, -1, seed, NoisyClock(seed));
    mixed += run.mixed_steps;
    steps += std::accumulate(run.steps_by_k.begin(), run.steps_by_k.end(), 0);
  }
  std::printf("own k in %d of %d steps\n", mixed, steps);
  EXPECT_LE(mixed, 0.15 * steps);
}

TEST(ControllerCells, SequencesThatDifferHaveTheirOwnKOnAGpu) {
  const auto cost = [](const std::vector<StepRows>& rows) {
    double total = 0;
    for (const StepRows& one : rows) total += one.rows;
    return interpolate(kSmallBatchOnGpu.ms, total);
  };
  Controller controller({.rows = kGpuRows});
  const BatchOutcome own =
      run_batch(controller, {{512, 0.95}, {512, 0.95}, {512, 0.02}, {512, 0.02}}, cost, 200, 5);
  EXPECT_GE(own.mean_draft[0], 4);
  EXPECT_GE(own.mean_draft[1], 4);
  EXPECT_LE(own.mean_draft[2], 0.5);
  EXPECT_LE(own.mean_draft[3], 0.5);
}

TEST(ControllerCells, RowsThatAreDearWhereTheyShouldBeCheapAreFound) {
  EXPECT_GE(noisy_cells(kSlowPathOnGpu, 24, {.least = 0.98, .under_oracle = 0.01}), 1.01);
}

TEST(ControllerCells, HopelessDraftsAreHardlyWeighed) {
  for (const CellCost& pair : pairs()) {
    const Ratios found = compare(pair, profiles()[0].acceptance, 12,
                                 [](std::uint64_t seed) { return NoisyClock(seed); });
    EXPECT_LE(found.weighings, 20) << pair.batch << " " << pair.depth;
  }
}

TEST(ControllerCells, WhatWeighingTakesIsACostOfTrials) {
  // At 12 % k = 1 is as fast as none, or nearly: trials lose nothing but what weighing takes, 6 %
  // of a step after steps that have emptied the caches.
  double untold = 0;
  double told = 0;
  for (const CellCost& free : {pairs()[0], pairs()[1], kSmallOnGpu, kSmallBatchOnGpu}) {
    CellCost dear = free;
    dear.weighing_ms = 0.06 * free.ms[0].second;
    const auto clock = [](std::uint64_t seed) { return NoisyClock(seed); };
    const Ratios without = compare(free, profiles()[1].acceptance, 24, clock);
    const Ratios with = compare(dear, profiles()[1].acceptance, 24, clock);
    std::printf("weighing counts, batch %d, depth %.0f: %.1f weighings, else %.1f; off %.3f\n",
                static_cast<int>(free.batch), free.depth, with.weighings, without.weighings,
                with.to_off);
    EXPECT_LT(with.weighings, without.weighings) << free.name << " " << free.depth;
    EXPECT_GE(with.to_off, 0.98) << free.name << " " << free.depth;
    untold += without.weighings;
    told += with.weighings;
  }
  EXPECT_LE(told, 0.8 * untold);
}

TEST(ControllerCells, OnASharedMachineWhoseRowsAreDearLittleIsLost) {
  // Where the best k stands out of its neighbours and the gain is small, a cell of 256 tokens ends
  // before that is known: the bars of single cells are what is reached, not what is promised.
  double sum = 0;
  int cells = 0;
  for (const CellCost& pair : pairs()) {
    for (const Profile& profile : std::span(profiles()).first(5)) {
      const Ratios found = compare(pair, profile.acceptance, 24, [&](std::uint64_t seed) {
        return SharedMachine(seed, pair.batch);
      });
      std::printf("shared, batch %d depth %.0f acceptance %s: off %.3f best %.3f\n",
                  static_cast<int>(pair.batch), pair.depth, profile.name, found.to_off,
                  found.to_best);
      EXPECT_GE(found.to_off, 0.98) << pair.batch << " " << pair.depth << " " << profile.name;
      EXPECT_GE(found.to_best, 0.95) << pair.batch << " " << pair.depth << " " << profile.name;
      sum += found.to_best;
      ++cells;
    }
  }
  EXPECT_GE(sum / cells, 0.983);
}

}  // namespace
}  // namespace segue::speculate
