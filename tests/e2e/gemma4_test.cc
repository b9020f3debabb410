// SPDX-License-Identifier: Apache-2.0
// The second promise on every variant of Gemma 4 with random weights, and the engine on folders.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "e2e/tiny_model.h"
#include "segue/engine.h"

namespace segue::e2e {
namespace {

struct Setting {
  SpecMode mode;
  int k;
};

std::vector<Completion> complete(const EngineOptions& options, const Setting& setting,
                                 float temperature) {
  const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  std::vector<Completion> out;
  if (!engine.ok()) return out;
  std::vector<Request> requests;
  for (const std::int64_t length : {1, 23, 24, 25, 70, 130}) {
    Request request;
    request.prompt_tokens = repetitive_tokens(length, static_cast<std::uint64_t>(length));
    request.max_tokens = 16;
    request.spec = setting.mode;
    request.draft_tokens = setting.k;
    request.sampling.temperature = temperature;
    request.sampling.seed = 5;
    request.ignore_eos = true;
    request.logits_hash = true;
    requests.push_back(std::move(request));
  }
  for (Result<Completion>& completion : (*engine)->generate_batch(requests)) {
    EXPECT_TRUE(completion.ok()) << completion.error().message;
    if (completion.ok()) out.push_back(std::move(completion).value());
  }
  return out;
}

class Gemma4NeverDifferent : public testing::TestWithParam<std::string> {};

TEST_P(Gemma4NeverDifferent, TokensAndLogitsDependOnTheRequestAlone) {
  EngineOptions options;
  options.model = "random:3:" + tiny_gemma4(GetParam());
  struct Engines {
    int threads, chunk, parallel, page;
    Setting setting;
  };
  for (const float temperature : {0.0f, 0.8f}) {
    std::vector<Completion> expected;
    for (const Engines& e :
         {Engines{1, 512, 1, 64, {SpecMode::kOff, 0}}, Engines{2, 7, 3, 16, {SpecMode::kNgram, 4}},
          Engines{1, 32, 6, 8, {SpecMode::kNgram, 8}}, Engines{2, 64, 6, 24, {SpecMode::kOff, 0}},
          Engines{1, 512, 2, 64, {SpecMode::kAuto, 8}}}) {
      options.threads = e.threads;
      options.prefill_chunk = e.chunk;
      options.max_sequences = e.parallel;
      options.page_size = e.page;
      const std::vector<Completion> found = complete(options, e.setting, temperature);
      if (expected.empty()) expected = found;
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].tokens, expected[i].tokens);
        EXPECT_EQ(found[i].logits_hash, expected[i].logits_hash) << fmt::format(
            "request {}, {} threads, chunk {}, {} in flight, page {}, {} k {}", i, e.threads,
            e.chunk, e.parallel, e.page, spec_mode_name(e.setting.mode), e.setting.k);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Gemma4NeverDifferent,
                         testing::Values("dense", "e2b", "e4b", "moe"),
                         [](const auto& name) { return name.param; });

TEST(DemonstrationPair, TheTargetRunsFromItsFolder) {
  EngineOptions options;
  options.model = std::string(SEGUE_GOLDEN_DIR) + "/../../models/segue-pair/target";
  options.threads = 1;
  options.context = 256;
  const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  Request request;
  request.prompt = "SELECT name FROM sqlite_schema";
  request.max_tokens = 12;
  const Result<Completion> completion = (*engine)->generate(request);
  ASSERT_TRUE(completion.ok()) << completion.error().message;
  EXPECT_EQ(completion->tokens.size(), 12u);
  EXPECT_FALSE(completion->text.empty());
}

TEST(RandomWeights, SaysWhatItNeeds) {
  const auto error_of = [](const std::string& model) {
    EngineOptions options;
    options.model = model;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
    return engine.ok() ? std::string() : engine.error().message;
  };
  EXPECT_THAT(error_of("random:x:config.json"), testing::HasSubstr("random:SEED:PATH"));
  EXPECT_THAT(error_of("random:1:/nowhere/config.json"), testing::HasSubstr("/nowhere"));
  // The golden's own vocabulary has 160 tokens.
  EXPECT_THAT(error_of("random:1:" + std::string(SEGUE_GOLDEN_DIR) + "/gemma4/dense"),
              testing::HasSubstr("vocab_size is 160; random weights need at least 260"));
}

}  // namespace
}  // namespace segue::e2e
