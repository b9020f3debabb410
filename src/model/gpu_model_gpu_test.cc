// SPDX-License-Identifier: Apache-2.0
// LanguageModel on a GPU: the logits of the demonstration target and of the random tiny models of
// tests/golden/gemma4 against the float reference, and the bits of a row whatever it was computed
// with.
#include <gtest/gtest.h>

#include "core/tolerance.h"
#include "model/golden_model.h"

namespace segue::model {
namespace {

class GpuModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto gpu = device::gpu_facts(); !gpu.ok()) GTEST_SKIP() << gpu.error().message;
    tokens_ = GoldenPair().tokens;
    ASSERT_FALSE(tokens_.empty());
  }
  std::unique_ptr<LanguageModel> open(const LoadOptions& options) {
    auto model =
        LanguageModel::open(std::string(SEGUE_MODELS_DIR) + "/segue-pair/target", pool_, options);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return std::move(model).value();
  }
  std::unique_ptr<LanguageModel> on_gpu() {
    LoadOptions options;
    options.device = Device::kCuda;
    return open(options);
  }

  core::ThreadPool pool_{2};
  std::vector<std::int32_t> tokens_;
};

TEST_F(GpuModel, LogitsAreThoseOfTheFloatReference) {
  LoadOptions in_float;
  in_float.dequantise = true;
  const auto reference = open(in_float);
  const auto model = on_gpu();
  const std::vector<float> expected = run_prompt(*reference, tokens_, {512, 0}).logits;
  const std::vector<float> found = run_prompt(*model, tokens_, {512, 0, KvType::kBF16}).logits;
  ASSERT_EQ(found.size(), expected.size());
  const auto vocab = static_cast<std::size_t>(model->config().vocab);
  LogitsAgreement agreement;
  for (std::size_t row = 0; row < tokens_.size(); ++row)
    agreement.add(expected.data() + row * vocab, found.data() + row * vocab, vocab);
  agreement.print("the demonstration target");
  EXPECT_GE(agreement.top1(), core::kLogitsTop1);
  EXPECT_LE(agreement.mean_kl(), core::kLogitsMeanKl);
}

void expect_equal(const PromptRows& found, const PromptRows& expected) {
  const core::Verdict logits = core::exact(found.logits, expected.logits);
  EXPECT_TRUE(logits.ok) << logits.message;
  const core::Verdict hidden = core::exact(found.hidden, expected.hidden);
  EXPECT_TRUE(hidden.ok) << hidden.message;
}

/// Whatever the chunk and the rows beside it. Steps that return are replayed graphs.
void expect_bits_of_rows(LanguageModel& model, std::span<const std::int32_t> tokens) {
  const PromptRows prompt = run_prompt(model, tokens, {512, 0, KvType::kBF16});
  for (const int chunk : {1, 7, 64, 130})
    expect_equal(run_prompt(model, tokens, {chunk, 0, KvType::kBF16}), prompt);
  const PromptRows decoded = run_prompt(model, tokens, {1, 90, KvType::kBF16});
  for (const int rows : {2, 3, 5, 9, 16, 33})
    expect_equal(run_prompt(model, tokens, {rows, 90, KvType::kBF16}), decoded);
}

TEST_F(GpuModel, ARowHasItsBitsWhateverTheChunkAndTheRowsBesideIt) {
  expect_bits_of_rows(*on_gpu(), tokens_);
}

/// Steps of one row, of two, .. in turns: a step that was recorded has the bits that it had before,
/// whatever was recorded since, and says how long attention took.
TEST_F(GpuModel, AStepThatReturnsIsReplayedWithItsBitsAndItsTimes) {
  const auto model = on_gpu();
  const auto vocab = static_cast<std::size_t>(model->config().vocab);
  const PromptRows expected = run_prompt(*model, tokens_, {33, 90, KvType::kBF16});
  ASSERT_EQ(expected.logits.size(), tokens_.size() * vocab);
  Result<std::vector<kv::PoolSpec>> specs =
      kv::size_pools(model->pool_specs(KvType::kBF16, 16), {1, std::ssize(tokens_), 200});
  ASSERT_TRUE(specs.ok());
  Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), {.max_rows = 200});
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  const kv::SequenceId id = cache->create_sequence();
  const auto begin = static_cast<std::int64_t>(tokens_.size()) - 90;
  int recorded = 0;
  const auto step = [&](std::int64_t rows, bool prefill) {
    const std::int64_t depth = cache->length(id);
    ASSERT_TRUE(cache->reserve(id, rows).ok());
    const SequenceInput sequence{
        id, depth,
        std::span(tokens_).subspan(static_cast<std::size_t>(depth), static_cast<std::size_t>(rows)),
        prefill, prefill ? 0 : static_cast<int>(rows)};
    StepInput input;
    input.cache = &*cache;
    input.sequences = std::span(&sequence, 1);
    const Result<StepOutput> output = model->forward(input);
    ASSERT_TRUE(output.ok()) << output.error().message;
    cache->commit(id, rows);
    recorded += output->recording_us > 0 ? 1 : 0;
    for (const GroupRecord& group : output->groups) {
      EXPECT_GT(group.attention_us, 0);
      EXPECT_LT(group.attention_us, 1e6);
    }
    if (prefill) return;
    const auto at = static_cast<std::size_t>(depth) * vocab;
    const core::Verdict verdict = core::exact(
        std::vector<float>(output->logits, output->logits + rows * model->config().vocab),
        std::vector<float>(
            expected.logits.begin() + static_cast<std::ptrdiff_t>(at),
            expected.logits.begin() +
                static_cast<std::ptrdiff_t>(at + static_cast<std::size_t>(rows) * vocab)));
    EXPECT_TRUE(verdict.ok) << rows << " rows at " << depth << ": " << verdict.message;
  };
  while (!HasFatalFailure() && cache->length(id) < begin)
    step(std::min<std::int64_t>(130, begin - cache->length(id)), true);
  for (int turn = 0; turn < 4; ++turn) {
    for (const std::int64_t rows : {1, 2, 3, 5, 9}) step(rows, false);
  }
  EXPECT_GE(recorded, 5);
  EXPECT_LT(recorded, 15) << "as many steps were recorded anew as replayed";
}

/// Asked after its first layer and after its last.
TEST_F(GpuModel, ALongStepThatIsCancelledLeavesNothingBehind) {
  const auto model = on_gpu();
  constexpr std::int64_t kRows = 2200;
  std::vector<std::int32_t> tokens;
  while (std::ssize(tokens) < kRows) tokens.insert(tokens.end(), tokens_.begin(), tokens_.end());
  const auto specs = kv::size_pools(model->pool_specs(KvType::kBF16, 16), {1, kRows, kRows});
  ASSERT_TRUE(specs.ok());
  Result<kv::Cache> cache = kv::Cache::create(*specs, {.max_rows = kRows});
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  const SequenceInput sequence{cache->create_sequence(), 0, std::span(tokens).first(kRows), true,
                               1};
  ASSERT_TRUE(cache->reserve(sequence.id, kRows).ok());
  StepInput input;
  input.cache = &*cache;
  input.sequences = std::span(&sequence, 1);
  const auto logits = [&] {
    const Result<StepOutput> output = model->forward(input);
    EXPECT_TRUE(output.ok());
    return std::vector<float>(output->logits, output->logits + model->config().vocab);
  };
  const std::vector<float> expected = logits();
  for (const int layer : {1, model->config().layer_count()}) {
    int asked = 0;
    input.cancelled = [&] { return ++asked == layer; };
    const Result<StepOutput> output = model->forward(input);
    ASSERT_FALSE(output.ok());
    EXPECT_EQ(output.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(asked, layer);
    input.cancelled = {};
    const core::Verdict verdict = core::exact(logits(), expected);
    EXPECT_TRUE(verdict.ok) << verdict.message;
  }
}

TEST_F(GpuModel, AnEmbeddingIsThatOfTheTable) {
  const auto reference = open({});
  const auto model = on_gpu();
  std::vector<float> expected(static_cast<std::size_t>(model->config().hidden)), found = expected;
  reference->embed_token(17, expected.data());
  model->embed_token(17, found.data());
  const core::Verdict verdict = core::exact(found, expected);  // the file has it in bf16
  EXPECT_TRUE(verdict.ok) << verdict.message;
}

/// Per-layer embeddings, layers without K and V of their own, MLPs of two widths.
class GpuGemma4 : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto gpu = device::gpu_facts(); !gpu.ok()) GTEST_SKIP() << gpu.error().message;
  }
  std::unique_ptr<LanguageModel> on_gpu() {
    LoadOptions options;
    options.device = Device::kCuda;
    auto model = LanguageModel::open(golden_folder(GetParam()), pool_, options);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return std::move(model).value();
  }

  core::ThreadPool pool_{2};
};

TEST_P(GpuGemma4, LogitsAreThoseOfTheReference) {
  const Golden golden(GetParam());
  const auto model = on_gpu();
  const auto vocab = static_cast<std::size_t>(model->config().vocab);
  for (const Way way : {Way{512, 0, KvType::kBF16}, Way{5, 90, KvType::kBF16}}) {
    const std::vector<float> found = run_prompt(*model, golden.tokens, way).logits;
    ASSERT_EQ(found.size(), golden.tokens.size() * vocab);
    LogitsAgreement agreement;
    for (std::size_t i = 0; i < golden.positions.size(); ++i) {
      const auto row = static_cast<std::size_t>(golden.positions[i]);
      agreement.add(golden.logits.data() + i * vocab, found.data() + row * vocab, vocab);
    }
    agreement.print(GetParam().c_str());
    EXPECT_GE(agreement.top1(), core::kLogitsTop1);
    EXPECT_LE(agreement.mean_kl(), core::kLogitsMeanKl);
  }
}

TEST_P(GpuGemma4, ARowHasItsBitsWhateverTheChunkAndTheRowsBesideIt) {
  const Golden golden(GetParam());
  expect_bits_of_rows(*on_gpu(), golden.tokens);
}

/// A sequence of a batch has the bits that it has alone: tokens differ from row to row.
TEST_P(GpuGemma4, ASequenceHasItsBitsAmongOthers) {
  const Golden golden(GetParam());
  const auto model = on_gpu();
  const auto vocab = static_cast<std::size_t>(model->config().vocab);
  constexpr int kSequences = 3;
  const auto specs =
      kv::size_pools(model->pool_specs(KvType::kBF16, 16), {kSequences, 40, 64}).value();
  kv::Cache cache = kv::Cache::create(specs, {.max_rows = 64}).value();
  std::vector<SequenceInput> sequences;
  for (const int count : {9, 17, 30}) {
    const std::span tokens = std::span<const std::int32_t>(golden.tokens)
                                 .subspan(static_cast<std::size_t>(count), 30)
                                 .first(static_cast<std::size_t>(count));
    sequences.push_back({cache.create_sequence(), 0, tokens, true, 1});
    ASSERT_TRUE(cache.reserve(sequences.back().id, count).ok());
  }
  StepInput input;
  input.cache = &cache;
  input.sequences = sequences;
  const StepOutput together = model->forward(input).value();
  const std::vector<float> all(together.logits, together.logits + kSequences * vocab);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    input.sequences = std::span(&sequences[i], 1);
    const StepOutput alone = model->forward(input).value();
    const core::Verdict same =
        core::exact(std::vector<float>(alone.logits, alone.logits + vocab),
                    std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                                       all.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab)));
    EXPECT_TRUE(same.ok) << "sequence " << i << ": " << same.message;
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string text = info.param;
  std::erase(text, '-');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Variants, GpuGemma4,
                         ::testing::Values("dense", "dense-w4a16", "e2b", "e4b"), test_name);

}  // namespace
}  // namespace segue::model
