// SPDX-License-Identifier: Apache-2.0
// Drafters that run a model, in the whole engine: a draft model that is the target itself is always
// right, whatever happened to its cache; requests with drafters of their own share steps; what does
// not fit is refused with the two numbers.
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/json.h"
#include "e2e/tiny_model.h"
#include "engine/loop.h"
#include "segue/engine.h"
#include "speculate/model_drafter.h"

namespace segue::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Request request_of(SpecMode mode, int k, std::int64_t prompt_tokens, float temperature) {
  Request request;
  request.prompt_tokens = repetitive_tokens(prompt_tokens, 31 + static_cast<std::uint64_t>(k));
  request.max_tokens = 40;
  request.sampling.temperature = temperature;
  request.sampling.seed = 5;
  request.spec = mode;
  request.draft_tokens = k;
  request.ignore_eos = true;
  request.logits_hash = true;
  return request;
}

std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  return engine.ok() ? std::move(engine).value() : nullptr;
}

TEST(DraftModel, IsAlwaysRightWhenItIsTheTarget) {
  EngineOptions options;
  options.model = write_tiny({});
  options.draft_model = options.model;
  options.threads = 2;
  options.prefill_chunk = 24;
  options.max_sequences = 3;
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  std::vector<Request> batch;
  for (const int k : {1, 3, 8}) {
    // Below, at and far above the window of 32; greedy and sampled.
    batch.push_back(request_of(SpecMode::kDraft, k, 5 + 20 * k, k == 3 ? 0.0f : 0.8f));
  }
  for (const Result<Completion>& completion : engine->generate_batch(batch)) {
    ASSERT_TRUE(completion.ok()) << completion.error().message;
    EXPECT_GT(completion->stats.drafted, 0);
    EXPECT_EQ(completion->stats.accepted, completion->stats.drafted);
    EXPECT_GT(completion->stats.draft_s, 0);
  }
  // A conversation goes on in the cache that it left, the draft model's too.
  Request first = batch[1];
  const Result<Completion> answer = engine->generate(first);
  ASSERT_TRUE(answer.ok());
  first.prompt_tokens.insert(first.prompt_tokens.end(), answer->tokens.begin(),
                             answer->tokens.end() - 3);
  first.prompt_tokens.insert(first.prompt_tokens.end(), {9, 8, 7});
  const Result<Completion> next = engine->generate(first);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->stats.accepted, next->stats.drafted);
}

/// Situation 20: after a time without speculation the drafter is as good as before.
TEST(DraftModel, CatchesUpWhenSpeculationIsSwitchedOnAgain) {
  const std::string path = write_tiny({});
  const Result<std::unique_ptr<engine::Runtime>> runtime =
      engine::Runtime::load({.model = path, .draft_model = path, .threads = 1});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  engine::LoopOptions options;
  options.context = 400;
  options.prefill_chunk = 64;
  const Result<std::unique_ptr<engine::Loop>> loop = engine::Loop::create(**runtime, options);
  ASSERT_TRUE(loop.ok());
  engine::Sequence sequence;
  sequence.tokens = repetitive_tokens(70, 3);
  sequence.prompt_tokens = 70;
  sequence.limit = 300;
  sequence.ignore_eos = true;
  sequence.spec = SpecMode::kDraft;
  sequence.drafters = (*loop)->drafters(SpecMode::kDraft).value();
  (*loop)->admit(sequence);
  engine::Sequence* const one = &sequence;
  speculate::Controller controller;
  for (int step = 0; !sequence.finished; ++step) {
    sequence.max_draft = step / 20 % 2 == 0 ? 4 : 0;
    const Result<engine::StepReport> report =
        (*loop)->step({&one, 1}, attention::Policy::kSegue, controller);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->sequences[0].accepted, report->sequences[0].drafted) << step;
    EXPECT_EQ((*loop)->cache().check_integrity(), "");
  }
  EXPECT_GT(sequence.stats.accepted(), 100);
  (*loop)->release(sequence);
}

TEST(DraftModel, WhoseCacheDoesNotFitIsToldTheContextThatWouldNotCountingDrafts) {
  const auto runtime = engine::Runtime::load({.model = write_tiny({}), .threads = 1}).value();
  const auto made = [&](std::int64_t context) {
    return speculate::ModelDrafter::create(
        *runtime->model, {.chunk = 32, .context = context, .budget_bytes = 20 * 32'768});
  };
  const auto refused = made(1000);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
  // 8 pages of 64 tokens in the global layer, less the 16 drafts, and 2 in each of the six sliding.
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("1 sequence(s) of 1000 tokens"), HasSubstr("enough for 496 tokens")));
  EXPECT_TRUE(made(496).ok());
  EXPECT_FALSE(made(497).ok());
}

/// Situations 16 and 17: k and drafter of its own per request, some of whose drafts are never
/// right.
TEST(Drafters, RequestsOfAllKindsShareStepsWithoutAnEffect) {
  EngineOptions options;
  TinyModel model;
  options.model = write_tiny(model);
  options.assistant = write_tiny_assistant(model);
  TinyModel other = model;
  other.seed = 9;  // drafts at random
  options.draft_model = write_tiny(other);
  options.threads = 2;
  options.max_sequences = 8;
  std::vector<std::string> lines;
  options.trace = [&](std::string_view line) { lines.emplace_back(line); };
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  std::vector<Request> batch;
  std::vector<Request> plain;
  const SpecMode modes[] = {SpecMode::kMtp,  SpecMode::kDraft, SpecMode::kNgram, SpecMode::kOff,
                            SpecMode::kAuto, SpecMode::kMtp,   SpecMode::kDraft, SpecMode::kAuto};
  for (int i = 0; i < 8; ++i) {
    batch.push_back(request_of(modes[i], 1 + i, 10 + 25 * i, i % 2 == 0 ? 0.0f : 0.8f));
    plain.push_back(batch.back());
    plain.back().spec = SpecMode::kOff;
  }
  const std::vector<Result<Completion>> together = engine->generate_batch(batch);
  std::vector<std::int64_t> drafted(8), accepted(8);
  for (const std::string& line : lines) {
    const core::Json json = core::Json::parse(line).value();
    for (const core::Json& one : *json.find("sequences")->as_array()) {
      const std::int64_t k = *one.find("k")->as_int();
      EXPECT_EQ(one.find("drafter")->as_string()->empty(), k == 0);
      for (std::int64_t j = 0; j < k; ++j) ++drafted[static_cast<std::size_t>(j)];
      for (std::int64_t j = 0; j < *one.find("accepted")->as_int(); ++j)
        ++accepted[static_cast<std::size_t>(j)];
    }
  }
  const std::vector<Result<Completion>> alone = engine->generate_batch(plain);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    ASSERT_TRUE(together[i].ok()) << together[i].error().message;
    ASSERT_TRUE(alone[i].ok());
    EXPECT_EQ(together[i]->tokens, alone[i]->tokens) << i;
    EXPECT_EQ(together[i]->logits_hash, alone[i]->logits_hash) << i;
    // Statistics are what a recount of the log gives.
    const GenerationStats& stats = together[i]->stats;
    for (std::size_t j = 0; j < stats.drafted_per_position.size(); ++j) {
      drafted[j] -= stats.drafted_per_position[j];
      accepted[j] -= stats.accepted_per_position[j];
    }
    const bool runs_a_model = modes[i] == SpecMode::kMtp || modes[i] == SpecMode::kDraft;
    EXPECT_TRUE(stats.drafted > 0 || !runs_a_model) << i;
  }
  EXPECT_THAT(drafted, testing::Each(0));
  EXPECT_THAT(accepted, testing::Each(0));
}

std::string create_error(const EngineOptions& options) {
  const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  return engine.ok() ? "no error" : engine.error().message;
}

std::string write(const gguf::Writer& writer, const std::string& name) {
  const std::string path = temporary_path(name);
  EXPECT_TRUE(writer.write(path).ok());
  return path;
}

TEST(Drafters, WhatDoesNotFitTheTargetIsRefusedWithBothNumbers) {
  EngineOptions options;
  options.model = write_tiny({});
  options.threads = 1;
  // A draft model with another token, and with one less.
  options.draft_model = write_tiny({.first_tokens = {"odd"}}, "odd");
  EXPECT_THAT(create_error(options),
              AllOf(HasSubstr("token 0"), HasSubstr("'odd'"), HasSubstr("'<pad>'")));
  options.draft_model = write_tiny({.vocab = 259}, "fewer");
  EXPECT_THAT(create_error(options), AllOf(HasSubstr("259 rows"), HasSubstr("has 260")));
  options.draft_model.clear();
  // Assistants made for a target of another width, head size, window; and a target without windows.
  const auto with = [&](const TinyModel& made_for) {
    options.assistant = write(tiny_assistant_writer(made_for), "assistant.gguf");
    return create_error(options);
  };
  EXPECT_THAT(with({.hidden = 96}), AllOf(HasSubstr("hidden size of 96"), HasSubstr("has 64")));
  EXPECT_THAT(with({.head_dim = 128}), AllOf(HasSubstr("head_dim 128"), HasSubstr("has 64")));
  EXPECT_THAT(with({.kv_heads = 1}), AllOf(HasSubstr("kv heads 1"), HasSubstr("has 2")));
  EXPECT_THAT(with({.window = 33}), AllOf(HasSubstr("window 33"), HasSubstr("has 32")));
  options.model = write_tiny({.architecture = "llama"});
  EXPECT_THAT(with({}), AllOf(HasSubstr("sliding"), HasSubstr("llama")));
  // An assistant is no model, and a model no assistant.
  options.model = options.assistant;
  options.assistant.clear();
  EXPECT_THAT(create_error(options), HasSubstr("assistant"));
  options.model = write_tiny({});
  options.assistant = options.model;
  EXPECT_THAT(create_error(options), AllOf(HasSubstr("gemma3"), HasSubstr("gemma4-assistant")));
  options.assistant.clear();
  // A mode without its drafter.
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  for (const auto& [mode, flag] :
       {std::pair{SpecMode::kMtp, "--assistant"}, std::pair{SpecMode::kDraft, "--draft-model"}}) {
    const Result<Completion> completion = engine->generate(request_of(mode, 2, 10, 0));
    ASSERT_FALSE(completion.ok());
    EXPECT_EQ(completion.error().code, ErrorCode::kUsage);
    EXPECT_THAT(completion.error().message, HasSubstr(flag));
  }
}

/// A tiny assistant whose head looks at the tokens of `top` of its four centroids only.
gguf::Writer ordered_assistant(std::uint32_t top, const std::vector<std::int32_t>& ordering) {
  gguf::Writer writer = tiny_assistant_writer({});
  writer.set("gemma4-assistant.use_ordered_embeddings", true);
  writer.set("gemma4-assistant.n_centroids", std::uint32_t{4});
  writer.set("gemma4-assistant.centroid_top_k", top);
  writer.tensor("masked_embd_centroids.weight", {32, 4}, std::vector<float>(128, 0.5f));
  writer.tensor("masked_embd_ordering", core::DType::kI32, {std::ssize(ordering)},
                std::as_bytes(std::span(ordering)));
  return writer;
}

TEST(Drafters, AnOrderedHeadDraftsAndIsRefusedWhereItsOrderIsNoListOfTheVocabulary) {
  std::vector<std::int32_t> ordering(kTinyVocab);
  std::iota(ordering.rbegin(), ordering.rend(), 0);
  EngineOptions options;
  options.model = write_tiny({});
  options.assistant = write(ordered_assistant(2, ordering), "assistant.gguf");
  options.threads = 1;
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_GT(engine->generate(request_of(SpecMode::kMtp, 3, 40, 0)).value().stats.drafted, 0);
  const auto refusal = [&](const std::vector<std::int32_t>& bad) {
    options.assistant = write(ordered_assistant(2, bad), "bad.gguf");
    return create_error(options);
  };
  ordering[7] = kTinyVocab;
  EXPECT_THAT(refusal(ordering), AllOf(HasSubstr("has token 260"), HasSubstr("0 to 259")));
  ordering[7] = -1;
  EXPECT_THAT(refusal(ordering), HasSubstr("has token -1"));
  ordering.pop_back();
  EXPECT_THAT(refusal(ordering), AllOf(HasSubstr("259 entries"), HasSubstr("has 260")));
}

}  // namespace
}  // namespace segue::e2e
