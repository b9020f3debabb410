// SPDX-License-Identifier: Apache-2.0
// A decision that stands for some steps must lose nothing of what is observed meanwhile, and must
// not outlive what it rests on.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "speculate/controller.h"

namespace segue::speculate {
namespace {

TEST(ControllerRest, WhatIsObservedWhileADecisionStandsCounts) {
  Controller controller;
  std::int64_t steps = 0;
  for (const int until : {1, 2, 7, 40, 41, 100}) {
    while (steps < until) {
      const DraftOffer offer{.sequence = 1, .depth = 1024 + steps, .available = 8};
      controller.observe_draft(1, {}, std::vector<std::int32_t>(8, 8));
      Decision decision;
      controller.decide({&offer, 1}, {&decision, 1});
      controller.observe_tokens(1, std::vector<std::int32_t>(1, 7));
      const StepRows rows{1024 + steps, 1 + decision.draft};
      controller.observe_step({&rows, 1}, 1000 + 300 * decision.draft);
      ++steps;
    }
    EXPECT_EQ(*controller.explain().find("steps")->as_int(), steps);
  }
}

TEST(ControllerRest, DraftsThatDisappointEndIt) {
  // 200 steps of right drafts, then none is right.
  Controller controller;
  int late = 0;
  for (int step = 0; step < 240; ++step) {
    const bool right = step < 200;
    const DraftOffer offer{.sequence = 1, .depth = 1024, .available = 8};
    controller.observe_draft(1, {}, std::vector<std::int32_t>(8, right ? 7 : 8));
    Decision decision;
    controller.decide({&offer, 1}, {&decision, 1});
    const auto tokens = static_cast<std::size_t>(right ? 1 + decision.draft : 1);
    controller.observe_tokens(1, std::vector<std::int32_t>(tokens, 7));
    const StepRows rows{1024, 1 + decision.draft};
    controller.observe_step({&rows, 1}, 1000 + 200 * decision.draft);
    if (!right && decision.draft > 0) ++late;
    if (step == 199) {
      EXPECT_EQ(decision.draft, 8);
    }
  }
  EXPECT_LE(late, 10);
}

}  // namespace
}  // namespace segue::speculate
