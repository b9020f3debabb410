// SPDX-License-Identifier: Apache-2.0
// Sweep, exactness, explain and shapes on small problems: what the documents hold, not how fast
// anything is.
#include <gtest/gtest.h>

#include "lab/exactness.h"
#include "lab/explain.h"
#include "lab/gpu.h"
#include "lab/shapes.h"
#include "lab/stats.h"
#include "lab/sweep.h"

namespace segue::lab {
namespace {

std::string text(const core::Json& json, std::string_view key) {
  const core::Json* member = json.find(key);
  return member != nullptr && member->as_string() != nullptr ? *member->as_string() : "";
}

ExplainOptions direct(attention::Policy policy, int rows, int batch = 1, int decode_rows = 1) {
  ExplainOptions options;
  options.shape = *parse_shape("16,8,256");
  options.policy = policy;
  options.rows = rows;
  options.batch = batch;
  options.decode_rows = decode_rows;
  return options;
}

std::string fired(const core::Json& json) {
  for (const core::Json& clause : *json.find("clauses")->as_array()) {
    if (*clause.find("fired")->as_bool()) return text(clause, "name");
  }
  return "";
}

TEST(Shapes, AreNumbersOrPublishedNames) {
  EXPECT_EQ(parse_shape("4,1,256")->shape.head_dim, 256);
  EXPECT_EQ(parse_shape("32,16,256,1024")->shape.window, 1024);
  EXPECT_EQ(parse_shape("gemma-4-31b-global")->shape.kv_heads, 4);
  EXPECT_EQ(parse_shape("gemma-4-31b-sliding-tp2")->shape.q_heads, 16);
  EXPECT_EQ(parse_shape("llama-70b")->shape.group(), 8);
  for (const std::string bad : {"", "4", "4,1", "4,1,256,", "4,1,256,0,1", "a,b,c", "5,2,256",
                                "4,1,250", "4,1,256,-1", "gemma-9"}) {
    const Result<NamedShape> shape = parse_shape(bad);
    ASSERT_FALSE(shape.ok()) << bad;
    EXPECT_EQ(shape.error().code, ErrorCode::kUsage) << bad;
  }
  EXPECT_NE(parse_shape("gemma-9").error().message.find("s-direct"), std::string::npos);
}

TEST(Explain, NamesTheClauseAndTheWorkgroups) {
  const Result<core::Json> two = explain(direct(attention::Policy::kStock, 2));
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(fired(*two), "max_seqlen_q > 1");
  EXPECT_EQ(number(*two, "workgroups"), 8);
  EXPECT_EQ(text(*two, "path"), "whole");
  const Result<core::Json> one = explain(direct(attention::Policy::kStock, 1));
  EXPECT_EQ(number(*one, "workgroups"), 128);
  EXPECT_EQ(fired(*explain(direct(attention::Policy::kStock, 1, 64))),
            "num_seqs > seq_threshold_3D");
  EXPECT_EQ(fired(*explain(direct(attention::Policy::kPr45450, 2, 1, 2))), "");
  const Result<std::string> page = explain_text(direct(attention::Policy::kStock, 2));
  ASSERT_TRUE(page.ok());
  EXPECT_NE(page->find("max_seqlen_q > 1"), std::string::npos);
  EXPECT_NE(page->find("max_seqlen_q = 2"), std::string::npos);
}

TEST(Explain, TakesAnotherDevicesWorkgroups) {
  ExplainOptions options = direct(attention::Policy::kSegue, 4);
  options.workgroups = 132;
  EXPECT_GE(number(*explain(options), "workgroups"), 110);
}

TEST(Explain, RefusesAnUnknownKernelWithTheNames) {
  ExplainOptions options = direct(attention::Policy::kSegue, 4);
  options.kernel = "gpu";
  const Result<core::Json> result = explain(options);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("reference"), std::string::npos);
}

TEST(Explain, PlansForAGpuThatIsNotHere) {
  ExplainOptions options = direct(attention::Policy::kSegue, 4);
  options.device = attention::DeviceKind::kCuda;
  options.device_facts = "h200";
  const Result<core::Json> json = explain(options);
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_EQ(text(*json->find("device"), "name"), "NVIDIA H200");
  EXPECT_EQ(number(*json->find("device"), "multiprocessors"), 132);
  EXPECT_TRUE(*json->find("device")->find("assumed")->as_bool());
  EXPECT_EQ(text(*json->find("shape"), "layout"), "swizzled8");
  EXPECT_EQ(number(*json, "workgroups"), 264);
  EXPECT_NE(explain_text(options)->find("NVIDIA H200, by its name"), std::string::npos);
  options.device_facts.clear();
  EXPECT_TRUE(explain(options).ok()) << "without a GPU the H200 is assumed";
  options.device_facts = "h20";
  ASSERT_FALSE(explain(options).ok());
  EXPECT_NE(explain(options).error().message.find("allowed are h200, a100"), std::string::npos);
  options.device_facts = "h200";
  options.device = attention::DeviceKind::kCpu;
  EXPECT_EQ(explain(options).error().code, ErrorCode::kUsage);
}

TEST(Explain, RefusesStepsThatNoMemoryCouldPlan) {
  ExplainOptions options;
  options.shape = *parse_shape("128,8,128");
  options.depth = 1 << 24;
  options.rows = 4096;
  options.batch = 4096;
  ASSERT_FALSE(explain(options).ok());
  EXPECT_EQ(explain(options).error().code, ErrorCode::kUsage);
  EXPECT_NE(explain(options).error().message.find("16777216 rows"), std::string::npos);
}

TEST(Gpu, SaysThatThereIsNoneWhereThereIsNone) {
  if (device::gpu_count() > 0) GTEST_SKIP() << "there is a GPU";
  SweepOptions sweep;
  sweep.device = attention::DeviceKind::kCuda;
  sweep.shapes = {*parse_shape("4,1,64")};
  sweep.depths = {100};
  sweep.rows = {1};
  sweep.policies = {attention::Policy::kSegue};
  ASSERT_FALSE(run_sweep(sweep).ok());
  EXPECT_EQ(run_sweep(sweep).error().code, ErrorCode::kUnsupported);
  ExactnessOptions exactness;
  exactness.device = attention::DeviceKind::kCuda;
  ASSERT_FALSE(run_exactness(exactness).ok());
  EXPECT_FALSE(run_exactness(exactness).error().message.empty());
}

TEST(Sweep, RefusesBatchesLayoutsAndFlagsThatTheCpuDoesNotHave) {
  SweepOptions options;
  options.shapes = {*parse_shape("4,1,64")};
  options.depths = {100};
  options.rows = {1};
  options.policies = {attention::Policy::kSegue};
  options.batches = {1, 2};
  EXPECT_EQ(run_sweep(options).error().code, ErrorCode::kUsage);
  options.batches = {1};
  options.layout = kv::Layout::kSwizzled8;
  EXPECT_EQ(run_sweep(options).error().code, ErrorCode::kUsage);
  options.layout = {};
  options.early_reads = true;
  EXPECT_EQ(run_sweep(options).error().code, ErrorCode::kUsage);
}

TEST(Kernels, AreListedForOneDevice) {
  const core::Json json = kernels_json(attention::DeviceKind::kCpu);
  for (const core::Json& row : *json.find("kernels")->as_array())
    EXPECT_EQ(text(row, "device"), "cpu");
#ifndef SEGUE_CUDA
  const core::Json none = kernels_json(attention::DeviceKind::kCuda);
  EXPECT_TRUE(none.find("kernels")->as_array()->empty());
#endif
}

TEST(Kernels, AreListedWithTheReferenceLast) {
  const core::Json json = kernels_json();
  const core::Json::Array& rows = *json.find("kernels")->as_array();
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(text(rows.back(), "name"), "reference");
  EXPECT_NE(kernels_table().find("reference"), std::string::npos);
}

TEST(Sweep, ChecksAndTimesEveryCell) {
  for (const CacheState cache : {CacheState::kWarm, CacheState::kCold}) {
    SweepOptions options;
    options.shapes = {*parse_shape("4,1,64"), *parse_shape("4,2,64,100")};
    options.depths = {40, 600};
    options.rows = {1, 3};
    options.policies = {attention::Policy::kSegue, attention::Policy::kStock};
    options.cache = cache;
    options.threads = 2;
    options.rounds = 2;
    const Result<core::Json> sweep = run_sweep(options);
    ASSERT_TRUE(sweep.ok()) << sweep.error().message;
    EXPECT_FALSE(*sweep->find("interrupted")->as_bool());
    EXPECT_GT(number(*sweep, "read_gbps"), 0);
    const core::Json::Array& cells = *sweep->find("cells")->as_array();
    ASSERT_EQ(cells.size(), 2u * 2 * 2 * 2);
    for (const core::Json& cell : cells) {
      EXPECT_EQ(cell.find("us")->find("samples")->as_array()->size(), 2u);
      EXPECT_GT(number(cell, "percent_of_read"), 0);
      EXPECT_GT(number(cell, "ratio_to_one_row"), 0);
      EXPECT_EQ(number(cell, "checked_rows"), number(cell, "rows"));
      if (text(cell, "policy") == "stock" && number(cell, "rows") == 3) {
        EXPECT_EQ(text(cell, "clause"), "max_seqlen_q > 1");
        EXPECT_EQ(text(cell, "path"), "whole");
      }
    }
    EXPECT_NE(sweep_table(*sweep).find("4,2,64,100"), std::string::npos);
  }
}

TEST(Sweep, TimesNaturalLayoutsWithTheKernelOfTheDeviceLayout) {
  SweepOptions options;
  options.shapes = {*parse_shape("4,2,64")};
  options.depths = {300};
  options.rows = {3};
  options.policies = {attention::Policy::kSegue};
  options.threads = 2;
  options.rounds = 2;
  std::string kernel;
  for (const kv::Layout layout :
       {kv::Layout::kTiled16, kv::Layout::kTokenMajor, kv::Layout::kHeadMajor}) {
    options.layout = layout;
    const Result<core::Json> sweep = run_sweep(options);
    ASSERT_TRUE(sweep.ok()) << sweep.error().message;
    const core::Json& cell = sweep->find("cells")->as_array()->front();
    EXPECT_EQ(text(cell, "layout"), kv::layout_name(layout));
    if (kernel.empty()) kernel = text(cell, "kernel");
    EXPECT_EQ(text(cell, "kernel"), kernel);
  }
}

TEST(Sweep, RefusesADepthBelowItsRows) {
  SweepOptions options;
  options.shapes = {*parse_shape("4,1,64")};
  options.depths = {2};
  options.rows = {4};
  options.policies = {attention::Policy::kSegue};
  const Result<core::Json> sweep = run_sweep(options);
  ASSERT_FALSE(sweep.ok());
  EXPECT_EQ(sweep.error().code, ErrorCode::kUsage);
}

SweepOptions small_sweep() {
  SweepOptions options;
  options.shapes = {*parse_shape("4,1,64")};
  options.depths = {40, 600};
  options.rows = {1};
  options.policies = {attention::Policy::kSegue};
  options.cache = CacheState::kWarm;
  options.threads = 1;
  options.rounds = 1000;
  return options;
}

TEST(Sweep, AnInterruptedOneKeepsTheSamplesThatWereTaken) {
  for (const int samples : {0, 2}) {
    SweepOptions options = small_sweep();
    int advanced = 0;  // by the fill and by every sample
    options.progress = [&](double) { ++advanced; };
    options.cancelled = [&] { return samples == 0 || advanced > samples; };
    const Result<core::Json> sweep = run_sweep(options);
    ASSERT_TRUE(sweep.ok()) << sweep.error().message;
    EXPECT_TRUE(*sweep->find("interrupted")->as_bool());
    const core::Json::Array& cells = *sweep->find("cells")->as_array();
    ASSERT_EQ(cells.size(), samples == 0 ? 0u : 1u);
    if (samples > 0) {
      EXPECT_EQ(cells[0].find("us")->find("samples")->as_array()->size(), 2u);
    }
  }
}

TEST(Sweep, AFillCanBeInterrupted) {
  SweepOptions options = small_sweep();
  options.depths = {100'000};
  options.rounds = 1;
  int asked = 0;
  options.cancelled = [&] { return ++asked == 100; };  // far more often than there are rounds
  const Result<core::Json> sweep = run_sweep(options);
  ASSERT_TRUE(sweep.ok()) << sweep.error().message;
  EXPECT_TRUE(*sweep->find("interrupted")->as_bool());
  EXPECT_TRUE(sweep->find("cells")->as_array()->empty());
}

TEST(Sweep, RefusesCachesThatTheMachineCannotHoldBeforeItFillsThem) {
  SweepOptions options = small_sweep();
  options.shapes = {*parse_shape("64,64,512")};
  options.depths = {std::int64_t{1} << 24};
  options.kv = KvType::kF32;
  const Result<core::Json> sweep = run_sweep(options);
  ASSERT_FALSE(sweep.ok());
  EXPECT_EQ(sweep.error().code, ErrorCode::kNoMemory);
  EXPECT_NE(sweep.error().message.find("8796093"), std::string::npos)  // 2 x 4 TiB, and buffers
      << sweep.error().message;
  EXPECT_NE(sweep.error().message.find("are available"), std::string::npos)
      << sweep.error().message;
}

TEST(Exactness, AnInterruptedOneKeepsTheCasesThatFinished) {
  ExactnessOptions options;
  options.cancelled = [left = 1]() mutable { return left-- <= 0; };
  const Result<core::Json> exactness = run_exactness(options);
  ASSERT_TRUE(exactness.ok());
  EXPECT_TRUE(*exactness->find("interrupted")->as_bool());
  EXPECT_EQ(exactness->find("cases")->as_array()->size(), 1u);
}

TEST(Exactness, RefusesAnUnknownKernel) {
  ExactnessOptions options;
  options.kernel = "gpu";
  EXPECT_FALSE(run_exactness(options).ok());
}

}  // namespace
}  // namespace segue::lab
