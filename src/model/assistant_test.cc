// SPDX-License-Identifier: Apache-2.0
// The assistant against transformers in float32, on the random tiny pairs of tests/golden/gemma4,
// and what it refuses.
#include "model/assistant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/file.h"
#include "core/temporary_folder.h"
#include "core/thread_pool.h"
#include "core/tolerance.h"
#include "format/safetensors/safetensors.h"
#include "model/golden_model.h"

namespace segue::model {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<LanguageModel> load_target(const std::string& variant, core::ThreadPool& pool) {
  const Result<Config> config = read_config(golden_folder(variant));
  EXPECT_TRUE(config.ok()) << config.error().message;
  const Result<safetensors::Checkpoint> file =
      safetensors::Checkpoint::open(golden_folder(variant));
  EXPECT_TRUE(file.ok()) << file.error().message;
  LoadOptions options;
  options.dequantise = true;
  Result<std::unique_ptr<LanguageModel>> model =
      LanguageModel::load(*config, *folder_tensors(*file), pool, options);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(model).value();
}

kv::Cache make_cache(const LanguageModel& model, int sequences, int page) {
  kv::Demand demand{sequences, 128, 128};
  Result<std::vector<kv::PoolSpec>> specs =
      kv::size_pools(model.pool_specs(KvType::kF32, page), demand);
  EXPECT_TRUE(specs.ok());
  kv::CacheOptions options;
  options.max_rows = demand.max_rows;
  options.poison = true;  // keys that were never committed would show
  Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), options);
  EXPECT_TRUE(cache.ok());
  return std::move(cache).value();
}

/// Caches `tokens` and returns the final hidden row of the last. `stale` rows more are written and
/// not committed, as a rejected draft leaves them.
std::vector<float> read_prompt(LanguageModel& model, kv::Cache& cache, kv::SequenceId id,
                               std::span<const std::int32_t> tokens, int stale) {
  const auto count = std::ssize(tokens) - stale;
  EXPECT_TRUE(cache.reserve(id, std::ssize(tokens)).ok());
  const SequenceInput sequence{id, 0, tokens, true, 1 + stale};
  StepInput input;
  input.cache = &cache;
  input.sequences = std::span(&sequence, 1);
  const Result<StepOutput> output = model.forward(input);
  EXPECT_TRUE(output.ok());
  cache.commit(id, count);
  return {output->hidden, output->hidden + model.config().hidden};
}

class AssistantGolden : public testing::TestWithParam<std::string> {};

TEST_P(AssistantGolden, DraftsLogitsAndFeedbackAreThoseOfTheReference) {
  core::ThreadPool pool(2);
  const std::unique_ptr<LanguageModel> model = load_target(GetParam(), pool);
  const Result<std::unique_ptr<Assistant>> loaded = Assistant::load(
      golden_folder(GetParam()) + "/assistant", *model, pool, {core::best_isa(), true});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  Assistant& assistant = **loaded;
  const Result<safetensors::Checkpoint> golden =
      safetensors::Checkpoint::open(golden_folder(GetParam()) + "/golden.safetensors");
  ASSERT_TRUE(golden.ok());
  const auto tokens = golden_values<std::int32_t>(*golden, "tokens");
  const auto at = golden_values<std::int32_t>(*golden, "draft_at");
  const auto drafts = golden_values<std::int32_t>(*golden, "drafts");
  const auto logits = golden_values<float>(*golden, "draft_logits");
  const auto hidden = golden_values<float>(*golden, "draft_hidden");
  const auto vocab = static_cast<std::size_t>(model->config().vocab);
  const auto width = static_cast<std::size_t>(model->config().hidden);
  const std::size_t k = drafts.size() / at.size();
  ASSERT_EQ(k, 4u);

  // All prefixes draft together, as the sequences of one step do.
  kv::Cache cache = make_cache(*model, static_cast<int>(at.size()), 16);
  std::vector<AssistantSequence> sequences;
  std::vector<float> feedback;
  std::vector<std::int32_t> newest;
  for (const std::int32_t depth : at) {
    const kv::SequenceId id = cache.create_sequence();
    const int stale = depth + 3 <= std::ssize(tokens) ? 3 : 0;
    const std::vector<float> row = read_prompt(
        *model, cache, id, std::span(tokens).first(static_cast<std::size_t>(depth + stale)), stale);
    feedback.insert(feedback.end(), row.begin(), row.end());
    sequences.push_back({id, depth});
    newest.push_back(tokens[static_cast<std::size_t>(depth)]);
  }
  ASSERT_TRUE(assistant.begin(cache, sequences).ok());
  for (std::size_t j = 0; j < k; ++j) {
    const Assistant::Output output = assistant.step(newest, feedback.data()).value();
    feedback.assign(output.hidden, output.hidden + at.size() * width);
    for (std::size_t s = 0; s < at.size(); ++s) {
      const float* found = output.logits + s * vocab;
      const std::size_t cell = s * k + j;
      double largest = 0;
      for (std::size_t i = 0; i < vocab; ++i)
        largest = std::max(largest, std::fabs(static_cast<double>(logits[cell * vocab + i])));
      for (std::size_t i = 0; i < vocab; ++i) {
        if (std::isinf(found[i])) continue;  // a token that the centroid head did not look at
        EXPECT_NEAR(found[i], logits[cell * vocab + i], core::kFloatModel * largest)
            << "after " << at[s] << " tokens, draft " << j << ", token " << i;
      }
      for (std::size_t i = 0; i < width; ++i) {
        EXPECT_NEAR(feedback[s * width + i], hidden[cell * width + i], core::kFloatModel * 10)
            << "after " << at[s] << " tokens, draft " << j;
      }
      newest[s] = static_cast<std::int32_t>(std::max_element(found, found + vocab) - found);
      EXPECT_EQ(newest[s], drafts[cell]) << "after " << at[s] << " tokens, draft " << j;
    }
  }
}

TEST_P(AssistantGolden, ADraftDependsOnItsOwnSequenceOnly) {
  core::ThreadPool pool(2);
  const std::unique_ptr<LanguageModel> model = load_target(GetParam(), pool);
  const Result<std::unique_ptr<Assistant>> loaded = Assistant::load(
      golden_folder(GetParam()) + "/assistant", *model, pool, {core::best_isa(), false});
  ASSERT_TRUE(loaded.ok());
  Assistant& assistant = **loaded;
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back(4 + i * 37 % 150);
  const auto vocab = static_cast<std::size_t>(model->config().vocab);
  kv::Cache cache = make_cache(*model, 5, 8);
  std::vector<AssistantSequence> all;
  std::vector<float> hidden;
  std::vector<std::int32_t> newest;
  for (const int depth : {1, 23, 24, 25, 97}) {
    all.push_back({cache.create_sequence(), depth});
    const std::vector<float> row = read_prompt(
        *model, cache, all.back().id, std::span(tokens).first(static_cast<std::size_t>(depth)), 0);
    hidden.insert(hidden.end(), row.begin(), row.end());
    newest.push_back(tokens[static_cast<std::size_t>(depth)]);
  }
  ASSERT_TRUE(assistant.begin(cache, all).ok());
  const Assistant::Output together = assistant.step(newest, hidden.data()).value();
  const std::vector<float> logits(together.logits, together.logits + all.size() * vocab);
  for (std::size_t s = 0; s < all.size(); ++s) {
    for (const int workgroups : {1, 7}) {
      ASSERT_TRUE(assistant.begin(cache, {&all[s], 1}, workgroups).ok());
      const Assistant::Output alone =
          assistant
              .step({&newest[s], 1},
                    hidden.data() + s * static_cast<std::size_t>(model->config().hidden))
              .value();
      const core::Verdict same =
          core::exact(std::span(alone.logits, vocab), std::span(logits).subspan(s * vocab, vocab));
      EXPECT_TRUE(same.ok) << all[s].depth << ": " << same.message;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, AssistantGolden, testing::Values("dense", "e2b"));

/// Fills `path` with a copy of an assistant's folder, `from` replaced by `to` in its config.
void copy_changed(const std::string& path, const std::string& variant, const std::string& from,
                  const std::string& to) {
  const std::string source = golden_folder(variant) + "/assistant/";
  std::filesystem::copy_file(source + "model.safetensors", path + "/model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  std::string text = core::read_file(source + "config.json").value();
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  text.replace(place, from.size(), to);
  std::ofstream(path + "/config.json") << text;
}

TEST(AssistantFile, RefusesOtherTargetsWithTheTwoNumbers) {
  core::ThreadPool pool(1);
  const std::unique_ptr<LanguageModel> dense = load_target("dense", pool);
  const std::unique_ptr<LanguageModel> e2b = load_target("e2b", pool);
  const auto error_of = [&](const std::string& path, const LanguageModel& target) {
    const Result<std::unique_ptr<Assistant>> loaded =
        Assistant::load(path, target, pool, {core::best_isa(), false});
    EXPECT_FALSE(loaded.ok()) << path;
    return loaded.ok() ? std::string() : loaded.error().message;
  };
  const auto error_of_changed = [&](const std::string& from, const std::string& to) {
    const core::TemporaryFolder copy;
    copy_changed(copy.path(), "e2b", from, to);
    return error_of(copy.path(), *e2b);
  };
  // E2B has one kv head where the dense model has two.
  EXPECT_THAT(error_of(golden_folder("e2b") + "/assistant", *dense),
              AllOf(HasSubstr("kv heads 1"), HasSubstr("has 2")));
  struct Case {
    const char *from, *to, *found, *needed;
  };
  for (const Case& c : {
           Case{"\"sliding_window\": 24", "\"sliding_window\": 25", "25", "24"},
           Case{"\"num_centroids\": 16", "\"num_centroids\": 17", "160", "17"},
           Case{"\"centroid_intermediate_top_k\": 3", "\"centroid_intermediate_top_k\": 30", "30",
                "16"},
           Case{"\"use_ordered_embeddings\": true", "\"use_ordered_embeddings\": 1",
                "use_ordered_embeddings is 1", "true, false"},
           Case{"\"intermediate_size\": 64", "\"intermediate_size\": 63", "64", "63"},
           Case{"\"num_kv_shared_layers\": 4", "\"num_kv_shared_layers\": 2", "layer 3",
                "first 2 layers"},
           Case{"\"gemma4_assistant\"", "\"gemma4\"", "gemma4", "gemma4_assistant"},
       }) {
    EXPECT_THAT(error_of_changed(c.from, c.to), AllOf(HasSubstr(c.found), HasSubstr(c.needed)))
        << c.to;
  }
  EXPECT_THAT(error_of_changed("\"backbone_hidden_size\": 32", "\"backbone_hidden_size\": 64"),
              testing::AnyOf(HasSubstr("64"), HasSubstr("128")));
}

}  // namespace
}  // namespace segue::model
