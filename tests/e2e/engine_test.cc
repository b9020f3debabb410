// SPDX-License-Identifier: Apache-2.0
// The public engine on a small random model: edges of requests, errors, streams, chat reuse, traces
// and statistics.
#include "segue/engine.h"

#include <atomic>
#include <limits>
#include <map>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/json.h"
#include "e2e/tiny_model.h"

namespace segue::e2e {
namespace {

using testing::HasSubstr;

std::unique_ptr<Engine> make_engine(EngineOptions options = {}) {
  if (options.model.empty()) options.model = write_tiny({});
  options.threads = 2;
  Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  return engine.ok() ? std::move(engine).value() : nullptr;
}

std::string create_error(const EngineOptions& options) {
  const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  return engine.ok() ? "no error" : engine.error().message;
}

Request request_of(std::int64_t prompt_tokens, std::int64_t max_tokens) {
  Request request;
  request.prompt_tokens = repetitive_tokens(prompt_tokens, 5);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

TEST(Engine, AcceptsAnEmptyPrompt) {
  Request request;
  request.max_tokens = 4;
  request.ignore_eos = true;
  const Result<Completion> completion = make_engine()->generate(request);
  ASSERT_TRUE(completion.ok());
  EXPECT_EQ(completion->prompt_tokens, 1);  // bos
  EXPECT_EQ(completion->tokens.size(), 4u);
}

TEST(Engine, GeneratesNothingForZeroTokens) {
  const Result<Completion> completion = make_engine()->generate(request_of(10, 0));
  ASSERT_TRUE(completion.ok());
  EXPECT_TRUE(completion->tokens.empty());
  EXPECT_EQ(completion->finish_reason, FinishReason::kLength);
}

TEST(Engine, StopsWhereTheContextIsFull) {
  EngineOptions options;
  options.context = 64;
  const auto engine = make_engine(options);
  const Result<Completion> completion = engine->generate(request_of(50, -1));
  ASSERT_TRUE(completion.ok());
  EXPECT_EQ(completion->tokens.size(), 14u);
  EXPECT_EQ(completion->finish_reason, FinishReason::kContext);
  const Result<Completion> full = engine->generate(request_of(64, -1));
  ASSERT_TRUE(full.ok());
  EXPECT_TRUE(full->tokens.empty());
}

TEST(Engine, RefusesAPromptLongerThanTheContextWithBothNumbers) {
  EngineOptions options;
  options.context = 64;
  const Result<Completion> completion = make_engine(options)->generate(request_of(65, 1));
  ASSERT_FALSE(completion.ok());
  EXPECT_EQ(completion.error().code, ErrorCode::kTooLong);
  EXPECT_THAT(completion.error().message, HasSubstr("65"));
  EXPECT_THAT(completion.error().message, HasSubstr("64"));
}

TEST(Engine, RefusesImpossibleOptions) {
  const std::string path = write_tiny({});
  EngineOptions options;
  options.model = path;
  options.policy = "fast";
  EXPECT_THAT(create_error(options), HasSubstr("segue"));
  options.policy = "segue";
  options.kernel = "no.such.kernel";
  EXPECT_THAT(create_error(options), HasSubstr("reference"));
  options.kernel.clear();
  options.page_size = 12;
  EXPECT_THAT(create_error(options), HasSubstr("multiples of 8"));
  options.page_size = 0;
  options.context = 1 << 20;
  EXPECT_THAT(create_error(options), HasSubstr("2048"));
  options.context = 0;
  options.threads = -1;
  EXPECT_THAT(create_error(options), HasSubstr("-1"));
  options.threads = 1;
  options.model = path + ".absent";
  EXPECT_THAT(create_error(options), HasSubstr(".absent"));
}

TEST(Engine, RefusesSamplingThatCanNeverWork) {
  const auto engine = make_engine();
  Request request = request_of(4, 1);
  request.sampling.top_p = 0;
  EXPECT_FALSE(engine->generate(request).ok());
  request = request_of(4, 1);
  request.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(engine->generate(request).ok());
  request = request_of(4, -2);
  EXPECT_FALSE(engine->generate(request).ok());
  request = request_of(4, 1);
  request.prompt_tokens.push_back(kTinyVocab);
  EXPECT_FALSE(engine->generate(request).ok());
}

TEST(Engine, OneBadRequestOfABatchDoesNotHurtTheOthers) {
  EngineOptions options;
  options.max_sequences = 2;
  options.context = 128;
  const std::vector<Request> batch{request_of(20, 5), request_of(500, 5), request_of(30, 5)};
  const std::vector<Result<Completion>> completions = make_engine(options)->generate_batch(batch);
  EXPECT_TRUE(completions[0].ok());
  EXPECT_FALSE(completions[1].ok());
  EXPECT_TRUE(completions[2].ok());
}

TEST(Engine, StreamsExactlyTheTextThatItReturns) {
  const auto engine = make_engine();
  Request request = request_of(40, 60);
  std::string streamed;
  request.on_text = [&](std::string_view text) { streamed += text; };
  const Result<Completion> whole = engine->generate(request);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(streamed, whole->text);
  ASSERT_GT(whole->text.size(), 12u);
  streamed.clear();
  request.stop = {whole->text.substr(8, 3), "never in there"};
  const Result<Completion> stopped = engine->generate(request);
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->finish_reason, FinishReason::kStopText);
  EXPECT_EQ(stopped->text, whole->text.substr(0, whole->text.find(request.stop[0])));
  EXPECT_EQ(streamed, stopped->text);
}

TEST(Engine, EndsWhenCancelledAndKeepsWhatWasWritten) {
  std::atomic<bool> cancel{false};
  EngineOptions options;
  options.cancel = &cancel;
  const auto engine = make_engine(options);
  Request request = request_of(10, 1000);
  int pieces = 0;
  request.on_text = [&](std::string_view) { cancel = ++pieces >= 3; };
  const Result<Completion> completion = engine->generate(request);
  ASSERT_TRUE(completion.ok());
  EXPECT_EQ(completion->finish_reason, FinishReason::kCancelled);
  EXPECT_GE(completion->tokens.size(), 3u);
  EXPECT_LT(completion->tokens.size(), 100u);
}

TEST(Engine, APromptThatContinuesTheLastOneGetsTheSameAnswerAsFromScratch) {
  const std::string path = write_tiny({});
  EngineOptions options;
  options.model = path;
  const auto warm = make_engine(options);
  Request first = request_of(90, 20);
  first.logits_hash = true;
  const Result<Completion> answer = warm->generate(first);
  ASSERT_TRUE(answer.ok());
  for (std::size_t kept : {20u, 19u, 3u, 0u}) {
    Request second = first;
    second.prompt_tokens.insert(second.prompt_tokens.end(), answer->tokens.begin(),
                                answer->tokens.begin() + static_cast<std::ptrdiff_t>(kept));
    second.prompt_tokens.insert(second.prompt_tokens.end(), {9, 8, 7});
    const Result<Completion> continued = warm->generate(second);
    const Result<Completion> scratch = make_engine(options)->generate(second);
    ASSERT_TRUE(continued.ok());
    ASSERT_TRUE(scratch.ok());
    EXPECT_EQ(continued->tokens, scratch->tokens) << kept;
    EXPECT_EQ(continued->logits_hash, scratch->logits_hash) << kept;
  }
}

TEST(Engine, StatisticsEqualARecountOfTheTrace) {
  std::vector<std::string> lines;
  EngineOptions options;
  options.trace = [&](std::string_view line) { lines.emplace_back(line); };
  const auto engine = make_engine(options);
  Request request = request_of(220, 80);  // on both sides of 256 keys
  request.spec = SpecMode::kNgram;
  request.draft_tokens = 5;
  const Result<Completion> completion = engine->generate(request);
  ASSERT_TRUE(completion.ok());
  std::vector<std::int64_t> drafted(8), accepted(8);
  std::map<std::int64_t, DepthStats> depths;  // situation 24: an average hides where drafts fail
  std::int64_t emitted = 0;
  for (const std::string& line : lines) {
    const Result<core::Json> json = core::Json::parse(line);
    ASSERT_TRUE(json.ok());
    const std::int64_t k = *json->find("k")->as_int();
    const std::int64_t a = *json->find("accepted")->as_int();
    for (std::int64_t i = 0; i < k; ++i) ++drafted[static_cast<std::size_t>(i)];
    for (std::int64_t i = 0; i < a; ++i) ++accepted[static_cast<std::size_t>(i)];
    if (!*json->find("prefill")->as_bool()) {
      DepthStats& here = depths[*json->find("depth")->as_int() / 256];
      here.drafted_per_position.resize(8);
      here.accepted_per_position.resize(8);
      ++here.steps;
      for (std::int64_t i = 0; i < k; ++i) ++here.drafted_per_position[static_cast<std::size_t>(i)];
      for (std::int64_t i = 0; i < a; ++i)
        ++here.accepted_per_position[static_cast<std::size_t>(i)];
    }
    emitted += *(*json->find("sequences")->as_array())[0].find("emitted")->as_int();
    ASSERT_EQ(json->find("groups")->as_array()->size(), 2u);
    for (const core::Json& group : *json->find("groups")->as_array()) {
      EXPECT_GE(*group.find("workgroups")->as_int(), 1);
      EXPECT_GT(*group.find("bytes_all_layers")->as_int(), 0);
    }
  }
  const GenerationStats& stats = completion->stats;
  EXPECT_EQ(emitted, 80);
  EXPECT_GT(stats.drafted, 0);
  for (std::size_t i = 0; i < stats.drafted_per_position.size(); ++i) {
    EXPECT_EQ(stats.drafted_per_position[i], drafted[i]);
    EXPECT_EQ(stats.accepted_per_position[i], accepted[i]);
  }
  ASSERT_EQ(stats.by_depth.size(), 2u);
  for (const DepthStats& depth : stats.by_depth) {
    EXPECT_EQ(depth.depth_to, depth.depth_from + 256);
    const DepthStats& expected = depths[depth.depth_from / 256];
    EXPECT_EQ(depth.steps, expected.steps);
    ASSERT_FALSE(depth.drafted_per_position.empty());
    for (std::size_t i = 0; i < depth.drafted_per_position.size(); ++i) {
      EXPECT_EQ(depth.drafted_per_position[i], expected.drafted_per_position[i]);
      EXPECT_EQ(depth.accepted_per_position[i], expected.accepted_per_position[i]);
    }
  }
}

TEST(Engine, StartLineNamesModelDeviceLevelTypeAndPath) {
  const std::vector<Request> requests(2);
  const std::string line = make_engine()->start_line(requests);
  for (const char* part : {"tiny gemma3", "bf16", "2 threads", "sliding", "global", "path",
                           "speculation auto, up to 8 drafts a step by ngram; "}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
}

TEST(ModelFile, RefusesWhatTheForwardPassCannotRun) {
  const auto error_of = [](const gguf::Writer& writer) {
    const std::string path = temporary_path("spoiled.gguf");
    EXPECT_TRUE(writer.write(path).ok());
    EngineOptions options;
    options.model = path;
    options.threads = 1;
    return create_error(options);
  };
  gguf::Writer extra = tiny_writer({});
  extra.tensor("blk.0.attn_q.bias", {64}, std::vector<float>(64));
  EXPECT_THAT(error_of(extra), HasSubstr("blk.0.attn_q.bias"));
  TinyModel unknown;
  unknown.architecture = "mamba";
  EXPECT_THAT(error_of(tiny_writer(unknown)), HasSubstr("gemma3, gemma4, llama"));
  TinyModel odd_heads;
  odd_heads.q_heads = 3;
  EXPECT_THAT(error_of(tiny_writer(odd_heads)), HasSubstr("3 query heads on 2 kv heads"));
  TinyModel missing;
  missing.layers = 2;
  gguf::Writer deeper = tiny_writer(missing);
  deeper.set("gemma3.block_count", std::uint32_t{3});
  EXPECT_THAT(error_of(deeper), HasSubstr("blk.2"));
}

}  // namespace
}  // namespace segue::e2e
