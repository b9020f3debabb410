// SPDX-License-Identifier: Apache-2.0
#include "kv/sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace segue::kv {
namespace {

using ::testing::HasSubstr;

PoolSpec spec(int window, int page_size) {
  return {.name = window > 0 ? "sliding" : "global",
          .layers = 3,
          .kv_heads = 1,
          .head_dim = 256,
          .window = window,
          .page_size = page_size};
}

TEST(Sizing, BytesCountKAndVOfAllHeadsAndTilePadding) {
  EXPECT_EQ(page_bytes_per_layer(spec(0, 64)), 64 * 256 * 2 * 2);
  EXPECT_EQ(page_bytes(spec(0, 64)), 3 * 64 * 256 * 2 * 2);
  EXPECT_EQ(page_bytes_per_layer(spec(0, 24)),
            (32 + 24) * 256 * 2);  // K of a tiled page fills whole tiles
  PoolSpec natural = spec(0, 24);
  natural.layout = Layout::kTokenMajor;
  natural.type = KvType::kF32;
  natural.kv_heads = 5;
  EXPECT_EQ(page_bytes_per_layer(natural), 24 * 5 * 256 * 4 * 2);
}

TEST(Sizing, AWindowNeedsItselfTheBlockInFlightAndOnePage) {
  EXPECT_EQ(pages_per_sequence(spec(0, 64), 32768, 512), 512);
  EXPECT_EQ(pages_per_sequence(spec(512, 64), 32768, 512), (512 + 512) / 64 + 1);
  EXPECT_EQ(pages_per_sequence(spec(512, 64), 100, 512), 2);  // never more than the length itself
  EXPECT_EQ(pages_per_sequence(spec(1024, 784), 60000, 5), 3);
  EXPECT_EQ(pages_per_sequence(spec(0, 784), 785, 5), 2);
}

TEST(Sizing, FillsPagesForEverySequence) {
  const auto sized =
      size_pools({spec(0, 64), spec(512, 64)}, {.sequences = 4, .tokens = 1000, .max_rows = 64});
  ASSERT_TRUE(sized.ok());
  EXPECT_EQ((*sized)[0].pages, 4 * 16);
  EXPECT_EQ((*sized)[1].pages, 4 * 10);
}

TEST(Sizing, RefusesOverBudgetWithTheNumbersAndWhatWouldFit) {
  const std::int64_t budget = 10 * page_bytes(spec(0, 64));
  const auto sized =
      size_pools({spec(0, 64)}, {.sequences = 2, .tokens = 1000, .max_rows = 64}, budget);
  ASSERT_FALSE(sized.ok());
  EXPECT_EQ(sized.error().code, ErrorCode::kNoMemory);
  EXPECT_THAT(sized.error().message, HasSubstr("'global'"));
  EXPECT_THAT(sized.error().message, HasSubstr("32 pages of 64 tokens"));
  EXPECT_THAT(sized.error().message, HasSubstr("enough for 320 tokens per sequence"));
  EXPECT_TRUE(
      size_pools({spec(0, 64)}, {.sequences = 2, .tokens = 320, .max_rows = 64}, budget).ok());
}

TEST(Sizing, TheLengthThatWouldFitLeavesRoomForDrafts) {
  const std::int64_t budget = 10 * page_bytes(spec(0, 64));
  const auto sized = [&](std::int64_t context) {
    return size_pools({spec(0, 64)},
                      {.sequences = 2, .tokens = context + 16, .max_rows = 64, .drafts = 16},
                      budget);
  };
  ASSERT_FALSE(sized(1000).ok());
  EXPECT_THAT(sized(1000).error().message, HasSubstr("2 sequence(s) of 1000 tokens"));
  EXPECT_THAT(sized(1000).error().message, HasSubstr("enough for 304 tokens per sequence"));
  EXPECT_TRUE(sized(304).ok());
  EXPECT_FALSE(sized(305).ok());
  const auto nothing = size_pools(
      {spec(0, 64)}, {.sequences = 20, .tokens = 26, .max_rows = 64, .drafts = 16}, budget);
  EXPECT_THAT(nothing.error().message, HasSubstr("enough for 0 tokens per sequence"));
}

TEST(Sizing, AbsurdNumbersAreRefusedWithoutOverflow) {
  const auto sized = size_pools(
      {spec(0, 8)}, {.sequences = 2147483647, .tokens = 9223372036854775807, .max_rows = 1});
  ASSERT_FALSE(sized.ok());
  EXPECT_EQ(sized.error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(size_pools({spec(0, 64)}, {.sequences = 0, .tokens = 1}).error().code,
            ErrorCode::kUsage);
  EXPECT_EQ(size_pools({spec(0, 64)}, {.sequences = 1, .tokens = 0}).error().code,
            ErrorCode::kUsage);
}

TEST(Sizing, RefusesImpossiblePools) {
  for (const int page_size : {0, -8, 7, 12, 65544}) {
    const Status status = validate(spec(0, page_size));
    ASSERT_FALSE(status.ok()) << page_size;
    EXPECT_EQ(status.error().code, ErrorCode::kUsage);
    EXPECT_THAT(status.error().message, HasSubstr("page size"));
  }
  for (const int page_size : {8, 16, 64, 544, 784, 1056, 1072})
    EXPECT_TRUE(validate(spec(0, page_size)).ok());
  EXPECT_FALSE(validate(spec(-1, 16)).ok());
  PoolSpec bad = spec(0, 16);
  bad.head_dim = 100;
  EXPECT_FALSE(validate(bad).ok());
  bad = spec(0, 16);
  bad.layers = 0;
  EXPECT_FALSE(validate(bad).ok());
  bad = spec(0, 16);
  bad.layout = Layout::kSwizzled8;
  EXPECT_TRUE(validate(bad).ok());
  bad.type = KvType::kF32;
  EXPECT_FALSE(validate(bad).ok());
  bad.type = KvType::kF16;
  bad.head_dim = 80;
  EXPECT_FALSE(validate(bad).ok());
}

}  // namespace
}  // namespace segue::kv
