// SPDX-License-Identifier: Apache-2.0
// The bounds hold for random steps, and a plan that is told to fit its workspace does.
#include "attention/capacity.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "attention/gpu.h"
#include "attention/plan_check.h"

namespace segue::attention {
namespace {

device::GpuFacts gpu_of(int multiprocessors) {
  device::GpuFacts gpu;
  gpu.name = "assumed";
  gpu.major = 9;
  gpu.multiprocessors = multiprocessors;
  return gpu;
}

/// A GPU's rules with the CPU's kernels: plans do not depend on who executes them.
DeviceFacts facts_of(const Shape& shape, int round) {
  if (round % 3 == 0) return cpu_device(1 + round % 7);
  DeviceFacts facts = gpu_device(gpu_of(round % 2 == 0 ? 132 : 20), shape);
  facts.kind = DeviceKind::kCpu;
  return facts;
}

TEST(PlanCapacity, BoundsEveryPlanOfRandomStepsWithinItsLimits) {
  std::mt19937 random(3);
  const auto pick = [&](auto... values) {
    const std::array options{values...};
    return options[random() % options.size()];
  };
  for (int round = 0; round < 3000; ++round) {
    Shape shape;
    shape.kv_heads = pick(1, 2, 4, 8);
    shape.q_heads = shape.kv_heads * pick(1, 2, 5, 8, 16);
    shape.head_dim = pick(64, 128, 256, 512);
    shape.window = pick(0, 0, 100, 1024);
    const DeviceFacts device = facts_of(shape, round);
    const Policy policy = pick(Policy::kSegue, Policy::kSegue, Policy::kStock, Policy::kPr45450,
                               Policy::kWhole, Policy::kSegmented);
    StepLimits limits;
    limits.sequences = pick(1, 2, 5, 30);
    limits.rows_per_sequence = pick(1, 2, 9, 16, 100, 700);
    limits.kv_len = pick(16, 800, 5000, 40'000, 200'000) + limits.rows_per_sequence;
    std::vector<SequenceRows> sequences;
    for (int i = 0; i < limits.sequences; ++i) {
      const int rows =
          pick(limits.rows_per_sequence,
               static_cast<int>(random() % static_cast<unsigned>(limits.rows_per_sequence + 1)));
      const auto most = static_cast<std::uint64_t>(limits.kv_len - rows);
      const std::uint64_t depth = pick(most, random() % (most + 1), std::uint64_t{0});
      sequences.push_back({static_cast<std::int64_t>(depth), rows, random() % 3 == 0});
      limits.rows += rows;
    }
    if (limits.rows == 0) continue;
    PlanInput input;
    input.shape = shape;
    input.sequences = sequences;
    input.policy = policy;
    input.decode_rows = limits.rows_per_sequence;
    Plan out;
    ASSERT_TRUE(plan(input, device, out).ok());
    const PlanCapacity bound = plan_capacity(shape, device, policy, limits);
    const auto group = shape.group();
    ASSERT_LE(static_cast<std::int64_t>(out.tiles.size()), bound.tiles) << to_text(out);
    ASSERT_LE(static_cast<std::int64_t>(out.items.size()), bound.items) << to_text(out);
    ASSERT_LE(static_cast<std::int64_t>(out.reductions.size()), bound.reductions) << to_text(out);
    ASSERT_LE(out.partials, bound.partials) << to_text(out);
    for (const RowTile& tile : out.tiles) {
      ASSERT_LE(tile.rows * group, bound.tile_rows) << to_text(out);
      ASSERT_LE(tile.unit_last - tile.unit_first, bound.runs) << to_text(out);
    }
  }
}

TEST(Plan, SplitsFewerTilesRatherThanExceedAWorkspaceThatItMustFit) {
  const Shape shape{.q_heads = 32, .kv_heads = 4, .head_dim = 512};
  DeviceFacts device = gpu_device(gpu_of(132), shape);
  device.kind = DeviceKind::kCpu;
  const std::vector<SequenceRows> sequences{
      {.depth = 200'000, .rows = 8}, {.depth = 1000, .rows = 8}, {.depth = 150'000, .rows = 8}};
  PlanInput input;
  input.shape = shape;
  input.sequences = sequences;
  Plan free;
  ASSERT_TRUE(plan(input, device, free).ok());
  ASSERT_GT(free.partials, 0);
  input.fit_partials = true;
  for (const std::int64_t limit :
       {free.partials, free.partials - 1, free.partials / 2, free.partials / 10, std::int64_t{0}}) {
    input.max_partials = limit;
    Plan fitted;
    ASSERT_TRUE(plan(input, device, fitted).ok());
    EXPECT_LE(fitted.partials, limit);
    EXPECT_EQ(check_plan(fitted, sequences, device), "");
    const bool limited = fitted.verdict.reason.find("the workspace of") != std::string::npos;
    EXPECT_EQ(limited, limit < free.partials) << fitted.verdict.reason;
  }
  input.max_partials = free.partials / 2;
  Plan half;
  ASSERT_TRUE(plan(input, device, half).ok());
  EXPECT_GT(half.partials, 0);
  EXPECT_GT(half.tile_segments[0], 1) << "the longest sequence keeps its split";
}

}  // namespace
}  // namespace segue::attention
