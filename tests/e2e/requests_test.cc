// SPDX-License-Identifier: Apache-2.0
// Requests as scripts send and record them: what has no effect is said, settings mean the same in
// run, batch and eval, and a chat records every reply.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/file.h"
#include "e2e/program.h"
#include "e2e/tiny_model.h"

namespace segue::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Requests : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = temporary_path(name);
    EXPECT_TRUE(core::write_file(path, text).ok());
    return path;
  }
  Outcome batch(const std::string& lines, const std::string& flags) {
    return run_program("batch -m " + model + " --requests " + write("requests.jsonl", lines) + " " +
                       flags);
  }
  core::Json document(const std::string& path) {
    const Result<std::string> text = core::read_file(path);
    EXPECT_TRUE(text.ok());
    return text.ok() ? json_of(*text) : core::Json();
  }

  std::string model = write_tiny({});
  std::string run_model = "run -m " + model + " ";
};

TEST_F(Requests, FlagsAndFieldsThatChangeNothingAreNamedByOneRule) {
  struct Case {
    std::string flags, fields, why, flag_names, field_names;
  };
  for (const Case& one : std::vector<Case>{
           {"--top-k 5 --min-p 0.1", R"("top_k": 5, "min_p": 0.1)", "at temperature 0",
            "--top-k, --min-p", "top_k, min_p"},
           {"--top-p 0.5", R"("top_p": 0.5)", "at temperature 0", "--top-p", "top_p"},
           {"--repeat-last-n 9", R"("repeat_last_n": 9)", "at repeat penalty 1", "--repeat-last-n",
            "repeat_last_n"},
           {"--repeat-penalty 2 --repeat-last-n 0", R"("repeat_penalty": 2, "repeat_last_n": 0)",
            "on a history of 0 tokens", "--repeat-penalty", "repeat_penalty"},
           {"--spec off --draft-tokens 2", R"("spec": "off", "draft_tokens": 2)",
            "with speculation off", "--draft-tokens", "draft_tokens"}}) {
    const Outcome run = run_program(run_model + "-p x -n 1 " + one.flags);
    EXPECT_EQ(run.code, 0);
    EXPECT_THAT(run.output,
                HasSubstr("warning: without effect " + one.why + ": " + one.flag_names + "\n"));
    const Outcome line = batch(
        "{\"prompt\": \"y\", \"n\": 1}\n{\"prompt\": \"x\", \"n\": 1, " + one.fields + "}\n", "");
    EXPECT_EQ(line.code, 0);
    EXPECT_THAT(line.output, HasSubstr("request on line 2: warning: without effect " + one.why +
                                       ": " + one.field_names + "\n"));
    EXPECT_THAT(line.output, Not(HasSubstr("line 1: warning")));
  }
  EXPECT_THAT(run_program(run_model + "-p x -n 1 --top-k 5 --temperature 1").output,
              Not(HasSubstr("warning")));
  EXPECT_THAT(batch(R"({"prompt_tokens": [5], "n": 1, "parse_special": true})", "").output,
              HasSubstr("on prompt_tokens: parse_special"));
}

TEST_F(Requests, AFlagOfABatchHasNoEffectOnlyWhereItHasNoneOnAnyRequest) {
  const std::string greedy = "{\"prompt\": \"x\", \"n\": 1}\n";
  const std::string sampled = "{\"prompt\": \"x\", \"n\": 1, \"temperature\": 1}\n";
  EXPECT_THAT(batch(greedy + greedy, "--top-k 5").output,
              HasSubstr("warning: without effect at temperature 0: --top-k\n"));
  EXPECT_THAT(batch(greedy + sampled, "--top-k 5").output, Not(HasSubstr("warning")));
}

TEST_F(Requests, RunBatchAndEvalRecordTheSameSettingsAsTheyWereUsed) {
  const std::string json = temporary_path("settings.json");
  const std::string text = write("text.txt", "abcdefgh");
  std::vector<core::Json> settings;
  for (const std::string& command :
       {run_model + "-p x -n 1 -q --json " + json,
        "batch -m " + model + " -q --requests " + write("one.jsonl", "{\"prompt\": \"x\"}") +
            " -n 1 --json " + json,
        "eval -m " + model + " -q --text-file " + text + " --json " + json}) {
    ASSERT_EQ(run_program(command + " --threads 0").code, 0) << command;
    settings.push_back(at(document(json), "settings"));
    EXPECT_GT(*at(settings.back(), "threads").as_int(), 0) << command;
    EXPECT_EQ(*at(settings.back(), "ctx").as_int(), 2048) << command;
    EXPECT_EQ(*at(settings.back(), "page_size").as_int(), 64) << command;
    for (const char* key : {"model", "assistant", "draft_model", "threads", "kv", "page_size",
                            "ctx", "policy", "kernel"})
      EXPECT_EQ(at(settings.back(), key).dump(), at(settings.front(), key).dump()) << key;
  }
  // run and batch also those of the request.
  for (const auto& [key, value] : *settings[0].as_object())
    EXPECT_EQ(at(settings[1], key).dump(), value.dump()) << key;
}

TEST_F(Requests, ABatchRecordsWhatEachRequestChanges) {
  const std::string json = temporary_path("batch.json");
  const Outcome result = batch(
      "{\"prompt\": \"x\", \"n\": 1}\n{\"prompt\": \"y\", \"temperature\": 0.5, \"seed\": 7}\n",
      "-n 2 --temperature 1 -q --json " + json);
  ASSERT_EQ(result.code, 0) << result.output;
  const core::Json all = document(json);
  EXPECT_EQ(*at(all, "settings.n").as_int(), 2);
  double temperature = 0;
  ASSERT_TRUE(at(all, "settings.temperature").as_double(temperature));
  EXPECT_EQ(temperature, 1);
  const core::Json::Array& completions = *at(all, "completions").as_array();
  ASSERT_EQ(completions.size(), 2u);
  EXPECT_EQ(at(completions[0], "settings").dump(), R"({"n":1})");
  EXPECT_EQ(at(completions[1], "settings").dump(), R"({"temperature":0.5,"seed":7})");
}

TEST_F(Requests, ABatchWhoseDocumentGoesToStandardOutputPrintsNothingElseThere) {
  const Outcome result = batch("{\"prompt\": \"x\", \"n\": 1}\n", "-q --json -");
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(at(json_of(result.output), "completions").as_array()->size(), 1u);
}

TEST_F(Requests, RandomWeightsAreRecordedAsSuch) {
  const std::string config = std::string(SEGUE_MODELS_DIR) + "/segue-pair/target/config.json";
  const Outcome result =
      run_program("run --random-weights " + config + " --seed 3 -p x -n 1 -q --json -");
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(*at(json_of(result.output), "settings.model").as_string(), "random:3:" + config);
}

TEST_F(Requests, AChatRecordsEveryReplyWithTheMessageThatItAnswers) {
  const std::string chatty = write_tiny({.chat_template = "{{ '<start_of_turn>' }}"}, "chatty");
  const std::string json = temporary_path("chat.json");
  const std::string command = "run -m " + chatty + " --chat -n 3 --ignore-eos -q --json " + json;
  const Outcome result =
      run_program(command + " -p first", write("lines.txt", "second\n\nthird\n"));
  ASSERT_EQ(result.code, 0) << result.output;
  const core::Json chat = document(json);
  const core::Json::Array& replies = *at(chat, "completions").as_array();
  ASSERT_EQ(replies.size(), 3u);
  std::string printed;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(*at(replies[i], "prompt").as_string(),
              std::vector<std::string>({"first", "second", "third"})[i]);
    EXPECT_EQ(at(replies[i], "tokens").as_array()->size(), 3u);
  }
  EXPECT_EQ(*at(chat, "settings.n").as_int(), 3);
  EXPECT_FALSE(at(chat, "build.commit").is_null());
  // Nothing said: a document without replies.
  ASSERT_EQ(run_program(command).code, 0);
  EXPECT_TRUE(at(document(json), "completions").as_array()->empty());
}

TEST_F(Requests, AChatThatFillsItsContextWarnsAndRecordsTheTurnThatFailed) {
  const std::string chatty = write_tiny({.chat_template = "{{ '<start_of_turn>' }}"}, "chatty");
  const std::string json = temporary_path("chat.json");
  const std::string lines = write("lines.txt", "first\nsecond\n");
  const std::string command =
      "run -m " + chatty + " --chat -n 40 --ignore-eos --ctx 110 --json " + json;
  const Outcome result = run_program(command, lines);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.output, HasSubstr("of the 110 tokens of the context (--ctx) are left"));
  EXPECT_THAT(result.output, HasSubstr("the context (--ctx) holds 110"));
  const core::Json chat = document(json);
  const core::Json::Array& replies = *at(chat, "completions").as_array();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(at(replies[0], "tokens").as_array()->size(), 40u);
  EXPECT_EQ(*at(replies[1], "prompt").as_string(), "second");
  EXPECT_THAT(*at(replies[1], "error").as_string(), HasSubstr("the context (--ctx) holds 110"));
  EXPECT_THAT(run_program(command + " -q", lines).output, Not(HasSubstr("warning")));
}

TEST_F(Requests, AHashThatWasAskedForIsNeverLost) {
  const std::string flags = run_model + "-p x -n 2 --logits-hash ";
  const std::string hash =
      *at(json_of(run_program(flags + "-q --json -").output), "logits_hash").as_string();
  EXPECT_THAT(run_program(flags).output, HasSubstr("logits hash " + hash));
  EXPECT_THAT(run_program(flags + "-q").output, HasSubstr("logits hash " + hash + "\n"));
  EXPECT_THAT(run_program(flags + "-q --json " + temporary_path("hash.json")).output,
              Not(HasSubstr("hash")));
}

}  // namespace
}  // namespace segue::e2e
