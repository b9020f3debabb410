// SPDX-License-Identifier: Apache-2.0
// The planner's promises, checked on the plan itself: every visible key of every row is reduced
// exactly once, units do not depend on the step, buffers are as large as what indexes them, and
// each policy sends the steps where it should.
#include "attention/plan.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>

#include "attention/checked_plan.h"
#include "attention/kernel.h"
#include "attention/unit.h"

namespace segue::attention {
namespace {

constexpr std::array kAllPolicies{Policy::kSegue,    Policy::kStock,          Policy::kPr45450,
                                  Policy::kPr47520,  Policy::kBatchInvariant, Policy::kWhole,
                                  Policy::kSegmented};

Shape shape_of(int q_heads, int kv_heads, int head_dim, int window = 0) {
  Shape shape;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.window = window;
  return shape;
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
      rows.depth = pick(0, 1, 3, 63, 64, 65, 2047, 2048, 2111, 2112, 2113, 16'384, 50'000, 131'072,
                        1'000'000);
      rows.rows = pick(0, 1, 1, 2, 5, 8, 9, 16, 17, 256);
      sequences.push_back(rows);
    }
    PlanInput input{.shape = shape, .sequences = sequences};
    input.force_segments = pick(0, 0, 0, 1, 2, 3, 7, 16, 1000);
    input.policy = kAllPolicies[random() % kAllPolicies.size()];
    plan_of(input, device);
    if (HasFailure()) return;
  }
}

TEST(Plan, ReducesEveryKeyOfEveryRowOnceWhenCountedKeyByKey) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const int window = std::array{0, 5, 130, 700}[random() % 4];
    const Shape shape = shape_of(8, 2, 64, window);
    std::vector<SequenceRows> sequences;
    for (std::size_t i = 0; i < 1 + random() % 3; ++i) {
      sequences.push_back({.depth = static_cast<std::int64_t>(random() % 3000),
                           .rows = static_cast<int>(random() % 40)});
    }
    const Plan plan = plan_of(shape, sequences, device_of(1 + static_cast<int>(random() % 9)),
                              kAllPolicies[random() % kAllPolicies.size()]);
    std::map<std::pair<std::int64_t, int>, std::vector<int>>
        reads;  // (token, kv head) -> times each key is reduced
    for (const WorkItem& item : plan.items) {
      const RowTile& tile = plan.tiles[static_cast<std::size_t>(item.tile)];
      for (int row = 0; row < tile.rows; ++row) {
        const std::int64_t position = tile.position + row;
        std::vector<int>& counts = reads[{tile.token + row, item.kv_head}];
        counts.resize(static_cast<std::size_t>(position + 1), 0);
        for (std::int64_t key = std::int64_t{item.unit_first} * tile.unit;
             key < std::int64_t{item.unit_last} * tile.unit && key <= position; ++key) {
          if (key >= shape.first_key(position)) ++counts[static_cast<std::size_t>(key)];
        }
      }
    }
    std::int64_t token = 0;
    for (const SequenceRows& rows : sequences) {
      for (int row = 0; row < rows.rows; ++row, ++token) {
        for (int head = 0; head < shape.kv_heads; ++head) {
          const std::vector<int>& counts = reads[{token, head}];
          const std::int64_t position = rows.depth + row;
          ASSERT_EQ(counts.size(), static_cast<std::size_t>(position + 1));
          for (std::int64_t key = 0; key <= position; ++key) {
            const bool visible = window == 0 || key > position - window;
            ASSERT_EQ(counts[static_cast<std::size_t>(key)], visible ? 1 : 0)
                << "token " << token << " key " << key;
          }
        }
      }
    }
  }
}

/// Unit size of every row of a sequence.
std::vector<int> units_of_rows(const Plan& plan, int sequence) {
  std::vector<int> units;
  for (const RowTile& tile : plan.tiles) {
    if (tile.sequence == sequence)
      units.insert(units.end(), static_cast<std::size_t>(tile.rows), tile.unit);
  }
  return units;
}

TEST(Plan, GivesARowTheSameUnitsAloneInAVerifyBlockAndInABatch) {
  const Shape shape = shape_of(32, 4, 512);
  for (const std::int64_t depth :
       {0, 3, 2040, 2047, 2048, 2100, 2108, 2111, 2112, 16'384, 16'440, 131'072}) {
    const Plan block = plan_of(shape, {{.depth = depth, .rows = 9}}, device_of(2));
    const Plan batch = plan_of(
        shape, {{.depth = 50, .rows = 300}, {.depth = depth, .rows = 9}, {.depth = 9, .rows = 1}},
        device_of(64));
    EXPECT_EQ(units_of_rows(block, 0), units_of_rows(batch, 1));
    for (int row = 0; row < 9; ++row) {
      const Plan alone = plan_of(shape, {{.depth = depth + row, .rows = 1}}, device_of(132));
      EXPECT_EQ(alone.tiles[0].unit, units_of_rows(block, 0)[static_cast<std::size_t>(row)])
          << depth << " row " << row;
    }
  }
}

TEST(Plan, PutsRowsOnBothSidesOfAClassLimitIntoTilesOfTheirOwn) {
  const Shape shape = shape_of(16, 8, 256);
  const Plan plan =
      plan_of(shape, {{.depth = 2108, .rows = 8}}, device_of(2));  // class limit: 2112 keys
  ASSERT_EQ(plan.tiles.size(), 2u);
  EXPECT_EQ(plan.tiles[0].rows, 4);
  EXPECT_EQ(plan.tiles[0].unit, 64);
  EXPECT_EQ(plan.tiles[1].unit, 80);
}

TEST(Plan, IsTheSameValueForTheSameInputAndReusesItsStorage) {
  const Shape shape = shape_of(32, 16, 256, 1024);
  const std::vector<SequenceRows> sequences{{.depth = 60'000, .rows = 5},
                                            {.depth = 17, .rows = 40}};
  Plan reused = plan_of(shape_of(4, 1, 64), {{.depth = 1'000'000, .rows = 16}}, device_of(64));
  PlanInput input;
  input.shape = shape;
  input.sequences = sequences;
  ASSERT_TRUE(plan(input, device_of(64), reused).ok());
  EXPECT_EQ(to_json(reused).dump(), to_json(plan_of(shape, sequences, device_of(64))).dump());
  EXPECT_EQ(to_text(reused), to_text(plan_of(shape, sequences, device_of(64))));
}

TEST(Plan, RefusesAWorkspaceThatIsTooSmallWithBothSizes) {
  const std::vector<SequenceRows> sequences{{.depth = 32'768, .rows = 4}};
  PlanInput input;
  input.shape = shape_of(16, 8, 256);
  input.sequences = sequences;
  input.policy = Policy::kSegmented;
  Plan out;
  ASSERT_TRUE(plan(input, device_of(2), out).ok());
  const std::int64_t needed = out.partials;
  ASSERT_GT(needed, 0);
  input.max_partials = needed;
  EXPECT_TRUE(plan(input, device_of(2), out).ok());
  input.max_partials = needed - 1;
  const Status status = plan(input, device_of(2), out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNoMemory);
  EXPECT_NE(status.error().message.find(std::to_string(needed)), std::string::npos);
  EXPECT_NE(status.error().message.find(std::to_string(needed - 1)), std::string::npos);
}

TEST(Plan, RefusesShapesThatNoKernelRuns) {
  const std::vector<SequenceRows> sequences{{.depth = 0, .rows = 1}};
  for (const Shape& shape : {shape_of(5, 2, 64), shape_of(0, 0, 64), shape_of(4, 4, 65),
                             shape_of(34, 2, 64), shape_of(4, 4, 64, -1),
                             Shape{.q_heads = 4, .kv_heads = 4, .head_dim = 64, .page_size = 12}}) {
    PlanInput input;
    input.shape = shape;
    input.sequences = sequences;
    Plan out;
    const Status status = plan(input, device_of(2), out);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kUsage);
  }
}

TEST(Plan, HoldsAMillionKeysAndFourThousandRows) {
  const Plan plan =
      plan_of(shape_of(32, 4, 512), {{.depth = 1'044'480, .rows = 4096}}, device_of(500));
  EXPECT_EQ(plan.rows, 4096);
  EXPECT_GT(plan.operations, std::int64_t{4096} * 1'044'480 * 32 * 512 * 4);
}

TEST(Plan, OfAnEmptyStepIsEmpty) {
  EXPECT_EQ(plan_of(shape_of(4, 1, 64), {}, device_of(2)).workgroups(), 0);
  EXPECT_EQ(plan_of(shape_of(4, 1, 64), {{.depth = 100, .rows = 0}}, device_of(2)).workgroups(), 0);
}

TEST(Plan, CountsTheOperationsOfEveryVisibleKeyOfEveryRow) {
  for (const int window : {0, 1, 7, 100}) {
    for (const std::int64_t depth : {0, 3, 99, 100, 5000}) {
      const Shape shape = shape_of(8, 2, 64, window);
      const Plan plan = plan_of(shape, {{depth, 50}, {0, 0}, {depth, 1}}, device_of(4));
      std::int64_t visible = shape.visible_keys(depth);
      for (int row = 0; row < 50; ++row) visible += shape.visible_keys(depth + row);
      EXPECT_EQ(plan.operations, visible * 8 * 64 * 4) << window << " " << depth;
    }
  }
}

}  // namespace
}  // namespace segue::attention
