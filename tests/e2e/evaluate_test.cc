// SPDX-License-Identifier: Apache-2.0
// Evaluation on a small random model, against figures worked out by hand: what a user of `segue
// eval` relies on.
#include "lab/evaluate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/cpu.h"
#include "core/file.h"
#include "core/tolerance.h"
#include "e2e/program.h"
#include "e2e/tiny_model.h"
#include "lab/stats.h"

namespace segue::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kText = "the-quick-brown-fox-jumps-over-the-lazy-dog,-twice:-the-quick-brown-fox";

core::Json figures(const std::string& model, const lab::EvaluateOptions& options) {
  Result<lab::Evaluation> result = lab::evaluate(model, options);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? std::move(result->figures) : core::Json();
}

lab::EvaluateOptions of_text() {
  lab::EvaluateOptions options;
  options.text = kText;
  options.source = "'text'";
  options.threads = 1;
  return options;
}

/// A reference that gives token 65 every chance that a position has, at `positions` positions.
core::Json certain_of(std::int32_t token, int positions) {
  core::Json json = core::Json::object();
  core::Json ids = core::Json::array();
  core::Json logprobs = core::Json::array();
  std::vector<std::int32_t> tokens{2};
  for (int i = 0; i < positions; ++i) {
    tokens.push_back(token);
    ids.push(core::Json::array().push(token));
    logprobs.push(core::Json::array().push(0.0));
  }
  return json.set("tokens", tokens).set("top_ids", ids).set("top_logprobs", logprobs);
}

/// Two caches of 128 KiB and 256 KiB per token: the first may fit where both do not.
TEST(Evaluate, ACacheThatDoesNotFitIsRefusedWithTheNumbersBeforeAnythingIsComputed) {
  constexpr std::int64_t kTokenBytes = std::int64_t{4} * 16 * 512 * 2 * 2;
  const std::int64_t memory = core::cpu_facts().memory_bytes;
  const std::string model = write_tiny({.architecture = "llama",
                                        .layers = 4,
                                        .q_heads = 16,
                                        .kv_heads = 16,
                                        .head_dim = 512,
                                        .context = 1 << 30});
  const auto refusal = [&](std::int64_t tokens, bool against_float) {
    lab::EvaluateOptions options = of_text();
    options.text = std::string(static_cast<std::size_t>(tokens) - 1, 'x');  // and bos
    options.against_float = against_float;
    options.progress = [](double) { FAIL() << "it began"; };
    return lab::evaluate(model, options).error();
  };
  const std::int64_t too_many = memory / kTokenBytes;
  const Error alone = refusal(too_many, false);
  EXPECT_EQ(alone.code, ErrorCode::kNoMemory);
  EXPECT_THAT(alone.message, AllOf(HasSubstr(fmt::format("of {} tokens", too_many)),
                                   HasSubstr("'global'"), HasSubstr("the budget is")));
  const Error both = refusal(too_many / 2, true);
  EXPECT_EQ(both.code, ErrorCode::kNoMemory);
  EXPECT_THAT(both.message, HasSubstr("float reference: the KV cache for 1 sequence(s)"));
}

TEST(Evaluate, CountsEveryPositionThatPredictsATokenAndDoesNotDependOnThreads) {
  const std::string model = write_tiny({});
  lab::EvaluateOptions options = of_text();
  const core::Json one = figures(model, options);
  EXPECT_EQ(*at(one, "positions").as_int(), std::ssize(kText));  // <bos> predicts the first byte
  EXPECT_EQ(*at(one, "total_positions").as_int(), std::ssize(kText));
  EXPECT_EQ(*at(one, "lost_bytes").as_int(), 0);
  EXPECT_FALSE(*at(one, "interrupted").as_bool());
  EXPECT_DOUBLE_EQ(lab::number(one, "perplexity"), std::exp(-lab::number(one, "mean_logprob")));
  EXPECT_GT(lab::number(one, "perplexity"), 1);
  options.threads = 2;
  EXPECT_EQ(figures(model, options).dump(), one.dump());
}

TEST(Evaluate, AReferenceThatIsCertainIsAsFarAsTheLogProbabilitiesOfItsTokens) {
  const core::Json recorded = certain_of(65, 40);
  lab::EvaluateOptions options;
  options.recorded = &recorded;
  options.threads = 1;
  const core::Json json = figures(write_tiny({}), options);
  EXPECT_EQ(*at(json, "positions").as_int(), 40);
  EXPECT_EQ(*at(json, "recorded.positions").as_int(), 40);
  // -log q of the token that comes, which here is the token that the reference is certain of.
  EXPECT_DOUBLE_EQ(lab::number(at(json, "recorded"), "mean_kl"),
                   -lab::number(json, "mean_logprob"));
  EXPECT_GE(lab::number(at(json, "recorded"), "max_kl"),
            lab::number(at(json, "recorded"), "mean_kl"));
}

TEST(Evaluate, TheSameWeightsInFloatAreNear) {
  lab::EvaluateOptions options = of_text();
  options.against_float = true;
  options.kv = KvType::kF32;
  const core::Json json = figures(write_tiny({}), options);
  EXPECT_EQ(*at(json, "float_reference.positions").as_int(), std::ssize(kText));
  EXPECT_LT(lab::number(at(json, "float_reference"), "mean_kl"), core::kLogitsMeanKl);
  EXPECT_GT(lab::number(at(json, "float_reference"), "mean_kl"), 0);  // 8-bit activations
}

TEST(Evaluate, SaysWhatItScoredBeforeItWasCancelled) {
  lab::EvaluateOptions options = of_text();
  int asked = 0;
  double progress = 0;
  options.progress = [&](double fraction) { progress = fraction; };
  // Never between tensors: between chunks only, where progress has been made.
  options.cancelled = [&] { return progress > 0 && ++asked == 1; };
  const core::Json cut = figures(write_tiny({}), options);
  EXPECT_TRUE(*at(cut, "interrupted").as_bool());
  EXPECT_EQ(*at(cut, "positions").as_int(), 32);
  EXPECT_EQ(*at(cut, "total_positions").as_int(), std::ssize(kText));
  EXPECT_THAT(lab::evaluation_table(cut), HasSubstr("32 of 71 positions, perplexity "));

  lab::EvaluateOptions at_once = of_text();
  at_once.cancelled = [] { return true; };
  EXPECT_EQ(lab::evaluate(write_tiny({}), at_once).error().code, ErrorCode::kCancelled);
}

TEST(Evaluate, RefusesTextsThatAreTooShortOrTooLongWithTheirName) {
  const std::string model = write_tiny({.context = 64});
  lab::EvaluateOptions options = of_text();
  const auto refused = [&](const std::string& text) {
    options.text = text;
    const Result<lab::Evaluation> result = lab::evaluate(model, options);
    EXPECT_FALSE(result.ok());
    return result.ok() ? Error{ErrorCode::kUsage, ""} : result.error();
  };
  EXPECT_THAT(refused("").message, HasSubstr("'text' has 1 token; at least 2"));
  const Error longer = refused(kText);
  EXPECT_EQ(longer.code, ErrorCode::kTooLong);
  EXPECT_THAT(longer.message, HasSubstr("'text' has 72 tokens, the context holds 64"));
}

TEST(Evaluate, WeightsThatGiveNoFiniteLogitsAreSaidToBeDamaged) {
  std::vector<std::byte> bytes = tiny_writer({}).bytes();
  std::fill(bytes.end() - 64, bytes.end(), std::byte{0xff});  // NaN in the last norm
  const std::string path = temporary_path("nan.gguf");
  ASSERT_TRUE(
      core::write_file(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}).ok());
  const Result<lab::Evaluation> result = lab::evaluate(path, of_text());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidFile);
  EXPECT_THAT(result.error().message, HasSubstr("the logits are not finite"));
}

TEST(Evaluate, TheProgramPrintsFiguresAndRecordsThem) {
  const std::string model = write_tiny({});
  const std::string text = temporary_path("text.txt");
  ASSERT_TRUE(core::write_file(text, kText).ok());
  const std::string json = temporary_path("eval.json");
  const Outcome result =
      run_program("eval -m " + model + " --text-file " + text + " --against-float --json " + json);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("71 of 71 positions, perplexity "),
                    HasSubstr("float reference  top-1 agreement "), Not(HasSubstr("recorded"))));
  const core::Json recorded = json_of(core::read_file(json).value());
  EXPECT_EQ(*at(recorded, "positions").as_int(), 71);
  EXPECT_FALSE(at(recorded, "machine.cpu").is_null());
  EXPECT_TRUE(*at(recorded, "settings.against_float").as_bool());
}

}  // namespace
}  // namespace segue::e2e
