// SPDX-License-Identifier: Apache-2.0
// Each policy sends a step where the engine it models would, and says which clause did.
#include "attention/policy.h"

#include <gtest/gtest.h>

#include "attention/checked_plan.h"

namespace segue::attention {
namespace {

const Shape kDirect{.q_heads = 16, .kv_heads = 8, .head_dim = 256};

Plan plan_of(Policy policy, int batch, int rows, int decode_rows = 1, std::int64_t depth = 32'768,
             const Shape& shape = kDirect, int multiprocessors = 2) {
  const std::vector<SequenceRows> sequences(static_cast<std::size_t>(batch),
                                            SequenceRows{.depth = depth, .rows = rows});
  return plan_of(shape, sequences, device_of(multiprocessors), policy, decode_rows);
}

TEST(Policy, NamesAreParsedBackAndAnUnknownOneListsThem) {
  for (const Policy policy : {Policy::kSegue, Policy::kStock, Policy::kPr45450, Policy::kPr47520,
                              Policy::kBatchInvariant, Policy::kWhole, Policy::kSegmented}) {
    const Result<Policy> parsed = parse_policy(policy_name(policy));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, policy);
  }
  const Result<Policy> unknown = parse_policy("fast");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kUsage);
  EXPECT_NE(unknown.error().message.find("segue, stock, pr45450"), std::string::npos);
}

TEST(Policy, StockGivesThePublishedWorkgroups) {
  const Plan one = plan_of(Policy::kStock, 1, 1);
  EXPECT_EQ(one.workgroups(), 128);
  EXPECT_EQ(one.verdict.path, Path::kSegmented);
  const Plan two = plan_of(Policy::kStock, 1, 2);
  EXPECT_EQ(two.workgroups(), 8);
  EXPECT_EQ(two.verdict.path, Path::kWhole);
  EXPECT_EQ(two.verdict.fired(), "max_seqlen_q > 1");
  EXPECT_EQ(two.verdict.clauses[0].values, "max_seqlen_q = 2");
}

TEST(Policy, StockGoesWholeAboveItsThresholdOfSequences) {
  EXPECT_EQ(plan_of(Policy::kStock, 16, 1).verdict.fired(), "");
  EXPECT_EQ(plan_of(Policy::kStock, 17, 1).verdict.fired(), "num_seqs > seq_threshold_3D");
  EXPECT_EQ(plan_of(Policy::kStock, 64, 1).verdict.fired(), "num_seqs > seq_threshold_3D");
}

TEST(Policy, Pr45450AdmitsVerifyRowsAndRefusesMore) {
  const Plan admitted = plan_of(Policy::kPr45450, 1, 2, 2);
  EXPECT_EQ(admitted.verdict.fired(), "");
  EXPECT_EQ(admitted.workgroups(), 128);
  const Plan refused = plan_of(Policy::kPr45450, 1, 3, 2);
  EXPECT_EQ(refused.verdict.fired(), "max_seqlen_q > decode_query_len");
  EXPECT_EQ(refused.workgroups(), 8);
}

TEST(Policy, Pr47520ReadsTheDevicesMultiprocessors) {
  EXPECT_EQ(plan_of(Policy::kPr47520, 16, 1, 1, 32'768, kDirect, 132).verdict.fired(), "");
  EXPECT_EQ(plan_of(Policy::kPr47520, 17, 1, 1, 32'768, kDirect, 132).verdict.fired(),
            "num_seqs > seq_threshold_3D");
  EXPECT_EQ(plan_of(Policy::kPr47520, 17, 1, 1, 32'768, kDirect, 264).verdict.fired(), "");
}

TEST(Policy, ForcedPathsAreForced) {
  EXPECT_EQ(plan_of(Policy::kWhole, 1, 1).workgroups(), 8);
  EXPECT_EQ(plan_of(Policy::kBatchInvariant, 1, 1).workgroups(), 8);
  EXPECT_EQ(plan_of(Policy::kBatchInvariant, 1, 1).verdict.fired(), "is_batch_invariant");
  EXPECT_EQ(plan_of(Policy::kSegmented, 1, 5).workgroups(), 128);
  EXPECT_EQ(plan_of(Policy::kSegmented, 64, 5).workgroups(), 64 * 128);
}

TEST(Policy, SegmentsOfStockCoverTheWholeLengthAndThoseOfPr45450TheWindow) {
  const Shape windowed{.q_heads = 16, .kv_heads = 8, .head_dim = 256, .window = 1024};
  const Plan stock = plan_of(Policy::kStock, 1, 1, 1, 60'000, windowed);
  EXPECT_LE(stock.workgroups(), 2 * 8);  // the window lies in one or two of the sixteen
  const Plan relative = plan_of(Policy::kPr45450, 1, 1, 1, 60'000, windowed);
  EXPECT_GE(relative.workgroups(), 16 * 8);
}

TEST(Policy, SegueHasNoClauseAndSplitsWhateverTheRowsAndTheBatch) {
  for (const int rows : {1, 2, 8}) {
    const Plan plan = plan_of(Policy::kSegue, 1, rows, 1, 32'768, kDirect, 132);
    EXPECT_TRUE(plan.verdict.clauses.empty());
    EXPECT_GE(plan.workgroups(), 128);
  }
  EXPECT_EQ(plan_of(Policy::kSegue, 20, 2, 1, 32'768,
                    Shape{.q_heads = 8, .kv_heads = 1, .head_dim = 128}, 132)
                .verdict.path,
            Path::kSegmented);
}

}  // namespace
}  // namespace segue::attention
