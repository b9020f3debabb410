// SPDX-License-Identifier: Apache-2.0
// The public classes on the CPU: the same bytes as the kernel table's rows, whatever the type of q
// and out, the capacity and the workspace; and messages for everything that cannot work.
#include "segue/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/synthetic.h"
#include "core/dtype.h"
#include "core/tolerance.h"

namespace segue {
namespace {

using attention::SequenceRows;
using attention::Synthetic;

attention::Shape small_shape(kv::Layout layout = kv::Layout::kTiled16) {
  return {.q_heads = 8, .kv_heads = 2, .head_dim = 64, .kv = KvType::kBF16, .layout = layout};
}

AttentionConfig config_of(const attention::Shape& shape) {
  AttentionConfig config;
  config.threads = 2;
  config.q_heads = shape.q_heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.window = shape.window;
  config.kv = shape.kv;
  config.io = KvType::kF32;
  config.page_size = shape.page_size;
  if (shape.layout == kv::Layout::kTokenMajor) config.layout = KvLayout::kTokenMajor;
  if (shape.layout == kv::Layout::kHeadMajor) config.layout = KvLayout::kHeadMajor;
  return config;
}

attention::SyntheticOptions options_of(const attention::Shape& shape,
                                       std::vector<SequenceRows> rows) {
  attention::SyntheticOptions options;
  options.shape = shape;
  options.sequences = std::move(rows);
  return options;
}

/// A synthetic problem behind the public API: tables in one array, outputs poisoned.
struct Step {
  Step(const attention::Shape& shape, std::vector<SequenceRows> rows)
      : problem(options_of(shape, std::move(rows))), params(problem.params()) {
    for (const SequenceRows& sequence : problem.options().sequences)
      sequences.push_back({sequence.depth, sequence.rows, sequence.prefill});
    for (std::size_t i = 0; i < sequences.size(); ++i)
      stride = std::max(stride, params.tables[i].count);
    tables.assign(sequences.size() * static_cast<std::size_t>(stride), 0x7fffffff);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      std::memcpy(tables.data() + i * static_cast<std::size_t>(stride), params.tables[i].pages,
                  static_cast<std::size_t>(params.tables[i].count) * sizeof(std::int32_t));
    }
    const auto heads =
        static_cast<std::size_t>(problem.rows()) * static_cast<std::size_t>(shape.q_heads);
    out.assign(heads * static_cast<std::size_t>(shape.head_dim), std::nanf(""));
    lse.assign(heads, std::nanf(""));
  }

  AttentionLimits limits(std::int64_t kv_len = 4096, int rows = 16) const {
    AttentionLimits result;
    result.sequences = static_cast<int>(sequences.size());
    result.rows_per_sequence = rows;
    result.kv_len = kv_len;
    result.table_stride = std::max<std::int32_t>(stride, static_cast<std::int32_t>(kv_len / 8));
    return result;
  }

  /// Tables in rows of another length.
  std::vector<std::int32_t> tables_of(std::int32_t wider) const {
    std::vector<std::int32_t> result(sequences.size() * static_cast<std::size_t>(wider),
                                     -0x7fffffff);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      std::copy_n(tables.begin() + static_cast<std::ptrdiff_t>(i) * stride, stride,
                  result.begin() + static_cast<std::ptrdiff_t>(i) * wider);
    }
    return result;
  }

  AttentionCall call(const AttentionPlan& plan, const std::vector<std::int32_t>& table_rows) {
    workspace.assign(plan.workspace_bytes(), std::byte{0xff});
    AttentionCall result;
    result.q = params.q;
    result.out = out.data();
    result.lse = lse.data();
    result.kv.k = params.kv.k;
    result.kv.v = params.kv.v;
    result.kv.pages = params.kv.pages;
    result.page_tables = table_rows.data();
    result.workspace = workspace.data();
    result.workspace_bytes = workspace.size();
    return result;
  }

  Synthetic problem;
  attention::Params params;
  std::vector<AttentionSequence> sequences;
  std::int32_t stride = 0;
  std::vector<std::int32_t> tables;
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<std::byte> workspace;
};

attention::LaunchResult expected_of(const Step& step) {
  attention::PlanInput input;
  input.shape = step.problem.options().shape;
  input.sequences = step.problem.options().sequences;
  attention::Plan plan;
  EXPECT_TRUE(attention::plan(input, attention::cpu_device(1), plan).ok());
  core::ThreadPool pool(1);
  return attention::launch(step.problem, plan, pool);
}

const std::vector<SequenceRows> kRagged{{1000, 5}, {0, 0}, {3, 1}, {2048, 16}, {17, 2}};

void run_once(Step& step, AttentionPlan& plan, std::int32_t stride) {
  ASSERT_TRUE(plan.update(step.sequences).ok());
  const std::vector<std::int32_t> tables = step.tables_of(stride);
  const Status status = plan.run(step.call(plan, tables));
  ASSERT_TRUE(status.ok()) << status.error().message;
}

TEST(AttentionApi, GivesTheBytesOfTheKernelsForRaggedSteps) {
  for (const kv::Layout layout :
       {kv::Layout::kTiled16, kv::Layout::kTokenMajor, kv::Layout::kHeadMajor}) {
    for (const int window : {0, 100}) {
      attention::Shape shape = small_shape(layout);
      shape.window = window;
      Step step(shape, kRagged);
      const auto attention = Attention::create(config_of(shape));
      ASSERT_TRUE(attention.ok()) << attention.error().message;
      const AttentionLimits limits = step.limits();
      const auto plan = (*attention)->make_plan(limits);
      ASSERT_TRUE(plan.ok()) << plan.error().message;
      run_once(step, **plan, limits.table_stride);
      const attention::LaunchResult expected = expected_of(step);
      EXPECT_TRUE(core::exact(step.out, expected.out).ok);
      EXPECT_TRUE(core::exact(step.lse, expected.lse).ok);
      EXPECT_EQ(step.problem.check_untouched(), "");
    }
  }
}

TEST(AttentionApi, GivesTheSameBytesWithinAnyWorkspace) {
  const attention::Shape shape = small_shape();
  Step step(shape, {{3000, 4}, {1500, 1}});
  AttentionConfig config = config_of(shape);
  config.threads = 7;
  const auto attention = Attention::create(config);
  ASSERT_TRUE(attention.ok());
  AttentionLimits limits = step.limits();
  std::vector<float> first;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1} << 22, std::size_t{1} << 16, std::size_t{1} << 10}) {
    limits.workspace_bytes = bytes;
    const auto plan = (*attention)->make_plan(limits);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    if (bytes > 0) {
      EXPECT_LE((*plan)->workspace_bytes(), bytes);
    }
    run_once(step, **plan, limits.table_stride);
    if (first.empty()) first = step.out;
    EXPECT_TRUE(core::exact(step.out, first).ok) << bytes;
    const bool says_so = (*plan)->explain().find("has no room for more") != std::string::npos;
    EXPECT_EQ(says_so, bytes > 0 && bytes < std::size_t{1} << 22) << (*plan)->explain();
  }
}

TEST(AttentionApi, APolicyThatSplitsByItsRuleRefusesStepsWithoutRoomAndGoesOn) {
  const attention::Shape shape = small_shape();
  Step step(shape, {{3000, 4}, {1500, 1}});
  AttentionConfig config = config_of(shape);
  config.policy = "segmented";
  const auto attention = Attention::create(config);
  ASSERT_TRUE(attention.ok());
  AttentionLimits limits = step.limits();
  limits.workspace_bytes = 1 << 14;
  const auto plan = (*attention)->make_plan(limits);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  const Status refused = (*plan)->update(step.sequences);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
  EXPECT_NE(refused.error().message.find("partials"), std::string::npos) << refused.error().message;
  const std::vector<std::int32_t> tables = step.tables_of(limits.table_stride);
  EXPECT_FALSE((*plan)->run(step.call(**plan, tables)).ok()) << "of the step that was refused";
  const AttentionSequence little{.depth = 20, .rows = 1};
  ASSERT_TRUE((*plan)->update({&little, 1}).ok());
  EXPECT_TRUE((*plan)->run(step.call(**plan, tables)).ok());
}

TEST(AttentionApi, RoundsQAndOutAtTheEdgesWhenTheyHaveTheKvType) {
  const attention::Shape shape = small_shape();
  Step step(shape, kRagged);
  const auto wide = Attention::create(config_of(shape));
  AttentionConfig config = config_of(shape);
  config.io = KvType::kBF16;
  const auto narrow = Attention::create(config);
  ASSERT_TRUE(wide.ok() && narrow.ok());
  const AttentionLimits limits = step.limits();
  const auto wide_plan = (*wide)->make_plan(limits);
  const auto narrow_plan = (*narrow)->make_plan(limits);
  ASSERT_TRUE(wide_plan.ok() && narrow_plan.ok());
  // Both see the same rounded queries.
  std::vector<std::uint16_t> q(step.out.size());
  std::vector<float> rounded(step.out.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = core::f32_to_bf16(step.params.q[i]);
    rounded[i] = core::bf16_to_f32(q[i]);
  }
  const std::vector<std::int32_t> tables = step.tables_of(limits.table_stride);
  ASSERT_TRUE((*wide_plan)->update(step.sequences).ok());
  AttentionCall call = step.call(**wide_plan, tables);
  call.q = rounded.data();
  ASSERT_TRUE((*wide_plan)->run(call).ok());
  std::vector<std::uint16_t> out(step.out.size(), 0xffff);
  ASSERT_TRUE((*narrow_plan)->update(step.sequences).ok());
  call = step.call(**narrow_plan, tables);
  call.q = q.data();
  call.out = out.data();
  ASSERT_TRUE((*narrow_plan)->run(call).ok());
  std::vector<std::uint16_t> expected(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) expected[i] = core::f32_to_bf16(step.out[i]);
  EXPECT_TRUE(core::exact(out, expected).ok);
}

TEST(AttentionApi, AppendsRowsToTheirPlacesAndWritesNothingElse) {
  for (const kv::Layout layout : {kv::Layout::kTiled16, kv::Layout::kTokenMajor}) {
    const attention::Shape shape = small_shape(layout);
    Step step(shape, kRagged);
    const auto attention = Attention::create(config_of(shape));
    ASSERT_TRUE(attention.ok());
    const AttentionLimits limits = step.limits();
    const auto plan = (*attention)->make_plan(limits);
    ASSERT_TRUE(plan.ok());
    ASSERT_TRUE((*plan)->update(step.sequences).ok());
    const std::vector<std::int32_t> tables = step.tables_of(limits.table_stride);
    // Rows of an even larger matrix, as a fused projection leaves them.
    const std::size_t width = std::size_t{2} * 64;
    std::vector<float> rows(static_cast<std::size_t>(step.problem.rows()) * 3 * width);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 251) - 100;
    const auto pool_bytes = static_cast<std::size_t>((*attention)->page_bytes()) *
                            static_cast<std::size_t>(step.params.kv.pages);
    std::vector<std::byte> k(pool_bytes, std::byte{0xff});
    std::vector<std::byte> v(pool_bytes, std::byte{0xff});
    AttentionAppend append;
    append.k = rows.data() + width;
    append.v = rows.data() + 2 * width;
    append.k_stride = append.v_stride = static_cast<std::int64_t>(3 * width * sizeof(float));
    append.kv = {.k = k.data(), .v = v.data(), .pages = step.params.kv.pages};
    append.page_tables = tables.data();
    const Status status = (*plan)->append(append);
    ASSERT_TRUE(status.ok()) << status.error().message;
    const auto element = [&](std::vector<std::byte>& pool, std::int64_t at) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, pool.data() + at, sizeof(bits));
      std::memset(pool.data() + at, 0xff, sizeof(bits));  // so that what is left was not ours
      return core::bf16_to_f32(bits);
    };
    std::size_t row = 0;
    for (std::size_t s = 0; s < step.sequences.size(); ++s) {
      for (int i = 0; i < step.sequences[s].rows; ++i, ++row) {
        const std::int64_t position = step.sequences[s].depth + i;
        const auto entry = s * static_cast<std::size_t>(limits.table_stride) +
                           static_cast<std::size_t>(position / shape.page_size);
        const std::int64_t page = tables[entry] * (*attention)->page_bytes();
        const int t = static_cast<int>(position % shape.page_size);
        for (std::size_t j = 0; j < width; ++j) {
          const int head = static_cast<int>(j / 64);
          const int d = static_cast<int>(j % 64);
          ASSERT_EQ(element(k, page + (*attention)->k_offset(head, t, d)),
                    rows[row * 3 * width + width + j]);
          ASSERT_EQ(element(v, page + (*attention)->v_offset(head, t, d)),
                    rows[row * 3 * width + 2 * width + j]);
        }
      }
    }
    const std::vector<std::byte> untouched(pool_bytes, std::byte{0xff});
    EXPECT_EQ(k, untouched);
    EXPECT_EQ(v, untouched);
  }
}

TEST(AttentionApi, PlacesElementsAsTheLayoutsSay) {
  const attention::Shape shape = small_shape();
  const auto attention = Attention::create(config_of(shape));
  ASSERT_TRUE(attention.ok());
  const kv::View view = Step(shape, {{100, 1}}).params.kv;
  EXPECT_EQ((*attention)->page_bytes(), view.page_stride);
  EXPECT_EQ((*attention)->k_offset(1, 9, 33), view.head_stride + view.k_offset(9, 33));
  EXPECT_EQ((*attention)->v_offset(1, 9, 33), view.head_stride + view.v_offset(9, 33));
  EXPECT_EQ((*attention)->config().layout, KvLayout::kTiled16);
  EXPECT_FLOAT_EQ((*attention)->config().scale, 0.125f);
}

TEST(AttentionApi, RefusesWhatCannotWorkAndSaysWhy) {
  const AttentionConfig good = config_of(small_shape());
  const auto refuses = [&](auto change, const char* part) {
    AttentionConfig config = good;
    change(config);
    const auto created = Attention::create(config);
    ASSERT_FALSE(created.ok()) << part;
    EXPECT_NE(created.error().message.find(part), std::string::npos) << created.error().message;
  };
  refuses([](AttentionConfig& c) { c.q_heads = 7; }, "do not divide");
  refuses([](AttentionConfig& c) { c.head_dim = 72; }, "head_dim 72");
  refuses([](AttentionConfig& c) { c.page_size = 12; }, "page size 12");
  refuses([](AttentionConfig& c) { c.scale = std::numeric_limits<float>::infinity(); }, "scale");
  refuses([](AttentionConfig& c) { c.softcap = -1; }, "softcap");
  refuses([](AttentionConfig& c) { c.policy = "fast"; }, "unknown policy 'fast'");
  refuses([](AttentionConfig& c) { c.kernel = "none.such"; }, "unknown kernel");
  refuses([](AttentionConfig& c) { c.io = KvType::kF16; }, "q and out in f16");
  refuses([](AttentionConfig& c) { c.threads = -1; }, "-1 threads");
  refuses([](AttentionConfig& c) { c.decode_rows = 0; }, "decode_rows");
  refuses([](AttentionConfig& c) { c.kv = static_cast<KvType>(9); }, "KV type");
}

TEST(AttentionApi, HoldsStepsToTheLimitsOfThePlan) {
  const attention::Shape shape = small_shape();
  Step step(shape, {{100, 4}});
  const auto attention = Attention::create(config_of(shape));
  ASSERT_TRUE(attention.ok());
  AttentionLimits limits = step.limits(128, 4);
  for (const auto& [change, part] : std::vector<std::pair<void (*)(AttentionLimits&), const char*>>{
           {[](AttentionLimits& l) { l.sequences = 0; }, "0 sequences"},
           {[](AttentionLimits& l) { l.rows_per_sequence = 2'000'000'000; },
            "limit of 2000000000 rows per sequence; allowed are 1 to 1073741823"},
           {[](AttentionLimits& l) { l.kv_len = 3; }, "kv_len limit 3"},
           {[](AttentionLimits& l) { l.kv_len = std::int64_t{1} << 40; }, "kv_len limit"},
           {[](AttentionLimits& l) { l.table_stride = 2; }, "page table rows of 2"}}) {
    AttentionLimits changed = limits;
    change(changed);
    const auto plan = (*attention)->make_plan(changed);
    ASSERT_FALSE(plan.ok()) << part;
    EXPECT_NE(plan.error().message.find(part), std::string::npos) << plan.error().message;
  }
  const auto plan = (*attention)->make_plan(limits);
  ASSERT_TRUE(plan.ok());
  const std::vector<std::int32_t> tables = step.tables_of(limits.table_stride);
  EXPECT_FALSE((*plan)->run(step.call(**plan, tables)).ok()) << "before update";
  using Sequences = std::vector<AttentionSequence>;
  for (const Sequences& bad : {Sequences{{100, 5}}, Sequences{{125, 4}}, Sequences{{-1, 1}},
                               Sequences{{1, -1}}, Sequences{{1, 1}, {1, 1}}}) {
    const Status status = (*plan)->update(bad);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kUsage);
  }
  ASSERT_TRUE((*plan)->update(step.sequences).ok());
  AttentionCall call = step.call(**plan, tables);
  EXPECT_TRUE((*plan)->run(call).ok());
  for (auto* member : {&call.q}) {
    const void* kept = std::exchange(*member, nullptr);
    EXPECT_FALSE((*plan)->run(call).ok());
    *member = kept;
  }
  call.workspace_bytes = 0;
  const Status small = (*plan)->run(call);
  EXPECT_EQ(small.ok(), (*plan)->workspace_bytes() == 0);
}

TEST(AttentionApi, SaysThatThereIsNoGpuWhereThereIsNone) {
  AttentionConfig config = config_of(small_shape());
  config.device = AttentionDevice::kCuda;
  config.io = config.kv;
  const auto created = Attention::create(config);
  if (created.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(created.error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(created.error().message.empty());
}

}  // namespace
}  // namespace segue
