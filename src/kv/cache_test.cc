// SPDX-License-Identifier: Apache-2.0
#include "kv/cache.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/write.h"

namespace segue::kv {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kPage = 16;

PoolSpec global(int pages) {
  return {.name = "global",
          .layers = 2,
          .kv_heads = 1,
          .head_dim = 64,
          .page_size = kPage,
          .pages = pages};
}
PoolSpec sliding(int pages, int window) {
  return {.name = "sliding",
          .layers = 2,
          .kv_heads = 1,
          .head_dim = 64,
          .window = window,
          .page_size = kPage,
          .pages = pages};
}

Cache make(std::vector<PoolSpec> specs, int max_rows = 64) {
  return Cache::create(std::move(specs), {.max_rows = max_rows, .poison = true}).value();
}

/// Writes `value` into every element of the rows, layer 0.
void fill(Cache& cache, SequenceId id, int pool, std::int64_t position, std::int64_t rows,
          float value) {
  const std::vector<float> row(64, value);
  write_rows(cache.view(pool, 0), cache.table(id, pool), position, rows,
             {row.data(), row.data(), 0, 0});
}

float at(const Cache& cache, SequenceId id, int pool, std::int64_t position) {
  return read_v(cache.view(pool, 0), cache.table(id, pool), position, 0, 63);
}

void grow(Cache& cache, SequenceId id, std::int64_t rows) {
  ASSERT_TRUE(cache.reserve(id, rows).ok());
  cache.commit(id, rows);
}

TEST(Cache, PoolsOverTheBudgetAreRefusedWithTheirSizes) {
  const auto cache = Cache::create({global(1000), sliding(10, 32)}, {.budget_bytes = 1 << 20});
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, ErrorCode::kNoMemory);
  EXPECT_THAT(cache.error().message, HasSubstr("'global' 7.8 MiB (1000 pages)"));
  EXPECT_THAT(cache.error().message, HasSubstr("the budget is 1.0 MiB"));
}

TEST(Cache, AnAbsurdPoolIsRefusedNotCrashed) {
  PoolSpec spec = global(2147483647);
  spec.page_size = 65536;
  spec.head_dim = 4096;
  spec.kv_heads = 4096;
  spec.layers = 4096;
  const auto cache = Cache::create({spec});
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(Cache::create({sliding(4, -1)}).error().code, ErrorCode::kUsage);
}

TEST(Cache, LargePoolsCostNothingUntilTheyAreUsed) {
  Cache cache =
      Cache::create({global(1 << 22)}, {.poison = false}).value();  // 32 GiB of address space
  const SequenceId id = cache.create_sequence();
  EXPECT_EQ(cache.touched_bytes(), 0);
  grow(cache, id, 100);
  EXPECT_EQ(cache.touched_bytes(), 7 * page_bytes(cache.spec(0)));
}

TEST(Cache, OutOfPagesIsAnAnswerAndTakesNothing) {
  Cache cache = make({global(8), sliding(4, 16)});
  const SequenceId id = cache.create_sequence();
  EXPECT_EQ(cache.reservable(id, 64), 64);
  grow(cache, id, 33);
  const SequenceId other = cache.create_sequence();
  EXPECT_EQ(cache.reservable(other, 64), 2 * kPage);
  const Status status = cache.reserve(other, 33);  // sliding has 2 pages left, global 5
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNoMemory);
  EXPECT_THAT(status.error().message, HasSubstr("'sliding' has 2 of 4 pages free"));
  EXPECT_EQ(cache.pages_in_use(other, 0), 0);
  EXPECT_EQ(cache.pages_in_use(0), 3);
  EXPECT_THAT(cache.check_integrity(), IsEmpty());
  cache.destroy(id);
  EXPECT_TRUE(cache.reserve(other, 33).ok());
  EXPECT_THAT(cache.check_integrity(), IsEmpty());
}

TEST(Cache, RejectedDraftsCostNoPageAndNoCopy) {
  Cache cache = make({global(8)});
  const SequenceId id = cache.create_sequence();
  grow(cache, id, 15);
  const std::int32_t first = cache.table(id, 0).pages[0];
  for (int step = 0; step < 10; ++step) {
    ASSERT_TRUE(cache.reserve(id, 9).ok());
    fill(cache, id, 0, 15, 9, static_cast<float>(step));
    cache.commit(id, 0);
  }
  EXPECT_EQ(cache.length(id), 15);
  EXPECT_EQ(cache.pages_in_use(0), 2);
  EXPECT_EQ(cache.table(id, 0).pages[0], first);
  ASSERT_TRUE(cache.reserve(id, 9).ok());
  cache.commit(id, 4);
  EXPECT_EQ(cache.length(id), 19);
  ASSERT_TRUE(cache.truncate(id, 16).ok());
  EXPECT_EQ(cache.pages_in_use(0), 1);
  EXPECT_THAT(cache.check_integrity(), IsEmpty());
}

TEST(Cache, AWindowHoldsItselfTheBlockInFlightAndOnePage) {
  for (const int chunk : {1, 5, 16, 64}) {
    Cache cache = make({global(64), sliding(64, 32)}, chunk);
    const SequenceId id = cache.create_sequence();
    std::int64_t most = 0;
    for (std::int64_t length = 0; length + chunk <= 960; length += chunk) {
      ASSERT_TRUE(cache.reserve(id, chunk).ok());
      most = std::max(most, cache.pages_in_use(id, 1));
      cache.commit(id, chunk);
      ASSERT_THAT(cache.check_integrity(), IsEmpty());
    }
    EXPECT_LE(most, (32 + chunk + kPage - 1) / kPage + 1) << "chunk " << chunk;
    EXPECT_EQ(cache.pages_in_use(id, 0), (cache.length(id) + kPage - 1) / kPage);
  }
}

TEST(Cache, AWindowKeepsTheKeyBeforeItForAnAssistant) {
  Cache cache = make({sliding(16, 32)});
  const SequenceId id = cache.create_sequence();
  for (int i = 0; i < 47; ++i) grow(cache, id, 1);
  // The next row, at position 47, sees 16 .. 47; key 15 is the one more and lies on page 0.
  EXPECT_EQ(cache.table(id, 0).pages[0] >= 0, true);
  grow(cache, id, 1);
  EXPECT_EQ(cache.table(id, 0).pages[0], -1);
}

TEST(Cache, UncommittedRowsNeverMoveTheWindow) {
  Cache cache = make({sliding(16, 16)});
  const SequenceId id = cache.create_sequence();
  grow(cache, id, 31);
  ASSERT_TRUE(cache.reserve(id, 64).ok());
  EXPECT_GE(cache.table(id, 0).pages[0], 0);
  cache.commit(id, 0);
  EXPECT_GE(cache.table(id, 0).pages[0], 0);
  ASSERT_TRUE(cache.reserve(id, 1).ok());
  cache.commit(id, 1);
  EXPECT_EQ(cache.table(id, 0).pages[0], -1);
  EXPECT_THAT(cache.check_integrity(), IsEmpty());
}

TEST(Cache, TruncatingBehindTheWindowIsRefused) {
  Cache cache = make({global(32), sliding(32, 32)});
  const SequenceId id = cache.create_sequence();
  for (int i = 0; i < 4; ++i) grow(cache, id, 50);
  const Status status = cache.truncate(id, 100);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(status.error().message, HasSubstr("'sliding' (window 32), which starts at 160"));
  EXPECT_EQ(cache.length(id), 200);
  EXPECT_TRUE(cache.truncate(id, 195).ok());
  EXPECT_TRUE(cache.truncate(id, 0).ok());
  EXPECT_EQ(cache.pages_in_use(0) + cache.pages_in_use(1), 0);
  EXPECT_THAT(cache.check_integrity(), IsEmpty());
}

TEST(Cache, SharedPrefixesSharePagesAndNeverSeeEachOthersRows) {
  Cache cache = make({global(16)});
  const SequenceId a = cache.create_sequence();
  ASSERT_TRUE(cache.reserve(a, 40).ok());
  fill(cache, a, 0, 0, 40, 1.0f);
  cache.commit(a, 40);
  const SequenceId b = cache.share_prefix(a, 37).value();
  EXPECT_EQ(cache.length(b), 37);
  EXPECT_EQ(cache.pages_in_use(0), 3 + 1);
  EXPECT_EQ(cache.table(b, 0).pages[1], cache.table(a, 0).pages[1]);
  EXPECT_NE(cache.table(b, 0).pages[2], cache.table(a, 0).pages[2]);
  ASSERT_TRUE(cache.reserve(b, 5).ok());
  fill(cache, b, 0, 37, 5, 2.0f);
  cache.commit(b, 5);
  EXPECT_EQ(at(cache, a, 0, 37), 1.0f);
  EXPECT_EQ(at(cache, b, 0, 36), 1.0f);
  EXPECT_EQ(at(cache, b, 0, 37), 2.0f);
  cache.destroy(a);
  EXPECT_EQ(at(cache, b, 0, 0), 1.0f);
  EXPECT_EQ(cache.pages_in_use(0), 3);
  EXPECT_THAT(cache.check_integrity(), IsEmpty());
}

TEST(Cache, WritingIntoASharedPageAfterRollbackCopiesItFirst) {
  Cache cache = make({global(4)});
  const SequenceId a = cache.create_sequence();
  ASSERT_TRUE(cache.reserve(a, 32).ok());
  fill(cache, a, 0, 0, 32, 1.0f);
  cache.commit(a, 32);
  const SequenceId b = cache.share_prefix(a, 32).value();
  EXPECT_EQ(cache.pages_in_use(0), 2);
  ASSERT_TRUE(cache.truncate(b, 20).ok());
  EXPECT_EQ(cache.reservable(b, 64), 12 + kPage);  // one page for the copy, one fresh
  ASSERT_TRUE(cache.reserve(b, 3).ok());
  fill(cache, b, 0, 20, 3, 2.0f);
  cache.commit(b, 3);
  EXPECT_EQ(at(cache, a, 0, 20), 1.0f);
  EXPECT_EQ(at(cache, b, 0, 19), 1.0f);
  EXPECT_EQ(at(cache, b, 0, 20), 2.0f);
  EXPECT_EQ(cache.pages_in_use(0), 3);
  EXPECT_THAT(cache.check_integrity(), IsEmpty());
}

TEST(Cache, SharingNeedsAPageForThePartialOneAndTheWindowBeforeIt) {
  Cache cache = make({global(4), sliding(8, 16)});
  const SequenceId a = cache.create_sequence();
  grow(cache, a, 60);
  const auto no_page = cache.share_prefix(a, 60);
  ASSERT_FALSE(no_page.ok());
  EXPECT_EQ(no_page.error().code, ErrorCode::kNoMemory);
  const auto no_window = cache.share_prefix(a, 32);
  ASSERT_FALSE(no_window.ok());
  EXPECT_EQ(no_window.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(cache.sequences(), 1);
  EXPECT_THAT(cache.check_integrity(), IsEmpty());
  EXPECT_EQ(cache.length(cache.share_prefix(a, 0).value()), 0);
}

TEST(Cache, FreedPagesHoldNaN) {
  Cache cache = make({global(2)});
  const SequenceId id = cache.create_sequence();
  ASSERT_TRUE(cache.reserve(id, 16).ok());
  EXPECT_TRUE(std::isnan(at(cache, id, 0, 3)));
  fill(cache, id, 0, 0, 16, 1.0f);
  cache.commit(id, 16);
  const std::int32_t page = cache.table(id, 0).pages[0];
  cache.destroy(id);
  EXPECT_TRUE(std::isnan(read_k(cache.view(0, 0), {&page, 1}, 3, 0, 0)));
}

TEST(CacheDeathTest, CommittingMoreThanWasReservedStopsTheProgram) {
  Cache cache = make({global(2)});
  const SequenceId id = cache.create_sequence();
  ASSERT_TRUE(cache.reserve(id, 4).ok());
  EXPECT_DEATH(cache.commit(id, 5), "CHECK failed");
  cache.destroy(id);
  EXPECT_DEATH(cache.commit(id, 0), "CHECK failed");
}

}  // namespace
}  // namespace segue::kv
