// SPDX-License-Identifier: Apache-2.0
// Gemma 4 against transformers in float32, on the random tiny models of tests/golden/gemma4, and
// the same weights as a GGUF file against the folder.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <unordered_set>

#include "core/dtype.h"
#include "core/temporary_folder.h"
#include "core/tolerance.h"
#include "format/gguf/writer.h"
#include "model/golden_model.h"

namespace segue::model {
namespace {

/// Largest error of the recorded rows as a part of the largest magnitude of the reference.
double worst(std::span<const float> found, std::span<const float> recorded, const Golden& golden) {
  const std::size_t n = recorded.size() / golden.positions.size();
  double error = 0;
  double largest = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const auto row = static_cast<std::size_t>(golden.positions[i / n]);
    const auto expected = static_cast<double>(recorded[i]);
    const double off = std::fabs(static_cast<double>(found[row * n + i % n]) - expected);
    error = std::isnan(off) ? HUGE_VAL : std::max(error, off);
    largest = std::max(largest, std::fabs(expected));
  }
  return error / largest;
}

LoadOptions in_float() {
  LoadOptions options;
  options.dequantise = true;
  return options;
}

class Gemma4 : public testing::TestWithParam<std::string> {};

TEST_P(Gemma4, LogitsAndHiddenRowsAreThoseOfTheReference) {
  core::ThreadPool pool(1);
  const Golden golden(GetParam());
  const auto model = LanguageModel::open(golden_folder(GetParam()), pool, in_float());
  ASSERT_TRUE(model.ok()) << model.error().message;
  std::vector<float> first;
  for (const Way way : {Way{512, 0}, Way{7, 0}, Way{5, 40}, Way{1, 90}}) {
    const PromptRows rows = run_prompt(**model, golden.tokens, way);
    const auto vocab = static_cast<std::size_t>((*model)->config().vocab);
    ASSERT_EQ(rows.logits.size(), golden.tokens.size() * vocab);
    const double logits = worst(rows.logits, golden.logits, golden);
    EXPECT_LT(logits, core::kFloatModel) << "chunk " << way.chunk;
    EXPECT_LT(worst(rows.hidden, golden.hidden, golden), core::kFloatModel);
    RecordProperty(fmt::format("worst_of_chunk_{}", way.chunk), fmt::format("{:.1e}", logits));
    if (first.empty()) first = rows.logits;
    if (way.decode > 0) continue;
    const core::Verdict same = core::exact(rows.logits, first);
    EXPECT_TRUE(same.ok) << same.message;
  }
}

TEST_P(Gemma4, AStepThatIsCancelledAnywhereLeavesAModelThatGoesOn) {
  core::ThreadPool pool(1);
  const Golden golden(GetParam());
  const auto tokens = std::span(golden.tokens).first(3);  // few rows: products that are not skipped
  std::vector<float> expected;
  int cancelled = 0;
  bool ended = false;
  for (int n = 0; !ended; ++n) {
    const auto model = LanguageModel::open(golden_folder(GetParam()), pool, in_float()).value();
    if (n == 0) expected = run_prompt(*model, tokens, {512, 0}).logits;
    const std::vector<kv::PoolSpec> specs =
        kv::size_pools(model->pool_specs(KvType::kF32, 16), {1, 3, 3}).value();
    kv::Cache cache = kv::Cache::create(specs, {.max_rows = 3}).value();
    const SequenceInput sequence{cache.create_sequence(), 0, tokens, true, 3};
    ASSERT_TRUE(cache.reserve(sequence.id, 3).ok());
    int left = n;  // questions until the answer is yes
    StepInput input;
    input.cache = &cache;
    input.sequences = std::span(&sequence, 1);
    input.cancelled = [&] { return left == 0 || left-- == 0; };
    const Result<StepOutput> output = model->forward(input);
    ended = output.ok();
    if (ended) break;
    EXPECT_EQ(output.error().code, ErrorCode::kCancelled);
    ++cancelled;
    const core::Verdict same = core::exact(run_prompt(*model, tokens, {512, 0}).logits, expected);
    EXPECT_TRUE(same.ok) << "cancelled at question " << n * n << ": " << same.message;
  }
  EXPECT_GT(cancelled, 3);
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string text = info.param;
  std::erase(text, '-');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Variants, Gemma4,
                         testing::Values("dense", "dense-w4a16", "e2b", "e4b", "moe"), test_name);

void set_metadata(gguf::Writer& writer, const Config& config) {
  const LayerKind& sliding = config.kinds[0];
  const LayerKind& global = config.kinds[1];
  const auto set = [&](const char* name, std::int64_t value) {
    writer.set(fmt::format("gemma4.{}", name), static_cast<std::uint32_t>(value));
  };
  std::vector<std::int32_t> heads, wide;
  std::vector<bool> pattern;
  int shared = 0;
  for (const Layer& layer : config.layers) {
    heads.push_back(config.kind_of(layer).kv_heads);
    wide.push_back(static_cast<std::int32_t>(layer.intermediate));
    pattern.push_back(layer.kind == 0);
    shared += layer.owns_kv ? 0 : 1;
  }
  writer.set("general.architecture", "gemma4");
  writer.set("gemma4.feed_forward_length", wide);
  writer.set("gemma4.attention.head_count_kv", heads);
  writer.set("gemma4.attention.sliding_window_pattern", pattern);
  writer.set("gemma4.attention.layer_norm_rms_epsilon", 1e-6f);
  writer.set("gemma4.rope.freq_base", 1e6f);
  writer.set("gemma4.rope.freq_base_swa", 1e4f);
  writer.set("gemma4.final_logit_softcapping", 30.0f);
  set("block_count", config.layer_count());
  set("context_length", config.context);
  set("embedding_length", config.hidden);
  set("embedding_length_per_layer_input", config.per_layer_input);
  set("attention.head_count", config.q_heads);
  set("attention.sliding_window", sliding.window);
  set("attention.key_length", global.head_dim);
  set("attention.key_length_swa", sliding.head_dim);
  set("attention.shared_kv_layers", shared);
  set("expert_count", config.experts.count);
  set("expert_used_count", config.experts.used);
  set("expert_feed_forward_length", config.experts.intermediate);
  std::vector<float> factors(static_cast<std::size_t>(global.head_dim / 2), 1e30f);
  std::fill_n(factors.begin(), global.rotary / 2, 1.0f);
  writer.tensor("rope_freqs.weight", {global.head_dim / 2}, factors);
}

/// Copies a tensor of the folder: vectors as F32, as converters write them, matrices as they are.
void copy_tensor(gguf::Writer& writer, const std::string& name, const core::TensorView& view) {
  ASSERT_EQ(view.dtype, core::DType::kBF16) << name;
  const std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.dims);
  if (view.dims > 1) {
    writer.tensor(name, view.dtype, shape,
                  std::span(view.data, static_cast<std::size_t>(view.bytes)));
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, view.data + 2 * i, sizeof(bits));
    values[i] = core::bf16_to_f32(bits);
  }
  writer.tensor(name, shape, values);
}

gguf::Writer as_gguf(const Config& config, const safetensors::Checkpoint& checkpoint) {
  gguf::Writer writer;
  set_metadata(writer, config);
  const std::unique_ptr<TensorSource> source = folder_tensors(checkpoint);
  std::unordered_set<std::string> done;
  for (int part = 0; part <= static_cast<int>(Part::kExpertsPostNorm); ++part) {
    for (int layer = 0; layer < config.layer_count(); ++layer) {
      const std::string from = tensor_name(Naming::kHuggingFace, static_cast<Part>(part), layer);
      const std::string to = tensor_name(Naming::kGguf, static_cast<Part>(part), layer);
      if (from.empty() || !source->has(from) || !done.insert(to).second) continue;
      copy_tensor(writer, to, *source->find({from}));
    }
  }
  return writer;
}

class Gemma4Gguf : public testing::TestWithParam<std::string> {};

TEST_P(Gemma4Gguf, HasTheBitsOfTheFolder) {
  core::ThreadPool pool(1);
  const Golden golden(GetParam());
  const std::string folder = golden_folder(GetParam());
  const Result<Config> config = read_config(folder);
  const Result<safetensors::Checkpoint> checkpoint = safetensors::Checkpoint::open(folder);
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  const core::TemporaryFolder temporary;
  const std::string path = temporary.file("model.gguf");
  ASSERT_TRUE(as_gguf(*config, *checkpoint).write(path).ok());
  const auto from_folder = LanguageModel::open(folder, pool, {});
  const auto from_gguf = LanguageModel::open(path, pool, {});
  ASSERT_TRUE(from_folder.ok()) << from_folder.error().message;
  ASSERT_TRUE(from_gguf.ok()) << from_gguf.error().message;
  const PromptRows expected = run_prompt(**from_folder, golden.tokens, {512, 0});
  const PromptRows found = run_prompt(**from_gguf, golden.tokens, {512, 0});
  const core::Verdict same = core::exact(found.logits, expected.logits);
  EXPECT_TRUE(same.ok) << same.message;
}

INSTANTIATE_TEST_SUITE_P(Variants, Gemma4Gguf, testing::Values("dense", "e2b", "e4b", "moe"),
                         test_name);

}  // namespace
}  // namespace segue::model
