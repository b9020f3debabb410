// SPDX-License-Identifier: Apache-2.0
// The public classes on the CPU against data that a caller gets wrong, and against little stack.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace segue
