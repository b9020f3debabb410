// SPDX-License-Identifier: Apache-2.0
#include "kv/page_pool.h"

#include <vector>

#include <gtest/gtest.h>

namespace segue::kv {
namespace {

TEST(PagePool, ASequenceThatGrowsGetsAscendingPages) {
  PagePool pool(100, Placement::kSpread);
  std::int32_t page = -1;
  for (std::int32_t i = 0; i < 40; ++i) {
    page = pool.allocate(page);
    EXPECT_EQ(page, i);
  }
}

TEST(PagePool, TwoGrowingSequencesKeepRunsOfTheirOwn) {
  PagePool pool(128, Placement::kSpread);
  std::int32_t a = pool.allocate(-1);
  std::int32_t b = pool.allocate(-1);
  for (int i = 0; i < 50; ++i) {
    const std::int32_t next_a = pool.allocate(a);
    const std::int32_t next_b = pool.allocate(b);
    EXPECT_EQ(next_a, a + 1);
    EXPECT_EQ(next_b, b + 1);
    a = next_a;
    b = next_b;
  }
}

TEST(PagePool, HandsOutEveryPageThenAnswersNone) {
  for (const Placement placement : {Placement::kSpread, Placement::kCompact}) {
    PagePool pool(17, placement);
    std::vector<bool> seen(17, false);
    std::int32_t last = -1;
    for (int i = 0; i < 17; ++i) {
      last = pool.allocate(i % 3 == 0 ? -1 : last);
      ASSERT_GE(last, 0);
      EXPECT_FALSE(seen[static_cast<std::size_t>(last)]);
      seen[static_cast<std::size_t>(last)] = true;
    }
    EXPECT_EQ(pool.free_pages(), 0);
    EXPECT_EQ(pool.allocate(-1), -1);
    EXPECT_EQ(pool.allocate(3), -1);
    EXPECT_TRUE(pool.release(5));
    EXPECT_EQ(pool.allocate(-1), 5);
  }
}

TEST(PagePool, APageIsFreeWhenItsLastReferenceGoes) {
  PagePool pool(4, Placement::kSpread);
  const std::int32_t page = pool.allocate(-1);
  pool.retain(page);
  EXPECT_EQ(pool.references(page), 2);
  EXPECT_FALSE(pool.release(page));
  EXPECT_EQ(pool.used_pages(), 1);
  EXPECT_TRUE(pool.release(page));
  EXPECT_EQ(pool.used_pages(), 0);
  EXPECT_EQ(pool.touched_pages(), 1);
}

TEST(PagePool, AWindowThatMovesOnReusesWhatItGaveBack) {
  PagePool pool(1000, Placement::kCompact);
  std::vector<std::int32_t> held;
  std::int32_t last = -1;
  for (int i = 0; i < 500; ++i) {
    last = pool.allocate(last);
    held.push_back(last);
    if (held.size() > 10) {
      pool.release(held.front());
      held.erase(held.begin());
    }
  }
  EXPECT_LE(pool.touched_pages(), 11);
}

}  // namespace
}  // namespace segue::kv
