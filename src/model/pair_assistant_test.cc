// SPDX-License-Identifier: Apache-2.0
// The demonstration assistant (models/segue-pair) against the drafts that transformers computed
// with both models' weights in float32, after every one of 64 tokens behind a prompt of 600.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/tolerance.h"
#include "model/assistant.h"
#include "model/golden_model.h"

namespace segue::model {
namespace {

/// Reads `tokens` behind what is cached; returns the final hidden row of the last.
std::vector<float> read_tokens(LanguageModel& model, kv::Cache& cache, kv::SequenceId id,
                               std::span<const std::int32_t> tokens) {
  EXPECT_TRUE(cache.reserve(id, std::ssize(tokens)).ok());
  const SequenceInput rows{id, cache.length(id), tokens, tokens.size() > 1, 1};
  StepInput input;
  input.cache = &cache;
  input.sequences = std::span(&rows, 1);
  const Result<StepOutput> output = model.forward(input);
  EXPECT_TRUE(output.ok());
  cache.commit(id, std::ssize(tokens));
  return {output->hidden, output->hidden + model.config().hidden};
}

TEST(DemonstrationAssistant, DraftsWhatTheReferenceDrafts) {
  const GoldenPair golden;
  const std::vector<std::int32_t>& tokens = golden.tokens;
  ASSERT_FALSE(tokens.empty());
  core::ThreadPool pool(1);
  LoadOptions options;
  options.dequantise = true;
  const std::string folder = std::string(SEGUE_MODELS_DIR) + "/segue-pair/";
  const auto target = LanguageModel::open(folder + "target", pool, options);
  ASSERT_TRUE(target.ok()) << target.error().message;
  const auto assistant =
      Assistant::load(folder + "assistant", **target, pool, {options.isa, options.dequantise});
  ASSERT_TRUE(assistant.ok()) << assistant.error().message;
  Result<std::vector<kv::PoolSpec>> specs =
      kv::size_pools((*target)->pool_specs(KvType::kF32, 64), {1, std::ssize(tokens), 640});
  ASSERT_TRUE(specs.ok());
  kv::CacheOptions cache_options;
  cache_options.max_rows = 640;
  Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), cache_options);
  ASSERT_TRUE(cache.ok());
  const kv::SequenceId id = cache->create_sequence();

  double largest = 0;
  ASSERT_TRUE(golden.document.find("largest_logit")->as_double(largest));
  int compared = 0;
  const core::Json::Array& rounds = *golden.document.find("rounds")->as_array();
  for (const core::Json& round : rounds) {
    const std::int64_t start = *round.find("start")->as_int();
    const std::int64_t cached = cache->length(id);
    std::vector<float> hidden =
        read_tokens(**target, *cache, id,
                    std::span(tokens).subspan(static_cast<std::size_t>(cached),
                                              static_cast<std::size_t>(start - cached)));
    const AssistantSequence sequence{id, start};
    ASSERT_TRUE((*assistant)->begin(*cache, {&sequence, 1}).ok());
    std::int32_t token = tokens[static_cast<std::size_t>(start)];
    const core::Json::Array& drafts = *round.find("drafts")->as_array();
    const core::Json::Array& margins = *round.find("margins")->as_array();
    for (std::size_t j = 0; j < drafts.size(); ++j) {
      const Assistant::Output output = (*assistant)->step({&token, 1}, hidden.data()).value();
      const std::int64_t vocab = (*assistant)->config().text.vocab;
      token = static_cast<std::int32_t>(std::max_element(output.logits, output.logits + vocab) -
                                        output.logits);
      hidden.assign(output.hidden, output.hidden + (*assistant)->config().backbone);
      double margin =
          0;  // of the reference's largest logit over its second: a tie may fall so or so
      ASSERT_TRUE(margins[j].as_double(margin));
      if (margin < 2 * core::kFloatModel * largest) break;
      EXPECT_EQ(token, *drafts[j].as_int()) << "after " << start << " tokens, draft " << j;
      ++compared;
    }
  }
  EXPECT_EQ(rounds.size(), 64u);
  EXPECT_GT(compared, 240);
}

}  // namespace
}  // namespace segue::model
