// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "speculate/accept.h"
#include "speculate/ngram_drafter.h"
#include "speculate/oracle_drafter.h"

namespace segue::speculate {
namespace {

constexpr std::int64_t kSequence = 5;

Draft draft_into(Drafter& drafter, const std::vector<std::int32_t>& context,
                 std::span<std::int32_t> out) {
  DraftJob job{.sequence = kSequence, .context = context, .out = out};
  drafter.draft({&job, 1});
  return job.draft;
}

std::vector<std::int32_t> draft_of(Drafter& drafter, const std::vector<std::int32_t>& context,
                                   std::size_t k) {
  std::vector<std::int32_t> out(k, -7);
  out.resize(static_cast<std::size_t>(draft_into(drafter, context, out).tokens));
  return out;
}

TEST(NgramDrafter, ContinuesTheMostRecentOccurrenceOfTheLongestSuffix) {
  NgramDrafter drafter({.longest = 3, .shortest = 1});
  //                                   0  1  2  3  4  5  6  7  8  9
  const std::vector<std::int32_t> text{5, 1, 2, 3, 9, 1, 2, 4, 1, 2};
  EXPECT_EQ(draft_of(drafter, text, 3),
            (std::vector<std::int32_t>{4, 1, 2}));  // "1 2" at 5..6 is the latest
  std::vector<std::int32_t> longer{7, 1, 2, 8, 3, 1, 2, 9, 7, 1, 2};
  NgramDrafter other({.longest = 3, .shortest = 1});
  EXPECT_EQ(draft_of(other, longer, 2),
            (std::vector<std::int32_t>{8, 3}));  // "7 1 2" beats the later "1 2"
}

TEST(NgramDrafter, IsSilentWhenNothingMatches) {
  NgramDrafter drafter;
  EXPECT_TRUE(draft_of(drafter, {}, 4).empty());
  EXPECT_TRUE(draft_of(drafter, {1}, 4).empty());
  EXPECT_TRUE(draft_of(drafter, {1, 2, 3, 4, 5, 6, 7}, 4).empty());
  EXPECT_TRUE(draft_of(drafter, {1, 2, 3, 4, 5, 6, 7, 1, 2}, 0).empty());
}

TEST(NgramDrafter, FollowsALoopPastTheEndOfTheContext) {
  NgramDrafter drafter;
  EXPECT_EQ(draft_of(drafter, {8, 1, 2, 3, 1, 2, 3, 1, 2}, 8),
            (std::vector<std::int32_t>{3, 1, 2, 3, 1, 2, 3, 1}));
  NgramDrafter same;
  EXPECT_EQ(draft_of(same, {4, 4, 4, 4}, 3), (std::vector<std::int32_t>{4, 4, 4}));
}

TEST(NgramDrafter, GradesFollowTheLengthOfTheMatch) {
  std::vector<std::int32_t> out(1);
  NgramDrafter drafter({.longest = 3, .shortest = 1});
  EXPECT_EQ(draft_into(drafter, {1, 2, 3, 9, 8, 3}, out).grade, 0);
  NgramDrafter middle({.longest = 3, .shortest = 1});
  EXPECT_EQ(draft_into(middle, {1, 2, 3, 9, 2, 3}, out).grade, 1);
  NgramDrafter longest({.longest = 3, .shortest = 1});
  EXPECT_EQ(draft_into(longest, {1, 2, 3, 9, 1, 2, 3}, out).grade, 2);
}

/// The contract by exhaustive search.
std::vector<std::int32_t> searched(const std::vector<std::int32_t>& text, int longest, int shortest,
                                   std::size_t k) {
  const auto size = static_cast<std::int64_t>(text.size());
  for (std::int64_t n = std::min<std::int64_t>(longest, size); n >= shortest; --n) {
    for (std::int64_t end = size - 1; end >= n; --end) {
      if (!std::equal(text.end() - n, text.end(), text.begin() + (end - n))) continue;
      std::vector<std::int32_t> all = text;
      for (std::size_t i = 0; i < k; ++i) all.push_back(all[static_cast<std::size_t>(end) + i]);
      return {all.end() - static_cast<std::ptrdiff_t>(k), all.end()};
    }
  }
  return {};
}

TEST(NgramDrafter, EqualsAnExhaustiveSearchHoweverTheContextGrows) {
  std::uint64_t state = 99;
  for (const std::uint64_t alphabet : {2u, 5u, 40u}) {
    NgramDrafter drafter({.longest = 5, .shortest = 2});
    std::vector<std::int32_t> text;
    for (int step = 0; step < 400; ++step) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      for (std::uint64_t i = 0; i < 1 + (state >> 60) % 5; ++i) {
        text.push_back(static_cast<std::int32_t>((state >> (20 + i)) % alphabet));
      }
      ASSERT_EQ(draft_of(drafter, text, 6), searched(text, 5, 2, 6)) << alphabet << " " << step;
    }
  }
}

TEST(OracleDrafter, IsRightAsOftenAsItsProfileSaysPerPosition) {
  std::vector<std::int32_t> truth(20000);
  for (std::size_t i = 0; i < truth.size(); ++i) truth[i] = static_cast<std::int32_t>(i * 7 % 100);
  OracleDrafter drafter(fixed_acceptance({0.9, 0.5, 0.0}), 100);
  drafter.record(kSequence, truth, 5);
  int right[4] = {};
  constexpr int kSteps = 19000;
  for (std::size_t n = 1; n <= kSteps; ++n) {
    const auto draft =
        draft_of(drafter, {truth.begin(), truth.begin() + static_cast<std::ptrdiff_t>(n)}, 4);
    ASSERT_EQ(draft.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) right[i] += draft[i] == truth[n + i];
  }
  EXPECT_NEAR(right[0], 0.9 * kSteps, 5 * std::sqrt(kSteps * 0.09));
  EXPECT_NEAR(right[1], 0.5 * kSteps, 5 * std::sqrt(kSteps * 0.25));
  EXPECT_EQ(right[2], 0);
  EXPECT_EQ(right[3], 0);  // the last probability holds for later positions
}

TEST(OracleDrafter, StopsAtTheEndOfTheRecordAndRepeatsItself) {
  OracleDrafter a(fixed_acceptance({1.0}), 10);
  EXPECT_TRUE(draft_of(a, {1, 2}, 8).empty());  // not recorded
  a.record(kSequence, {1, 2, 3, 4}, 1);
  EXPECT_EQ(draft_of(a, {1, 2}, 8), (std::vector<std::int32_t>{3, 4}));
  EXPECT_TRUE(draft_of(a, {1, 2, 3, 4}, 8).empty());
  OracleDrafter b(fixed_acceptance({}), 4);
  b.record(kSequence, {1, 2, 3, 4}, 1);
  EXPECT_EQ(draft_of(b, {1, 2}, 8), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(draft_of(b, {1, 2}, 8), draft_of(b, {1, 2}, 8));
}

TEST(Accept, TakesThePrefixThatTheTargetWouldHaveSampled) {
  const std::vector<std::int32_t> drafts{4, 5, 6};
  const auto check = [&](std::vector<std::int32_t> sampled, int accepted, std::int32_t next) {
    const Accepted result = accept(drafts, sampled);
    EXPECT_EQ(result.drafts, accepted);
    EXPECT_EQ(result.next, next);
  };
  check({4, 5, 6, 7}, 3, 7);
  check({4, 5, 9, 7}, 2, 9);
  check({4, 5, 9}, 2, 9);
  check({3, 5, 6, 7}, 0, 3);
  check({3}, 0, 3);
  EXPECT_EQ(accept({}, std::vector<std::int32_t>{8}).next, 8);
  EXPECT_EQ(accept({}, std::vector<std::int32_t>{8}).drafts, 0);
}

}  // namespace
}  // namespace segue::speculate
