// SPDX-License-Identifier: Apache-2.0
// Situations that break other engines, as plans. Each test is one public report; the kernels are
// tried on the same situations in kernel_test.cc.
#include <gtest/gtest.h>

#include "attention/checked_plan.h"
#include "attention/unit.h"

namespace segue::attention {
namespace {

TEST(Situation1, APageSizeThatIsNoPowerOfTwoChangesNothingInThePlan) {
  Shape shape{.q_heads = 16, .kv_heads = 8, .head_dim = 256};
  const Plan usual = plan_of(shape, {{.depth = 32'768, .rows = 2}}, device_of(132));
  for (const int page_size : {784, 544, 1056, 1072}) {
    shape.page_size = page_size;
    const Plan plan = plan_of(shape, {{.depth = 32'768, .rows = 2}}, device_of(132));
    EXPECT_EQ(plan.workgroups(), usual.workgroups());
    EXPECT_EQ(plan.tiles[0].unit, usual.tiles[0].unit);
  }
}

TEST(Situation2, VerifyRowsOfAWindowedLayerSegmentTheWindowAndNotTheLength) {
  const Shape shape{.q_heads = 32, .kv_heads = 16, .head_dim = 256, .window = 1024};
  for (const Policy policy : {Policy::kSegue, Policy::kPr45450, Policy::kSegmented}) {
    const Plan plan = plan_of(shape, {{.depth = 60'000, .rows = 5}}, device_of(132), policy, 5);
    ASSERT_EQ(plan.tiles.size(), 1u);
    EXPECT_GE(plan.tiles[0].unit_first * std::int64_t{plan.tiles[0].unit},
              60'000 - 1024 - plan.tiles[0].unit);
    EXPECT_LE(plan.sequences[0].keys, 1024 + 5);
    EXPECT_GE(plan.workgroups(), 6 * 16) << policy_name(policy);  // three units at most each
  }
}

TEST(Situation3, APrefillChunkTakesTheSplitFromNoVerifyRequest) {
  const Shape shape{.q_heads = 16, .kv_heads = 8, .head_dim = 256};
  std::vector<SequenceRows> sequences{{.depth = 0, .rows = 2048, .prefill = true}};
  for (int i = 0; i < 7; ++i) sequences.push_back({.depth = 50'000, .rows = 4});
  const Plan mixed = plan_of(shape, sequences, device_of(500));
  for (std::size_t i = 1; i < sequences.size(); ++i) {
    EXPECT_EQ(mixed.sequences[i].path, Path::kSegmented);
    EXPECT_GE(mixed.sequences[i].segments, 3);
  }
  const Plan stock = plan_of(shape, sequences, device_of(500), Policy::kStock);
  EXPECT_EQ(stock.sequences[1].path, Path::kWhole);
}

TEST(Situation4, KeysAtAUnitBoundaryGiveNeitherAMissingNorASpareUnit) {
  const Shape shape{.q_heads = 4, .kv_heads = 1, .head_dim = 256};
  for (const std::int64_t keys : {63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 16'384, 16'385}) {
    const Plan plan = plan_of(shape, {{.depth = keys - 1, .rows = 1}}, device_of(2));
    EXPECT_EQ(plan.tiles[0].unit_last, (keys + plan.tiles[0].unit - 1) / plan.tiles[0].unit);
  }
}

TEST(Situation6, SixteenRowsAtHeadDim512KeepTheSplit) {
  for (const int group : {4, 8}) {
    const Shape shape{.q_heads = 4 * group, .kv_heads = 4, .head_dim = 512};
    const Plan one = plan_of(shape, {{.depth = 32'768, .rows = 1}}, device_of(132));
    for (int rows = 2; rows <= 16; ++rows) {
      const Plan plan = plan_of(shape, {{.depth = 32'768, .rows = rows}}, device_of(132));
      EXPECT_EQ(plan.sequences[0].path, Path::kSegmented);
      EXPECT_GE(plan.workgroups(), one.workgroups() * 3 / 4) << rows;
    }
  }
}

TEST(Situation7, GroupsOfOneAndFourKvHeadsArePlannedByTheirOwnHeads) {
  const std::vector<SequenceRows> step{{.depth = 50'000, .rows = 2}};
  const Plan one = plan_of({.q_heads = 16, .kv_heads = 1, .head_dim = 256}, step, device_of(132));
  const Plan four = plan_of({.q_heads = 16, .kv_heads = 4, .head_dim = 512}, step, device_of(132));
  EXPECT_GE(one.workgroups(), 100);
  EXPECT_GE(four.workgroups(), 100);
  EXPECT_EQ(one.sequences[0].segments, one.workgroups());
  EXPECT_EQ(four.sequences[0].segments * 4, four.workgroups());
}

TEST(Situation8, SequencesOfDifferentRowCountsGetDisjointPartials) {
  const Shape shape{.q_heads = 16, .kv_heads = 8, .head_dim = 128};
  std::vector<SequenceRows> sequences;
  for (const int rows : {3, 1, 9, 0, 16, 2})
    sequences.push_back({.depth = 20'000 + 7 * rows, .rows = rows});
  for (const Policy policy : {Policy::kSegue, Policy::kSegmented}) {
    EXPECT_GT(plan_of(shape, sequences, device_of(500), policy).partials, 0);
  }
}

TEST(Situation9, AContextShorterThanTheVerifyBlockIsOneTile) {
  const Plan plan = plan_of({.q_heads = 4, .kv_heads = 1, .head_dim = 256},
                            {{.depth = 3, .rows = 5}}, device_of(2));
  ASSERT_EQ(plan.tiles.size(), 1u);
  EXPECT_EQ(plan.tiles[0].unit_last, 1);
  EXPECT_EQ(plan.workgroups(), 1);
}

TEST(Situation11, ARowHasOneUnitSizeWhateverTheBlockItIsIn) {
  const Shape shape{.q_heads = 4, .kv_heads = 1, .head_dim = 256};
  for (const std::int64_t depth : {2048, 7168, 16'384}) {
    const int alone = plan_of(shape, {{.depth = depth, .rows = 1}}, device_of(2)).tiles[0].unit;
    for (int rows = 1; rows <= 9; ++rows) {
      EXPECT_EQ(plan_of(shape, {{.depth = depth, .rows = rows}}, device_of(2)).tiles[0].unit,
                alone);
    }
  }
}

TEST(Situation12, ARequestKeepsItsUnitsInEveryBatch) {
  const Shape shape{.q_heads = 16, .kv_heads = 8, .head_dim = 256};
  const int alone = plan_of(shape, {{.depth = 10'000, .rows = 3}}, device_of(132)).tiles[0].unit;
  for (const int batch : {2, 7, 32}) {
    std::vector<SequenceRows> sequences(static_cast<std::size_t>(batch), {.depth = 700, .rows = 1});
    sequences.back() = {.depth = 10'000, .rows = 3};
    const Plan plan = plan_of(shape, sequences, device_of(132));
    EXPECT_EQ(plan.tiles.back().unit, alone);
  }
}

TEST(Situation13, SixteenRowsAreOneTileAndACanvasOf256RowsIsSpreadOverTheDevice) {
  const Shape shape{.q_heads = 16, .kv_heads = 4, .head_dim = 256};
  for (int rows = 9; rows <= 16; ++rows) {
    EXPECT_EQ(plan_of(shape, {{.depth = 32'768, .rows = rows}}, device_of(132)).tiles.size(), 1u);
  }
  const Plan canvas = plan_of(shape, {{.depth = 32'768, .rows = 256}}, device_of(132));
  EXPECT_GE(canvas.workgroups(), 120);
}

}  // namespace
}  // namespace segue::attention
