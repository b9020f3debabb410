// SPDX-License-Identifier: Apache-2.0
// The planner's promises, checked on the plan itself: every visible key of every row is reduced exactly once, units do
// not depend on the step, buffers are as large as what indexes them, and each policy sends the steps where it should.
#include "attention/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "attention/kernel.h"
#include "attention/plan_check.h"
#include "attention/unit.h"

namespace segue::attention {
namespace {

constexpr std::array kAllPolicies{Policy::kSegue,    Policy::kStock,          Policy::kPr45450, Policy::kPr47520,
                                  Policy::kBatchInvariant, Policy::kWhole, Policy::kSegmented};

DeviceFacts device_of(int workgroups) {
  DeviceFacts device;
  device.workgroups = workgroups;
  device.multiprocessors = workgroups;
  return device;
}

Shape shape_of(int q_heads, int kv_heads, int head_dim, int window = 0) {
  Shape shape;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.window = window;
  return shape;
}

Plan plan_of(const Shape& shape, std::vector<SequenceRows> sequences, const DeviceFacts& device,
             Policy policy = Policy::kSegue, int force_segments = 0) {
  PlanInput input;
  input.shape = shape;
  input.sequences = sequences;
  input.policy = policy;
  input.force_segments = force_segments;
  Plan out;
  const Status status = plan(input, device, out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(check_plan(out, sequences, device), "") << to_text(out);
  return out;
}

TEST(UnitRule, NeverShrinksAsKeysGrowAndEveryClassHoldsAPowerOfTwoWithItsVerifyBlock) {
  for (const UnitRule rule : {UnitRule{64, 32}, UnitRule{64, 128}, UnitRule{128, 32}, UnitRule{16, 16}}) {
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
  for (std::int64_t keys = 32'768 + 64; keys <= 65'536 + 64; ++keys) sizes.insert(unit_size(rule, keys));
  EXPECT_EQ(sizes, (std::set<int>{1024, 1280, 1536, 1792, 2048}));
}

TEST(Plan, CoversEveryVisibleKeyExactlyOnceForRandomStepsUnderEveryPolicy) {
  std::mt19937 random(1);
  const auto pick = [&](auto... values) {
    const std::array options{values...};
    return options[random() % options.size()];
  };
  for (int round = 0; round < 1500; ++round) {
    const int kv_heads = pick(1, 2, 4, 8, 16);
    Shape shape = shape_of(kv_heads * pick(1, 2, 4, 8, 16), kv_heads, pick(64, 80, 256, 512),
                           pick(0, 0, 1, 17, 512, 1024, 4096));
    shape.page_size = pick(8, 16, 784, 1072);
    const DeviceFacts device = device_of(pick(1, 2, 3, 16, 132, 500));
    std::vector<SequenceRows> sequences;
    const int count = pick(1, 1, 2, 7, 33);
    for (int i = 0; i < count; ++i) {
      SequenceRows rows;
      rows.depth = pick(0, 1, 3, 63, 64, 65, 2047, 2048, 2111, 2112, 2113, 16'384, 50'000, 131'072, 1'000'000);
      rows.rows = pick(0, 1, 1, 2, 5, 8, 9, 16, 17, 256);
      sequences.push_back(rows);
    }
    const int forced = pick(0, 0, 0, 1, 2, 3, 7, 16, 1000);
    plan_of(shape, sequences, device, kAllPolicies[random() % kAllPolicies.size()], forced);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace segue::attention
