// SPDX-License-Identifier: Apache-2.0
// Gemma 4 against transformers in float32, on the random tiny models of tests/golden/gemma4.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/thread_pool.h"
#include "core/tolerance.h"
#include "format/safetensors/safetensors.h"
#include "model/lm.h"

namespace segue::model {
namespace {

std::string folder(const std::string& variant) {
  return std::string(SEGUE_GOLDEN_DIR) + "/gemma4/" + variant;
}

template <class T>
std::vector<T> values(const safetensors::Checkpoint& file, const std::string& name) {
  const safetensors::Tensor* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<T> out(tensor->bytes.size() / sizeof(T));
  std::memcpy(out.data(), tensor->bytes.data(), tensor->bytes.size());
  return out;
}

/// Largest error of a row as a part of the largest magnitude of the reference.
double worst(std::span<const float> found, std::span<const float> expected, double largest) {
  double error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double off = std::fabs(static_cast<double>(found[i]) - static_cast<double>(expected[i]));
    error = std::isnan(off) ? 1e30 : std::max(error, off);
  }
  return error / largest;
}

double largest_of(std::span<const float> all) {
  double largest = 0;
  for (float value : all) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  return largest;
}

class Gemma4 : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string path = folder(GetParam());
    Result<Config> config = read_config(path);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const Result<safetensors::Checkpoint> checkpoint = safetensors::Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    LoadOptions options;
    options.dequantise = true;
    Result<std::unique_ptr<LanguageModel>> model =
        LanguageModel::load(*config, *folder_tensors(*checkpoint), pool_, options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(model).value();
    Result<safetensors::Checkpoint> golden =
        safetensors::Checkpoint::open(path + "/golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    tokens_ = values<std::int32_t>(*golden, "tokens");
    positions_ = values<std::int32_t>(*golden, "positions");
    logits_ = values<float>(*golden, "logits");
    hidden_ = values<float>(*golden, "hidden");
  }

  kv::Cache make_cache(int page) {
    kv::Demand demand{1, std::ssize(tokens_), static_cast<int>(tokens_.size())};
    Result<std::vector<kv::PoolSpec>> specs =
        kv::size_pools(model_->pool_specs(KvType::kF32, page), demand);
    EXPECT_TRUE(specs.ok());
    kv::CacheOptions options;
    options.max_rows = demand.max_rows;
    options.poison = true;
    Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), options);
    EXPECT_TRUE(cache.ok()) << cache.error().message;
    return std::move(cache).value();
  }

  /// Runs the prompt in steps of `chunk` rows, logits of every row; the last `decode` rows as
  /// generated ones. Appends to `logits` and `hidden`.
  void run(int chunk, int decode, std::vector<float>& logits, std::vector<float>& hidden) {
    kv::Cache cache = make_cache(16);
    const kv::SequenceId id = cache.create_sequence();
    const auto total = static_cast<int>(tokens_.size());
    for (int depth = 0; depth < total;) {
      const bool prefill = depth < total - decode;
      const int rows = std::min(chunk, prefill ? total - decode - depth : total - depth);
      ASSERT_TRUE(cache.reserve(id, rows).ok());
      const SequenceInput sequence{
          id, depth, std::span<const std::int32_t>(tokens_).subspan(depth, rows), prefill, rows};
      StepInput input;
      input.cache = &cache;
      input.sequences = std::span(&sequence, 1);
      const Result<StepOutput> output = model_->forward(input);
      ASSERT_TRUE(output.ok()) << output.error().message;
      ASSERT_EQ(output->rows, rows);
      const std::int64_t vocab = model_->config().vocab, width = model_->config().hidden;
      logits.insert(logits.end(), output->logits, output->logits + rows * vocab);
      hidden.insert(hidden.end(), output->hidden, output->hidden + rows * width);
      cache.commit(id, rows);
      depth += rows;
    }
    EXPECT_EQ(cache.check_integrity(), "");
  }

  /// Compares the recorded positions.
  double worst_of(std::span<const float> found, std::span<const float> recorded, std::int64_t n) {
    double error = 0;
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      error = std::max(
          error, worst(found.subspan(positions_[i] * n, n),
                       recorded.subspan(i * static_cast<std::size_t>(n), n), largest_of(recorded)));
    }
    return error;
  }

  core::ThreadPool pool_{1};
  std::unique_ptr<LanguageModel> model_;
  std::vector<std::int32_t> tokens_, positions_;
  std::vector<float> logits_, hidden_;
};

TEST_P(Gemma4, LogitsAndHiddenRowsAreThoseOfTheReference) {
  struct Way {
    int chunk, decode;
  };
  std::vector<float> first;
  for (const Way way : {Way{512, 0}, Way{7, 0}, Way{5, 40}, Way{1, 90}}) {
    std::vector<float> logits, hidden;
    run(way.chunk, way.decode, logits, hidden);
    ASSERT_EQ(logits.size(), tokens_.size() * static_cast<std::size_t>(model_->config().vocab));
    const double logits_error = worst_of(logits, logits_, model_->config().vocab);
    const double hidden_error = worst_of(hidden, hidden_, model_->config().hidden);
    EXPECT_LT(logits_error, core::kFloatModel) << "chunk " << way.chunk;
    EXPECT_LT(hidden_error, core::kFloatModel) << "chunk " << way.chunk;
    RecordProperty(fmt::format("worst_{}", way.chunk), fmt::format("{:.2e}", logits_error));
    if (first.empty()) first = logits;
    const core::Verdict same = core::exact(logits, first);
    EXPECT_TRUE(way.decode > 0 || same.ok) << same.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Gemma4,
                         testing::Values("dense", "dense-w4a16", "e2b", "e4b", "moe"),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::erase(text, '-');
                           return text;
                         });

}  // namespace
}  // namespace segue::model
