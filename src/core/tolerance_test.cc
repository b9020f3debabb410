// SPDX-License-Identifier: Apache-2.0
// The three grades on numbers small enough to check by hand.
#include "core/tolerance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace segue::core {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(ExactTolerance, AcceptsEqualBytesEvenIfTheyAreNan) {
  const std::vector<float> values{1, kNan, -kInf, 0};
  EXPECT_TRUE(exact(values, values).ok);
  EXPECT_TRUE(exact(std::vector<int>{}, std::vector<int>{}).ok);
}

TEST(ExactTolerance, TellsNegativeZeroFromZero) {
  EXPECT_FALSE(exact(std::vector<float>{0.0f}, std::vector<float>{-0.0f}).ok);
}

TEST(ExactTolerance, NamesTheFirstDifferenceByItsCoordinates) {
  std::vector<int> found(24, 7);
  const std::vector<int> expected(24, 7);
  found[17] = 8;
  found[20] = 9;
  const std::array<std::int64_t, 3> shape{2, 3, 4};
  const Verdict verdict = exact(found, expected, shape);
  EXPECT_FALSE(verdict.ok);
  EXPECT_THAT(verdict.message, HasSubstr("2 of 24 elements differ, the first at [1, 1, 1]"));
  EXPECT_THAT(exact(found, expected).message, HasSubstr("[17]"));
}

TEST(ExactTolerance, RefusesArraysOfDifferentSizes) {
  const Verdict verdict = exact(std::vector<int>(3), std::vector<int>(4));
  EXPECT_FALSE(verdict.ok);
  EXPECT_THAT(verdict.message, HasSubstr("found 3 elements, expected 4"));
}

TEST(DerivedTolerance, RoundoffIsHalfAUnitOfTheType) {
  EXPECT_EQ(unit_roundoff(KvType::kF32), std::numeric_limits<float>::epsilon() / 2);
  EXPECT_EQ(unit_roundoff(KvType::kF16), 1.0 / 2048);
  EXPECT_EQ(unit_roundoff(KvType::kBF16), 1.0 / 256);
}

TEST(DerivedTolerance, BoundFollowsTheFormula) {
  const DerivedTerms terms{.reference = -2, .absolute_sum = 3, .score_sum = 4};
  EXPECT_EQ(derived_bound(terms, 0x1p-8, 0x1p-24), 2 * 0x1p-8 + 8 * 0x1p-24 * 5 * 3);
  EXPECT_EQ(derived_bound({}, 0x1p-8, 0x1p-24), 0x1p-120);
}

TEST(DerivedTolerance, JudgesEachElementByItsOwnBound) {
  const std::vector<double> reference{1, 1000};
  const std::vector<double> bounds{0.125, 16};
  const Verdict good = within_bounds(std::vector<float>{1.0625f, 1008}, reference, bounds);
  EXPECT_TRUE(good.ok);
  EXPECT_EQ(good.worst_ratio, 0.5);
  const Verdict bad = within_bounds(std::vector<float>{1.25f, 1000}, reference, bounds);
  EXPECT_FALSE(bad.ok);
  EXPECT_EQ(bad.worst_ratio, 2);
  EXPECT_THAT(bad.message, HasSubstr("at [0]"));
}

TEST(DerivedTolerance, AcceptsAnErrorOfExactlyTheBound) {
  const std::vector<double> reference{1};
  EXPECT_TRUE(within_bounds(std::vector<float>{1.5f}, reference, std::vector<double>{0.5}).ok);
}

TEST(DerivedTolerance, AllowsNothingWhereTheBoundIsZero) {
  const std::vector<double> zero{0};
  EXPECT_TRUE(within_bounds(std::vector<float>{0}, zero, zero).ok);
  EXPECT_FALSE(within_bounds(std::vector<float>{1e-40f}, zero, zero).ok);
}

TEST(DerivedTolerance, RequiresNanAndInfinityInTheSamePlaces) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> bounds{inf, inf};
  const auto judge = [&](std::vector<float> found, std::vector<double> reference) {
    return within_bounds(found, reference, bounds).ok;
  };
  EXPECT_TRUE(judge({kNan, -kInf}, {nan, -inf}));
  EXPECT_FALSE(judge({1, kNan}, {1, 1}));
  EXPECT_FALSE(judge({1, 1}, {1, nan}));
  EXPECT_FALSE(judge({1, kInf}, {1, -inf}));
  EXPECT_FALSE(judge({1, kInf}, {1, 1}));
  EXPECT_FALSE(judge({1, 3e38f}, {1, inf}));
}

TEST(RelativeTolerance, AllowsTwiceTheErrorOfThePlainImplementation) {
  const std::vector<double> reference{1, 2};
  const std::vector<float> plain{1.25f, 2};
  EXPECT_TRUE(within_twice(std::vector<float>{1, 2.5f}, plain, reference, 0).ok);
  const Verdict bad = within_twice(std::vector<float>{1, 3}, plain, reference, 0);
  EXPECT_FALSE(bad.ok);
  EXPECT_EQ(bad.worst_ratio, 2);
  EXPECT_THAT(bad.message, HasSubstr("at [1]"));
}

TEST(RelativeTolerance, LeavesRoomForTheRoundingOfTheResult) {
  const std::vector<double> reference{1, -128};
  const std::vector<float> plain{1, -128};
  const double eps = unit_roundoff(KvType::kBF16);
  EXPECT_TRUE(within_twice(std::vector<float>{1.5f, -128}, plain, reference, eps).ok);
  EXPECT_FALSE(within_twice(std::vector<float>{1.75f, -128}, plain, reference, eps).ok);
}

TEST(RelativeTolerance, RefusesANanThatTheReferenceDoesNotHave) {
  const std::vector<double> reference{1};
  EXPECT_FALSE(within_twice(std::vector<float>{kNan}, std::vector<float>{kNan}, reference, 1).ok);
}

}  // namespace
}  // namespace segue::core
