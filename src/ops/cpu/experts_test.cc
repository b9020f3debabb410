// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace segue::ops {
namespace {

TEST(ChooseExperts, TakesTheLargestScoresInOrderOfExpert) {
  const std::vector<float> scores{0.5f, 3.0f, -1.0f, 2.0f, 3.0f};
  const std::vector<float> scale{1.0f, 2.0f, 1.0f, 0.5f, 1.0f};
  std::vector<std::int32_t> chosen(3, -7);
  std::vector<float> weights(3, std::nanf(""));
  choose_experts(scores, scale, chosen, weights);
  EXPECT_EQ(chosen, (std::vector<std::int32_t>{1, 3, 4}));
  const float e = std::exp(-1.0f);
  EXPECT_FLOAT_EQ(weights[0], 2.0f / (2.0f + e));
  EXPECT_FLOAT_EQ(weights[1], 0.5f * e / (2.0f + e));
  EXPECT_FLOAT_EQ(weights[2], 1.0f / (2.0f + e));
}

TEST(ChooseExperts, GivesEqualScoresToTheLowerExpertAndNanToNobody) {
  const float nan = std::nanf("");
  const std::vector<float> scores{nan, 1.0f, 1.0f, 1.0f, nan};
  const std::vector<float> scale(5, 1.0f);
  std::vector<std::int32_t> chosen(2);
  std::vector<float> weights(2);
  choose_experts(scores, scale, chosen, weights);
  EXPECT_EQ(chosen, (std::vector<std::int32_t>{1, 2}));
  EXPECT_FLOAT_EQ(weights[0], 0.5f);
}

TEST(ChooseExperts, MayTakeAll) {
  const std::vector<float> scores{100.0f, -100.0f};
  const std::vector<float> scale(2, 1.0f);
  std::vector<std::int32_t> chosen(2);
  std::vector<float> weights(2);
  choose_experts(scores, scale, chosen, weights);
  EXPECT_EQ(chosen, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FLOAT_EQ(weights[0], 1.0f);
  EXPECT_GE(weights[1], 0.0f);
}

}  // namespace
}  // namespace segue::ops
