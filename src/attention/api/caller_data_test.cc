// SPDX-License-Identifier: Apache-2.0
// The public classes on the CPU against data that a caller gets wrong, and against little stack.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/kernel.h"
#include "core/guarded_bytes.h"
#include "segue/attention.h"

namespace segue {
namespace {

constexpr int kKeys = 100;  // of each of two sequences
constexpr int kPages = 40;

AttentionConfig config_of(KvLayout layout, KvType kv) {
  AttentionConfig config;
  config.threads = 2;
  config.q_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.kv = kv;
  config.io = KvType::kF32;
  config.layout = layout;
  return config;
}

/// Two sequences of one row each over a pool that ends where memory does.
struct Step {
  explicit Step(const AttentionConfig& config) {
    auto created = Attention::create(config);
    if (!created.ok()) {
      ADD_FAILURE() << created.error().message;
      return;
    }
    attention = std::move(created).value();
    AttentionLimits limits;
    limits.sequences = 2;
    limits.rows_per_sequence = config.decode_rows;
    limits.kv_len = kKeys;
    auto made = attention->make_plan(limits);
    if (!made.ok()) {
      ADD_FAILURE() << made.error().message;
      return;
    }
    plan = std::move(made).value();
    const std::vector<AttentionSequence> sequences(
        2, {.depth = kKeys - config.decode_rows, .rows = config.decode_rows});
    EXPECT_TRUE(plan->update(sequences).ok());
    const auto bytes = static_cast<std::size_t>(attention->page_bytes()) * kPages;
    std::vector<std::byte> filled(bytes);
    for (std::size_t i = 0; i < bytes; ++i) filled[i] = static_cast<std::byte>(i % 61);
    k.emplace(filled);
    v.emplace(filled);
    stride = (kKeys + config.page_size - 1) / config.page_size;
    for (int i = 0; i < 2 * stride; ++i) tables.push_back(kPages - 1 - i);
    const auto elements =
        static_cast<std::size_t>(2 * config.decode_rows * config.q_heads * config.head_dim);
    q.assign(elements, 0.01f);
    out.assign(elements, std::nanf(""));
    workspace.resize(plan->workspace_bytes());
  }

  AttentionCall call() {
    AttentionCall result;
    result.q = q.data();
    result.out = out.data();
    result.kv.k = const_cast<std::byte*>(k->view().data());  // run() reads
    result.kv.v = const_cast<std::byte*>(v->view().data());
    result.kv.pages = kPages;
    result.page_tables = tables.data();
    result.workspace = workspace.data();
    result.workspace_bytes = workspace.size();
    return result;
  }

  std::unique_ptr<Attention> attention;
  std::unique_ptr<AttentionPlan> plan;
  std::optional<core::GuardedBytes> k;  // all pages, nothing behind them
  std::optional<core::GuardedBytes> v;
  int stride = 0;
  std::vector<std::int32_t> tables;
  std::vector<float> q;
  std::vector<float> out;
  std::vector<std::byte> workspace;
};

/// Every layout and KV type with the kernel that the library chooses, and every kernel that serves
/// it.
std::vector<AttentionConfig> all_configs() {
  std::vector<AttentionConfig> configs;
  for (const KvLayout layout : {KvLayout::kDevice, KvLayout::kTokenMajor, KvLayout::kHeadMajor,
                                KvLayout::kTiled16, KvLayout::kSwizzled8}) {
    for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
      if (layout == KvLayout::kSwizzled8 && kv == KvType::kF32) continue;  // of 2-byte elements
      configs.push_back(config_of(layout, kv));
      for (const attention::Kernel* kernel : attention::kernels()) {
        AttentionConfig forced = configs.back();
        forced.kernel = kernel->name;
        if (Attention::create(forced).ok()) configs.push_back(std::move(forced));
      }
    }
  }
  return configs;
}

TEST(CallerData, APageOutsideThePoolIsNeverReadAndSpoilsNoOtherSequence) {
  for (const AttentionConfig& config : all_configs()) {
    Step step(config);
    ASSERT_TRUE(step.plan->run(step.call()).ok());
    const std::vector<float> good = step.out;
    for (const std::int32_t page : {-1, kPages, std::numeric_limits<std::int32_t>::max(),
                                    std::numeric_limits<std::int32_t>::min()}) {
      const std::int32_t kept = std::exchange(step.tables.back(), page);
      step.out.assign(step.out.size(), std::nanf(""));
      const Status status = step.plan->run(step.call());
      EXPECT_TRUE(status.ok()) << status.error().message;
      step.tables.back() = kept;
      const auto half = static_cast<std::ptrdiff_t>(good.size() / 2);
      EXPECT_TRUE(std::equal(good.begin(), good.begin() + half, step.out.begin()))
          << config.kernel << " page " << page << "\n"
          << step.plan->explain();
    }
  }
}

struct Strides {
  std::int64_t page, head, token;
};

/// The code of a run, and of an append, with these strides.
void expect_code(Step& step, const Strides& strides, bool good) {
  AttentionCall call = step.call();
  call.kv.page_stride = strides.page;
  call.kv.head_stride = strides.head;
  call.kv.token_stride = strides.token;
  const Status run = step.plan->run(call);
  EXPECT_EQ(run.ok(), good) << strides.page << " " << strides.head << " " << strides.token << "\n"
                            << step.plan->explain();
  if (run.ok()) return;
  EXPECT_EQ(run.error().code, ErrorCode::kUsage);
  EXPECT_NE(run.error().message.find("at least"), std::string::npos) << run.error().message;
  AttentionAppend append;
  append.k = append.v = step.q.data();
  append.kv = call.kv;
  append.page_tables = step.tables.data();
  const Status refused = step.plan->append(append);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUsage);
}

TEST(CallerData, StridesOfWhichElementsWouldOverlapAreRefusedWithWhatIsNeeded) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const AttentionConfig& config : all_configs()) {
    Step step(config);
    const std::int64_t page = step.attention->page_bytes();
    for (const std::int64_t bad :
         {std::int64_t{-4096}, std::int64_t{4}, page - 4, page + 1, -page, kHuge, -kHuge}) {
      expect_code(step, {bad, 0, 0}, false);
    }
    for (const std::int64_t bad : {std::int64_t{-4}, std::int64_t{4}, std::int64_t{1}, kHuge}) {
      expect_code(step, {0, bad, 0}, false);
      expect_code(step, {0, 0, bad}, false);
    }
    expect_code(step, {page / 2, 0, 0}, false);
    expect_code(step, {0, page, 0}, false);  // the second head would end in the next page
  }
  Step step(config_of(KvLayout::kHeadMajor, KvType::kF32));
  AttentionCall call = step.call();
  call.kv.page_stride = 4;
  EXPECT_EQ(step.plan->run(call).error().message,
            "KV strides of 4, 4096 and 256 bytes (page, head, token); head-major pages of this "
            "shape need at least 8192, 4096 and 256, multiples of 4 up to 1099511627776; a pool of "
            "40 pages");
}

TEST(CallerData, StridesThatEnginesUseServe) {
  // Dense ones; then pages that also hold V, rows with V beside them, and padding: fewer pages fit.
  for (const KvLayout layout : {KvLayout::kTokenMajor, KvLayout::kHeadMajor}) {
    Step step(config_of(layout, KvType::kF32));
    const std::int64_t page = step.attention->page_bytes();
    const std::int64_t row = 64 * 4;
    const bool token_major = layout == KvLayout::kTokenMajor;
    const Strides dense = token_major ? Strides{page, row, 2 * row} : Strides{page, page / 2, row};
    const Strides beside =
        token_major ? Strides{2 * page, row, 4 * row} : Strides{2 * page, page, 2 * row};
    for (std::int32_t& entry : step.tables) entry %= kPages / 4;
    expect_code(step, dense, true);
    expect_code(step, {2 * page, dense.head, dense.token}, true);
    expect_code(step, beside, true);
    expect_code(step, {3 * page + 64, dense.head, dense.token}, true);
  }
  // Of one head, the stride from head to head is nobody's.
  AttentionConfig config = config_of(KvLayout::kHeadMajor, KvType::kF32);
  config.kv_heads = 1;
  Step step(config);
  expect_code(step, {0, 4, 0}, true);
}

TEST(CallerData, RowsToAppendLieApart) {
  Step step(config_of(KvLayout::kHeadMajor, KvType::kF32));
  AttentionAppend append;
  append.k = append.v = step.q.data();
  append.kv = step.call().kv;
  append.page_tables = step.tables.data();
  for (const std::int64_t bad : {-512, 4, 511, 513}) {
    append.k_stride = bad;
    append.v_stride = 512;
    EXPECT_FALSE(step.plan->append(append).ok()) << bad;
    std::swap(append.k_stride, append.v_stride);
    EXPECT_FALSE(step.plan->append(append).ok()) << bad;
  }
}

TEST(CallerData, SizesBeyondWhatAStepCanHoldAreRefused) {
  AttentionConfig config = config_of(KvLayout::kSwizzled8, KvType::kF32);
  EXPECT_FALSE(Attention::create(config).ok()) << "of 2-byte elements";
  config.kv = KvType::kF16;
  config.head_dim = 80;
  EXPECT_FALSE(Attention::create(config).ok()) << "in lines of 64 dims";
  config = config_of(KvLayout::kDevice, KvType::kF32);
  config.page_size = std::numeric_limits<std::int32_t>::max() - 7;
  EXPECT_FALSE(Attention::create(config).ok());
  config = config_of(KvLayout::kDevice, KvType::kF32);
  config.q_heads = config.kv_heads = 1;
  const auto attention = Attention::create(config);
  ASSERT_TRUE(attention.ok());
  AttentionLimits limits;
  limits.kv_len = limits.rows_per_sequence = 1;
  limits.sequences = 1 << 24;  // rows alone would be few enough
  EXPECT_FALSE((*attention)->make_plan(limits).ok());
  limits.sequences = limits.rows_per_sequence = 1 << 20;
  limits.kv_len = 1 << 20;
  EXPECT_FALSE((*attention)->make_plan(limits).ok());
}

TEST(CallerData, ExplainNamesTheLayoutsWhereOnlyTheReferenceServes) {
  Step fast(config_of(KvLayout::kTiled16, KvType::kF32));
  EXPECT_EQ(fast.plan->explain().find("slow reference"), std::string::npos);
  Step slow(config_of(KvLayout::kSwizzled8, KvType::kF16));
  EXPECT_NE(slow.plan->explain().find("slow reference; a fast kernel serves this shape in layout "
                                      "tiled16"),
            std::string::npos)
      << slow.plan->explain();
}

void* run_step(void* context) {
  Step& step = *static_cast<Step*>(context);
  const Status status = step.plan->run(step.call());
  EXPECT_TRUE(status.ok()) << status.error().message;
  return nullptr;
}

TEST(CallerData, RunsOnTheStackThatTheHeaderNames) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's frames are larger";
#endif
  std::size_t kept = 0;
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_getattr_default_np(&attributes), 0);
  ASSERT_EQ(pthread_attr_getstacksize(&attributes, &kept), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{64} << 10), 0);
  ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);  // the pool's threads as well
  for (AttentionConfig& config : all_configs()) {
    config.q_heads = 16;
    config.head_dim = 512;
    config.decode_rows = 8;
    Step step(config);
    pthread_t caller;
    ASSERT_EQ(pthread_create(&caller, &attributes, run_step, &step), 0);
    ASSERT_EQ(pthread_join(caller, nullptr), 0);
    EXPECT_FALSE(std::isnan(step.out.back())) << config.kernel;
  }
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kept), 0);
  ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
  pthread_attr_destroy(&attributes);
}

}  // namespace
}  // namespace segue
