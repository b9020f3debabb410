// SPDX-License-Identifier: Apache-2.0
// The assistant on a GPU: its drafts against the float reference's on the CPU, a chain against
// steps, and the bits of a draft whatever it was computed with.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "core/tolerance.h"
#include "model/assistant.h"
#include "model/golden_model.h"

namespace segue::model {
namespace {

/// A target, its assistant and a cache with one sequence.
struct Pair {
  std::unique_ptr<LanguageModel> target;
  std::unique_ptr<Assistant> assistant;
  std::optional<kv::Cache> cache;

  Pair(const std::string& target_path, const std::string& assistant_path, core::ThreadPool& pool,
       const LoadOptions& options, int sequences) {
    auto model = LanguageModel::open(target_path, pool, options);
    EXPECT_TRUE(model.ok()) << model.error().message;
    target = std::move(model).value();
    auto drafts =
        Assistant::load(assistant_path, *target, pool, {options.isa, options.dequantise, {}});
    EXPECT_TRUE(drafts.ok()) << drafts.error().message;
    assistant = std::move(drafts).value();
    const bool gpu = options.device == Device::kCuda;
    const kv::Demand demand{sequences, 700, 700};
    auto specs = kv::size_pools(target->pool_specs(gpu ? KvType::kBF16 : KvType::kF32, 16), demand);
    EXPECT_TRUE(specs.ok());
    kv::CacheOptions cache_options;
    cache_options.max_rows = 700;
    cache_options.poison = true;  // keys that were never committed would show
    auto made = kv::Cache::create(std::move(specs).value(), cache_options);
    EXPECT_TRUE(made.ok()) << made.error().message;
    cache.emplace(std::move(made).value());
  }

  std::size_t vocab() const { return static_cast<std::size_t>(target->config().vocab); }
  std::size_t width() const { return static_cast<std::size_t>(target->config().hidden); }

  /// Reads `tokens` behind what is cached; the final hidden row of the last that stays. `stale`
  /// rows more are written and not committed, as a rejected draft leaves them.
  std::vector<float> read(kv::SequenceId id, std::span<const std::int32_t> tokens, int stale = 0) {
    EXPECT_TRUE(cache->reserve(id, std::ssize(tokens)).ok());
    const SequenceInput rows{id, cache->length(id), tokens, tokens.size() > 9, 1 + stale};
    StepInput input;
    input.cache = &*cache;
    input.sequences = std::span(&rows, 1);
    const Result<StepOutput> output = target->forward(input);
    EXPECT_TRUE(output.ok());
    cache->commit(id, std::ssize(tokens) - stale);
    return {output->hidden, output->hidden + width()};
  }
};

class GpuAssistant : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto gpu = device::gpu_facts(); !gpu.ok()) GTEST_SKIP() << gpu.error().message;
    tokens_ = GoldenPair().tokens;
    ASSERT_FALSE(tokens_.empty());
  }
  static LoadOptions on_gpu() {
    LoadOptions options;
    options.device = Device::kCuda;
    return options;
  }
  static LoadOptions in_float() {
    LoadOptions options;
    options.dequantise = true;
    return options;
  }
  Pair demonstration(const LoadOptions& options, int sequences = 1) {
    const std::string folder = std::string(SEGUE_MODELS_DIR) + "/segue-pair/";
    return {folder + "target", folder + "assistant", pool_, options, sequences};
  }
  Pair random_pair(const std::string& variant, const LoadOptions& options, int sequences = 1) {
    const std::string folder = golden_folder(variant);
    return {folder, folder + "/assistant", pool_, options, sequences};
  }

  core::ThreadPool pool_{2};
  std::vector<std::int32_t> tokens_;
};

/// After every prefix in `at`, k drafts along the reference's likeliest tokens.
LogitsAgreement compare(Pair& reference, Pair& found, std::span<const std::int32_t> tokens,
                        std::span<const int> at, int k) {
  LogitsAgreement agreement;
  const std::size_t vocab = reference.vocab(), width = reference.width();
  const kv::SequenceId theirs = reference.cache->create_sequence();
  const kv::SequenceId ours = found.cache->create_sequence();
  for (const int depth : at) {
    const auto cached = static_cast<std::size_t>(reference.cache->length(theirs));
    const auto unread = tokens.subspan(cached, static_cast<std::size_t>(depth) - cached);
    std::vector<float> their_hidden = reference.read(theirs, unread);
    std::vector<float> our_hidden = found.read(ours, unread);
    const AssistantSequence their_sequence{theirs, depth}, our_sequence{ours, depth};
    EXPECT_TRUE(reference.assistant->begin(*reference.cache, {&their_sequence, 1}).ok());
    EXPECT_TRUE(found.assistant->begin(*found.cache, {&our_sequence, 1}).ok());
    std::int32_t token = tokens[static_cast<std::size_t>(depth)];
    for (int j = 0; j < k; ++j) {
      const auto expected = reference.assistant->step({&token, 1}, their_hidden.data()).value();
      const auto output = found.assistant->step({&token, 1}, our_hidden.data()).value();
      agreement.add(expected.logits, output.logits, vocab);
      their_hidden.assign(expected.hidden, expected.hidden + width);
      our_hidden.assign(output.hidden, output.hidden + width);
      token = static_cast<std::int32_t>(std::max_element(expected.logits, expected.logits + vocab) -
                                        expected.logits);
    }
  }
  return agreement;
}

TEST_F(GpuAssistant, DraftsAreThoseOfTheFloatReference) {
  Pair reference = demonstration(in_float());
  Pair found = demonstration(on_gpu());
  std::vector<int> at{1, 2, 17, 255, 256, 257, 258};  // around the window
  for (int depth = 500; depth < 660; depth += 5) at.push_back(depth);
  const LogitsAgreement pair = compare(reference, found, tokens_, at, 8);
  pair.print("the demonstration pair");
  EXPECT_GE(pair.top1(), core::kLogitsTop1);
  EXPECT_LE(pair.mean_kl(), core::kLogitsMeanKl);
}

/// Tokens for the random pairs.
std::vector<std::int32_t> some_tokens() {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 150; ++i) tokens.push_back(4 + i * 37 % 150);
  return tokens;
}

/// The second has a head of centroids, and a target with per-layer embeddings.
TEST_F(GpuAssistant, DraftsOfRandomPairsAreThoseOfTheFloatReference) {
  std::vector<int> at;
  for (int depth = 1; depth < 150; depth += 4) at.push_back(depth);
  for (const char* variant : {"dense", "e2b"}) {
    Pair reference = random_pair(variant, in_float());
    Pair found = random_pair(variant, on_gpu());
    const LogitsAgreement tiny = compare(reference, found, some_tokens(), at, 4);
    tiny.print(variant);
    EXPECT_GE(tiny.top1(), core::kLogitsTop1) << variant;
    EXPECT_LE(tiny.mean_kl(), core::kLogitsMeanKl) << variant;
  }
}

/// A new `pair` with room for as many sequences as there are depths.
void check_chain(Pair& pair, std::span<const std::int32_t> text, std::span<const int> depths) {
  const auto count = depths.size();
  const std::size_t vocab = pair.vocab(), width = pair.width();
  std::vector<AssistantSequence> all;
  std::vector<float> hidden;
  std::vector<std::int32_t> newest;
  for (const int depth : depths) {
    const kv::SequenceId id = pair.cache->create_sequence();
    constexpr int kStale = 3;
    const std::vector<float> row =
        pair.read(id, text.first(static_cast<std::size_t>(depth + kStale)), kStale);
    hidden.insert(hidden.end(), row.begin(), row.end());
    all.push_back({id, depth});
    newest.push_back(text[static_cast<std::size_t>(depth)]);
  }
  // All together, in steps.
  constexpr int kDrafts = 8;
  std::vector<std::vector<float>> logits(kDrafts);  // [drafts][count, vocab]
  std::vector<std::vector<std::int32_t>> drafts(count);
  ASSERT_TRUE(pair.assistant->begin(*pair.cache, all).ok());
  std::vector<std::int32_t> tokens = newest;
  std::vector<float> feedback = hidden;
  for (int j = 0; j < kDrafts; ++j) {
    const auto output = pair.assistant->step(tokens, feedback.data()).value();
    logits[static_cast<std::size_t>(j)].assign(output.logits, output.logits + count * vocab);
    feedback.assign(output.hidden, output.hidden + count * width);
    for (std::size_t s = 0; s < count; ++s) {
      const float* row = output.logits + s * vocab;
      tokens[s] = static_cast<std::int32_t>(std::max_element(row, row + vocab) - row);
      drafts[s].push_back(tokens[s]);
    }
  }
  // Together in a chain.
  std::vector<std::int32_t> chained(count * kDrafts);
  ASSERT_TRUE(pair.assistant->begin(*pair.cache, all).ok());
  ASSERT_TRUE(pair.assistant->chain({newest, hidden.data(), {}, kDrafts, chained.data()}).ok());
  for (std::size_t s = 0; s < count; ++s) {
    const auto row = std::span(chained).subspan(s * kDrafts, kDrafts);
    EXPECT_TRUE(std::ranges::equal(row, drafts[s])) << "after " << depths[s] << " tokens";
  }
  // Alone, with other splits; begun twice, as after a draft that nobody waited for.
  for (std::size_t s = 0; s < count; ++s) {
    for (const int workgroups : {0, 1, 7}) {
      ASSERT_TRUE(pair.assistant->begin(*pair.cache, all).ok());
      ASSERT_TRUE(pair.assistant->begin(*pair.cache, {&all[s], 1}, workgroups).ok());
      std::vector<std::int32_t> alone(3);
      const float* row = hidden.data() + s * width;
      ASSERT_TRUE(pair.assistant->chain({{&newest[s], 1}, row, {}, 3, alone.data()}).ok());
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), drafts[s].begin()));
      const auto output = pair.assistant->step({&newest[s], 1}, row).value();
      const core::Verdict same = core::exact(std::span(output.logits, vocab),
                                             std::span(logits[0]).subspan(s * vocab, vocab));
      EXPECT_TRUE(same.ok) << depths[s] << ": " << same.message;
    }
  }
  // A suppressed token is never drafted, and what follows goes on from the one that is.
  const std::vector<std::int32_t> suppressed{drafts[5][0], drafts[5][1], drafts[0][0]};
  ASSERT_TRUE(pair.assistant->begin(*pair.cache, all).ok());
  std::vector<std::int32_t> without(count * kDrafts), by_steps = without;
  ASSERT_TRUE(
      pair.assistant->chain({newest, hidden.data(), suppressed, kDrafts, without.data()}).ok());
  // The base's chain is made of steps.
  ASSERT_TRUE(pair.assistant
                  ->Assistant::chain({newest, hidden.data(), suppressed, kDrafts, by_steps.data()})
                  .ok());
  EXPECT_EQ(without, by_steps);
  for (const std::int32_t id : suppressed) EXPECT_EQ(std::ranges::count(without, id), 0);
}

TEST_F(GpuAssistant, AChainIsStepsAndADraftDependsOnItsOwnSequenceOnly) {
  const std::array depths{1, 16, 17, 256, 257, 600};
  Pair pair = demonstration(on_gpu(), static_cast<int>(depths.size()));
  check_chain(pair, tokens_, depths);
}

TEST_F(GpuAssistant, SoItIsWithCentroids) {
  const std::array depths{1, 16, 17, 24, 25, 140};
  Pair pair = random_pair("e2b", on_gpu(), static_cast<int>(depths.size()));
  check_chain(pair, some_tokens(), depths);
}

}  // namespace
}  // namespace segue::model
