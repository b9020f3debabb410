// SPDX-License-Identifier: Apache-2.0
#include "speculate/statistics.h"

#include <gtest/gtest.h>

namespace segue::speculate {
namespace {

TEST(Statistics, CountsDraftsPerPositionPerDepthAndOverK) {
  Statistics s;
  s.record({.depth = 10,
            .drafted = 3,
            .accepted = 1,
            .draft_us = 1e6,
            .verify_us = 2e6,
            .other_us = 0.5e6});
  s.record({.depth = 300,
            .drafted = 1,
            .accepted = 1,
            .draft_us = 1e6,
            .verify_us = 2e6,
            .other_us = 0.5e6});
  s.record({.depth = 300,
            .drafted = 0,
            .accepted = 0,
            .draft_us = 0,
            .verify_us = 1e6,
            .other_us = 0.5e6});
  EXPECT_EQ(s.drafted(), 4);
  EXPECT_EQ(s.accepted(), 2);
  EXPECT_DOUBLE_EQ(s.mean_acceptance_length(), 2.0);
  EXPECT_DOUBLE_EQ(s.mean_tokens_per_step(), 5.0 / 3);
  EXPECT_EQ(
      s.to_json().dump(),
      R"({"steps":3,"drafted":4,"accepted":2,"drafted_per_position":[2,1,1],"accepted_per_position":[2,0,0],)"
      R"("mean_acceptance_length":2.0,"k_histogram":[1,1,0,1,0,0,0,0,0,0,0,0,0,0,0,0,0],)"
      R"("time_s":{"draft":2.0,"verify":5.0,"other":1.5},"by_depth":[)"
      R"({"depth_from":0,"depth_to":256,"steps":1,"drafted_per_position":[1,1,1],"accepted_per_position":[1,0,0]},)"
      R"({"depth_from":256,"depth_to":512,"steps":2,"drafted_per_position":[1],"accepted_per_position":[1]}]})");
}

TEST(Statistics, PublishedAcceptanceLengthFollowsFromItsCounts) {
  Statistics s;
  for (int i = 0; i < 78; ++i) s.record({.depth = 32768, .drafted = 1, .accepted = i < 9 ? 1 : 0});
  EXPECT_NEAR(s.mean_acceptance_length(), 1.12, 0.005);
}

TEST(Statistics, TotalOfPartsEqualsTheWhole) {
  Statistics whole, a, b;
  for (int i = 0; i < 40; ++i) {
    const StepRecord step{.depth = 1ll << (i % 33),
                          .drafted = i % 17,
                          .accepted = i % 17 / 2,
                          .draft_us = 1,
                          .verify_us = 2,
                          .other_us = 4};
    whole.record(step);
    (i % 3 ? a : b).record(step);
  }
  a.merge(b);
  EXPECT_EQ(a.to_json().dump(), whole.to_json().dump());
}

TEST(Statistics, WithoutStepsTheAcceptanceLengthIsOne) {
  EXPECT_EQ(Statistics().mean_acceptance_length(), 1.0);
  EXPECT_EQ(Statistics().mean_tokens_per_step(), 0.0);
  EXPECT_EQ(Statistics().to_json().find("by_depth")->as_array()->size(), 0u);
}

}  // namespace
}  // namespace segue::speculate
