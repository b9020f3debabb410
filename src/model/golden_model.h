// SPDX-License-Identifier: Apache-2.0
// Test support: the random tiny Gemma 4 models of tests/golden/gemma4 and what was recorded of
// them and of the demonstration pair, and running a prompt through a model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "core/thread_pool.h"
#include "format/safetensors/safetensors.h"
#include "model/lm.h"

namespace segue::model {

inline std::string golden_folder(const std::string& variant) {
  return std::string(SEGUE_GOLDEN_DIR) + "/gemma4/" + variant;
}

template <class T>
std::vector<T> golden_values(const safetensors::Checkpoint& file, const std::string& name) {
  const safetensors::Tensor* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<T> out(tensor->bytes.size() / sizeof(T));
  std::memcpy(out.data(), tensor->bytes.data(), tensor->bytes.size());
  return out;
}

/// What the reference computed: rows of the recorded positions.
struct Golden {
  std::vector<std::int32_t> tokens, positions;
  std::vector<float> logits, hidden;  // [positions, vocab], [positions, hidden]

  explicit Golden(const std::string& variant) {
    const Result<safetensors::Checkpoint> file =
        safetensors::Checkpoint::open(golden_folder(variant) + "/golden.safetensors");
    EXPECT_TRUE(file.ok()) << file.error().message;
    if (!file.ok()) return;
    tokens = golden_values<std::int32_t>(*file, "tokens");
    positions = golden_values<std::int32_t>(*file, "positions");
    logits = golden_values<float>(*file, "logits");
    hidden = golden_values<float>(*file, "hidden");
  }
};

/// What the reference computed with the demonstration pair (models/segue-pair).
struct GoldenPair {
  core::Json document;
  std::vector<std::int32_t> tokens;  // the prompt and its continuation

  GoldenPair() {
    const Result<std::string> text =
        core::read_file(std::string(SEGUE_GOLDEN_DIR) + "/segue-pair.json");
    EXPECT_TRUE(text.ok()) << text.error().message;
    if (!text.ok()) return;
    document = core::Json::parse(*text).value();
    for (const char* part : {"prompt", "continuation"}) {
      for (const core::Json& token : *document.find(part)->as_array())
        tokens.push_back(static_cast<std::int32_t>(*token.as_int()));
    }
  }
};

/// Rows of logits against a reference's: grade C of core/tolerance.h.
class LogitsAgreement {
 public:
  /// One row of `vocab` each; the divergence is over the tokens that both looked at. The others, as
  /// many in each, are -infinity.
  void add(const float* theirs, const float* ours, std::size_t vocab) {
    const auto top = [vocab](const float* x) { return std::max_element(x, x + vocab) - x; };
    same_ += top(theirs) == top(ours) ? 1 : 0;
    EXPECT_EQ(std::count(theirs, theirs + vocab, -HUGE_VALF),
              std::count(ours, ours + vocab, -HUGE_VALF));
    std::vector<std::pair<double, double>> both;
    for (std::size_t i = 0; i < vocab; ++i) {
      if (theirs[i] == -HUGE_VALF || ours[i] == -HUGE_VALF) continue;
      both.emplace_back(static_cast<double>(theirs[i]), static_cast<double>(ours[i]));
    }
    double p_sum = 0, q_sum = 0;
    for (const auto& [a, b] : both) {
      p_sum += std::exp(a);
      q_sum += std::exp(b);
    }
    for (const auto& [a, b] : both)
      kl_ += std::exp(a) / p_sum * (a - std::log(p_sum) - (b - std::log(q_sum)));
    ++rows_;
  }
  int rows() const { return rows_; }
  double top1() const { return static_cast<double>(same_) / rows_; }
  double mean_kl() const { return kl_ / rows_; }

  void print(const char* what) const {
    std::printf("%s: top-1 %.4f, mean KL %.5f over %d rows\n", what, top1(), mean_kl(), rows_);
  }

 private:
  int rows_ = 0, same_ = 0;
  double kl_ = 0;
};

/// How a prompt goes through a model: steps of `chunk` rows, the last `decode` rows as generated.
struct Way {
  int chunk = 512;
  int decode = 0;
  KvType kv = KvType::kF32;
};

/// Every row of a prompt.
struct PromptRows {
  std::vector<float> logits, hidden;  // [tokens, vocab], [tokens, hidden]
};

inline PromptRows run_prompt(LanguageModel& model, std::span<const std::int32_t> tokens, Way way) {
  PromptRows rows;
  const auto total = static_cast<int>(tokens.size());
  Result<std::vector<kv::PoolSpec>> specs =
      kv::size_pools(model.pool_specs(way.kv, 16), {1, total, total});
  EXPECT_TRUE(specs.ok());
  kv::CacheOptions options;
  options.max_rows = total;
  options.poison = true;
  Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), options);
  EXPECT_TRUE(cache.ok()) << cache.error().message;
  if (!cache.ok()) return rows;
  const kv::SequenceId id = cache->create_sequence();
  for (int depth = 0; depth < total;) {
    const bool prefill = depth < total - way.decode;
    const int count = std::min(way.chunk, prefill ? total - way.decode - depth : total - depth);
    EXPECT_TRUE(cache->reserve(id, count).ok());
    const SequenceInput sequence{
        id, depth, tokens.subspan(static_cast<std::size_t>(depth), static_cast<std::size_t>(count)),
        prefill, count};
    StepInput input;
    input.cache = &*cache;
    input.sequences = std::span(&sequence, 1);
    const Result<StepOutput> output = model.forward(input);
    EXPECT_TRUE(output.ok() && output->rows == count);
    if (!output.ok()) return rows;
    const float* logits = output->logits;
    const float* hidden = output->hidden;
    rows.logits.insert(rows.logits.end(), logits, logits + count * model.config().vocab);
    rows.hidden.insert(rows.hidden.end(), hidden, hidden + count * model.config().hidden);
    cache->commit(id, count);
    depth += count;
  }
  EXPECT_EQ(cache->check_integrity(), "");
  return rows;
}

}  // namespace segue::model
