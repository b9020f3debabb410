// SPDX-License-Identifier: Apache-2.0
// The unit rule: monotone, finer than powers of two, and with room for a verify block behind every
// power of two.
#include "attention/unit.h"

#include <gtest/gtest.h>

#include <set>

namespace segue::attention {
namespace {

TEST(UnitRule, NeverShrinksAsKeysGrowAndEveryClassHoldsAPowerOfTwoWithItsVerifyBlock) {
  for (const UnitRule rule :
       {UnitRule{64, 32}, UnitRule{64, 128}, UnitRule{128, 32}, UnitRule{16, 16}}) {
    int last = 0;
    for (std::int64_t keys = 1; keys <= 300'000; ++keys) {
      const int unit = unit_size(rule, keys);
      ASSERT_GE(unit, last) << keys;
      ASSERT_EQ(unit % 16, 0) << keys;
      ASSERT_GE(class_limit(rule, keys), keys);
      ASSERT_EQ(unit_size(rule, class_limit(rule, keys)), unit) << keys;
      ASSERT_GT(unit_size(rule, class_limit(rule, keys) + 1), unit) << keys;
      ASSERT_LE((keys - 64 + unit - 1) / unit, rule.target_units) << keys;
      last = unit;
    }
    for (int bits = 5; bits <= 40; ++bits) {
      const std::int64_t depth = std::int64_t{1} << bits;
      ASSERT_EQ(unit_size(rule, depth + 1), unit_size(rule, depth + 64)) << depth;
    }
  }
}

TEST(UnitRule, StepsAreFinerThanPowersOfTwo) {
  const UnitRule rule{64, 32};
  std::set<int> sizes;
  for (std::int64_t keys = 32'768 + 64; keys <= 65'536 + 64; ++keys)
    sizes.insert(unit_size(rule, keys));
  EXPECT_EQ(sizes, (std::set<int>{1024, 1280, 1536, 1792, 2048}));
}

TEST(UnitRule, GivesLayersOfFewKvHeadsMoreUnits) {
  const DeviceFacts device;
  Shape shape{.q_heads = 16, .kv_heads = 1, .head_dim = 256};
  EXPECT_EQ(unit_rule(shape, device).target_units, 128);
  shape.kv_heads = 4;
  EXPECT_EQ(unit_rule(shape, device).target_units, 32);
  shape.kv_heads = 16;
  EXPECT_EQ(unit_rule(shape, device).target_units, 32);
}

TEST(UnitRule, DoesNotDependOnHowManyThreadsThereAre) {
  const Shape shape{.q_heads = 4, .kv_heads = 1, .head_dim = 256};
  const UnitRule one = unit_rule(shape, cpu_device(1));
  const UnitRule many = unit_rule(shape, cpu_device(64));
  EXPECT_EQ(one.min_unit, many.min_unit);
  EXPECT_EQ(one.target_units, many.target_units);
}

}  // namespace
}  // namespace segue::attention
