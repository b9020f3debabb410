// SPDX-License-Identifier: Apache-2.0
// The demonstration pair (models/segue-pair) in the whole engine: a trained assistant whose drafts
// are mostly right. Tokens and logits hashes do not depend on it, nor on batch and threads, and its
// drafts are worth having.
#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "core/json.h"
#include "segue/engine.h"

namespace segue::e2e {
namespace {

std::vector<std::int32_t> recorded_prompt() {
  const Result<std::string> text =
      core::read_file(std::string(SEGUE_GOLDEN_DIR) + "/segue-pair.json");
  EXPECT_TRUE(text.ok());
  const core::Json json = core::Json::parse(*text).value();
  std::vector<std::int32_t> tokens;
  for (const core::Json& token : *json.find("prompt")->as_array())
    tokens.push_back(static_cast<std::int32_t>(*token.as_int()));
  return tokens;
}

struct Setting {
  SpecMode mode;
  int k;
};

TEST(DemonstrationPair, NeverDifferentAndMostlyRight) {
  const std::vector<std::int32_t> text = recorded_prompt();
  // Within the window of 256, at its edge and beyond.
  const std::pair<int, int> cuts[] = {{0, 40}, {30, 287}, {200, 600}};
  const Setting settings[] = {{SpecMode::kOff, 0},   {SpecMode::kMtp, 1}, {SpecMode::kMtp, 2},
                              {SpecMode::kMtp, 4},   {SpecMode::kMtp, 8}, {SpecMode::kNgram, 4},
                              {SpecMode::kDraft, 3}, {SpecMode::kAuto, 8}};
  std::vector<Result<Completion>> expected;
  std::int64_t first_drafts = 0;
  std::int64_t first_accepted = 0;
  struct Engines {
    int threads, parallel;
  };
  for (const Engines& e : {Engines{2, 1}, Engines{1, 8}}) {
    EngineOptions options;
    const std::string folder = std::string(SEGUE_MODELS_DIR) + "/segue-pair/";
    options.model = folder + "target";
    options.assistant = folder + "assistant";
    options.draft_model = options.model;
    options.threads = e.threads;
    options.max_sequences = e.parallel;
    options.context = 700;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    for (const Setting& setting : settings) {
      if (e.parallel == 1 && setting.k > 1 && setting.k < 8) continue;  // for time's sake
      std::vector<Request> batch;
      for (const float temperature : {0.0f, 0.8f}) {
        for (const auto& [begin, end] : cuts) {
          Request request;
          request.prompt_tokens.assign(text.begin() + begin, text.begin() + end);
          request.max_tokens = 24;
          request.sampling.temperature = temperature;
          request.sampling.seed = 3;
          request.spec = setting.mode;
          request.draft_tokens = setting.k;
          request.ignore_eos = true;
          request.logits_hash = true;
          batch.push_back(std::move(request));
        }
      }
      std::vector<Result<Completion>> found = (*engine)->generate_batch(batch);
      if (expected.empty()) expected = found;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        ASSERT_TRUE(found[i].ok()) << found[i].error().message;
        const std::string where =
            fmt::format("request {}, {} k {}, {} threads, {} at once", i,
                        spec_mode_name(setting.mode), setting.k, e.threads, e.parallel);
        EXPECT_EQ(found[i]->tokens, expected[i]->tokens) << where;
        EXPECT_EQ(found[i]->logits_hash, expected[i]->logits_hash) << where;
        const GenerationStats& stats = found[i]->stats;
        EXPECT_TRUE(setting.mode != SpecMode::kDraft || stats.accepted == stats.drafted) << where;
        if (setting.mode != SpecMode::kMtp) continue;
        first_drafts += stats.drafted_per_position.at(0);
        first_accepted += stats.accepted_per_position.empty() ? 0 : stats.accepted_per_position[0];
      }
    }
  }
  EXPECT_GT(first_accepted, first_drafts / 2);
}

}  // namespace
}  // namespace segue::e2e
