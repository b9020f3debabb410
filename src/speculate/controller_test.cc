// SPDX-License-Identifier: Apache-2.0
#include "speculate/controller.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "speculate/controller_simulation.h"

namespace segue::speculate {
namespace {

using namespace simulation;  // NOLINT(google-build-using-namespace)

Acceptance constant(double p) {
  return [p](int, double, std::int64_t) { return p; };
}

/// 0.93 at depth 100, 0.5 at 86,000, straight in the logarithm of the depth.
double falling(int, double depth, std::int64_t) {
  const double share = std::log(std::max(depth, 100.0) / 100) / std::log(860.0);
  return std::max(0.5, 0.93 - 0.43 * share);
}

double alternating(int, double, std::int64_t token) { return token / 50 % 2 == 0 ? 0.9 : 0.1; }

struct Profile {
  const char* name;
  Acceptance acceptance;
};
const std::vector<Profile>& profiles() {
  static const std::vector<Profile> all{{"0", constant(0)},          {"0.12", constant(0.12)},
                                        {"0.46", constant(0.46)},    {"0.8", constant(0.8)},
                                        {"0.95", constant(0.95)},    {"falling", falling},
                                        {"alternating", alternating}};
  return all;
}

struct Ladder {
  const char* name;
  StepCost cost;
};
const std::vector<Ladder>& ladders() {
  static const std::vector<Ladder> both{{"stock", stock_cost}, {"segmented", segmented_cost}};
  return both;
}

/// Time per token of the controller and of every fixed k, summed over seeds, each run with a cold
/// controller.
struct Comparison {
  double controller = 0;
  std::array<double, 9> fixed{};
  double switches = 0;
  double to_off() const { return fixed[0] / controller; }
  double to_best() const { return *std::min_element(fixed.begin(), fixed.end()) / controller; }
};

Comparison compare(const StepCost& cost, const Acceptance& acceptance, Settings settings,
                   int seeds) {
  Comparison sum;
  for (int seed = 1; seed <= seeds; ++seed) {
    settings.seed = static_cast<std::uint64_t>(seed);
    settings.fixed = -1;
    Controller controller;
    const Outcome outcome = run(controller, 1, cost, acceptance, settings);
    sum.controller += 1 / outcome.rate();
    sum.switches += static_cast<double>(outcome.switches) / outcome.steps / seeds;
    for (int k = 0; k <= 8; ++k) {
      settings.fixed = k;
      Controller unused;
      sum.fixed[static_cast<std::size_t>(k)] +=
          1 / run(unused, 1, cost, acceptance, settings).rate();
    }
  }
  return sum;
}

TEST(ControllerLadder, IsNeverSlowerThanOffInAnyColdCellOf256Tokens) {
  for (const Ladder& ladder : ladders()) {
    for (const bool ready : {true, false}) {
      for (const double depth : {512.0, 4096.0, 16384.0, 32768.0}) {
        for (const Profile& profile : profiles()) {
          const Comparison result =
              compare(ladder.cost, profile.acceptance, {.depth = depth, .ready = ready}, 20);
          EXPECT_GE(result.to_off(), 0.98) << ladder.name << (ready ? " ready" : " drafted")
                                           << " depth " << depth << " acceptance " << profile.name;
        }
      }
    }
  }
}

TEST(ControllerLadder, RegretAgainstTheBestFixedChoiceIsUnderThreePercent) {
  double worst = 1;
  for (const Ladder& ladder : ladders()) {
    for (const double depth : {512.0, 4096.0, 16384.0, 32768.0}) {
      for (const Profile& profile : profiles()) {
        const Comparison result =
            compare(ladder.cost, profile.acceptance, {.depth = depth, .tokens = 2048}, 8);
        worst = std::min(worst, result.to_best());
        EXPECT_GE(result.to_best(), 0.97)
            << ladder.name << " depth " << depth << " acceptance " << profile.name;
      }
    }
  }
  std::printf("worst ratio to the best fixed k: %.3f\n", worst);
}

TEST(ControllerLadder, DoesNotOscillate) {
  // Acceptance stays: after the first 256 tokens, k of steps that are no probes hardly changes.
  for (const Ladder& ladder : ladders()) {
    for (const double p : {0.0, 0.46, 0.95}) {
      for (const double depth : {1024.0, 16384.0}) {
        const Comparison result =
            compare(ladder.cost, constant(p), {.depth = depth, .tokens = 2048}, 8);
        EXPECT_LE(result.switches, 0.05)
            << ladder.name << " depth " << depth << " acceptance " << p;
      }
    }
  }
}

TEST(ControllerLadder, FindsTheCrossingDepthOfThePublishedStockLadder) {
  // Where the published times per token meet, between 1,024 and 8,192.
  double crossing = 1024;
  while (published_stock_ms_per_token(crossing) < published_off_ms(crossing)) crossing += 1;
  // One sequence that grows from 1K to 9K with the published acceptance, k = 1 as published.
  const Acceptance acceptance = [](int, double depth, std::int64_t) {
    return published_acceptance_length(depth) - 1;
  };
  std::vector<double> found;
  for (std::uint64_t seed = 1; seed <= 9; ++seed) {
    Controller controller({.max_draft = 1});
    const Settings settings{.depth = 1024, .tokens = 8192, .seed = seed, .max_draft = 1};
    const Outcome outcome = run(controller, 1, stock_cost, acceptance, settings);
    found.push_back(1024 + static_cast<double>(outcome.drafted_tokens));
  }
  std::sort(found.begin(), found.end());
  std::printf("crossing %.0f, found %.0f, %.0f .. %.0f\n", crossing, found[4], found.front(),
              found.back());
  EXPECT_NEAR(found[4], crossing, 0.1 * crossing);
}

TEST(ControllerLadder, BreakEvenAcceptanceMeetsThePublishedOneWhereTheRatesCross) {
  double crossing = 1024;
  while (published_stock_ms_per_token(crossing) < published_off_ms(crossing)) crossing += 1;
  // A ladder of cells, as the lab runs them: one controller sees them all, most recent last.
  Controller controller({.max_draft = 1});
  std::vector<std::pair<double, double>>
      surplus;  // by depth: published acceptance less the break-even one
  for (int depth = 1024; depth <= 8192; depth += 512) {
    const Acceptance acceptance = [](int, double d, std::int64_t) {
      return published_acceptance_length(d) - 1;
    };
    const Settings settings{
        .depth = static_cast<double>(depth), .tokens = 128, .seed = 5, .max_draft = 1};
    run(controller, depth, stock_cost, acceptance, settings);
    const auto even = controller.break_even_acceptance(1, depth);
    ASSERT_TRUE(even.has_value()) << depth;
    surplus.emplace_back(depth, published_acceptance_length(depth) - 1 - *even);
  }
  double found = 0;
  for (std::size_t i = 1; i < surplus.size() && found == 0; ++i) {
    const auto [d0, s0] = surplus[i - 1];
    const auto [d1, s1] = surplus[i];
    if (s1 <= 0) found = d0 + (d1 - d0) * s0 / (s0 - s1);
  }
  std::printf("crossing %.0f, by break-even acceptance %.0f\n", crossing, found);
  EXPECT_NEAR(found, crossing, 0.1 * crossing);
}

}  // namespace
}  // namespace segue::speculate
