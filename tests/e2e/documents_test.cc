// SPDX-License-Identifier: Apache-2.0
// What the program writes for scripts: JSON documents of commands, and batches line by line.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/file.h"
#include "core/json.h"
#include "e2e/program.h"
#include "e2e/tiny_model.h"

namespace segue::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Documents : public testing::Test {
 protected:
  std::string model = write_tiny({});
  std::string run_model = "run -m " + model + " ";
};

TEST_F(Documents, RunWritesTheDocumentThatScriptsRead) {
  const std::string trace = temporary_path("trace.jsonl");
  const Outcome result =
      run_program(run_model +
                  "-p 'ababababab' -n 12 --ignore-eos --spec ngram --draft-tokens 4 "
                  "--logits-hash --quiet --json - --trace " +
                  trace);
  ASSERT_EQ(result.code, 0) << result.output;
  const core::Json json = json_of(result.output);
  EXPECT_EQ(at(json, "tokens").as_array()->size(), 12u);
  EXPECT_EQ(*at(json, "prompt_tokens").as_int(), 11);
  EXPECT_EQ(*at(json, "finish_reason").as_string(), "length");
  EXPECT_EQ(at(json, "logits_hash").as_string()->size(), 16u);
  for (const char* field :
       {"text", "stats.load_s", "stats.prefill_tokens_per_s", "stats.decode_tokens_per_s",
        "stats.drafted", "stats.accepted", "stats.accepted_per_position",
        "stats.drafted_per_position", "stats.mean_acceptance_length", "stats.k_histogram",
        "stats.by_depth", "stats.time_s.draft", "stats.time_s.verify", "stats.time_s.other",
        "settings.spec", "machine.cpu", "build.commit"}) {
    EXPECT_FALSE(at(json, field).is_null()) << field;
  }
  const Result<std::string> lines = core::read_file(trace);
  ASSERT_TRUE(lines.ok());
  const core::Json first = json_of(lines->substr(0, lines->find('\n')));
  for (const char* field : {"rows", "depth", "k", "accepted", "groups", "us"}) {
    EXPECT_FALSE(at(first, field).is_null()) << field;
  }
}

TEST_F(Documents, BatchAnswersEveryLineInOrderAndRefusesUnknownFields) {
  const std::string requests = temporary_path("requests.jsonl");
  std::ofstream(requests)
      << R"({"id": "first", "prompt": "abc", "n": 3, "ignore_eos": true})"
         "\n\n"
      << R"({"id": 7, "prompt": "xyz", "n": 5, "ignore_eos": true, "temperature": 0.8, "seed": 3})"
         "\n";
  const Outcome result = run_program("batch -m " + model + " --quiet --requests " + requests);
  ASSERT_EQ(result.code, 0) << result.output;
  const std::size_t line = result.output.find('\n');
  EXPECT_EQ(at(json_of(result.output.substr(0, line)), "tokens").as_array()->size(), 3u);
  EXPECT_EQ(at(json_of(result.output.substr(line + 1)), "tokens").as_array()->size(), 5u);
  EXPECT_EQ(at(json_of(result.output.substr(0, line)), "id").dump(), "\"first\"");
  EXPECT_EQ(at(json_of(result.output.substr(line + 1)), "id").dump(), "7");
  std::ofstream(requests) << R"({"prompt": "abc", "temprature": 1})"
                             "\n";
  const Outcome typo = run_program("batch -m " + model + " --quiet --requests " + requests);
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.output, AllOf(HasSubstr("line 1"), HasSubstr("temprature")));
  std::ofstream(requests) << "{broken\n";
  EXPECT_EQ(run_program("batch -m " + model + " --quiet --requests " + requests).code, 2);
}

TEST_F(Documents, ABatchIsCheckedBeforeItsFirstRequestStarts) {
  const std::string requests = temporary_path("requests.jsonl");
  for (const auto& [line, part] : std::vector<std::pair<std::string, std::string>>{
           {"{broken", "line 3: not valid JSON: column 2: "},
           {"[1]", "not a JSON object"},
           {R"({"prompt": "x", "temperature": 1e999})", "JSON: number overflow parsing '1e999'"},
           {R"({"prompt": "x", "n": 1, "n": 2})", "n"},
           {R"({"prompt": "x", "id": 1.5})",
            "'id': 1.5 is not allowed; allowed: a string or a whole"},
           {R"({"prompt": null})", "'prompt': null is not allowed; allowed: a string"},
           {R"({"prompt": "x", "stop": "y"})",
            "\"y\" is not allowed; allowed: an array of strings"},
           {R"({"prompt_tokens": [1.5]})", "[1.5] is not allowed; allowed: an array of token ids"},
           {R"({"prompt": "x", "spec": ""})", "off, ngram, mtp, draft, auto"},
           {R"({"prompt": "x", "spec": "mtp"})", "--assistant"},
           {R"({"prompt": "x", "spec": "draft"})", "--draft-model"},
           {R"({"prompt_tokens": [5, 260]})", "260; allowed: 0 to 259"}}) {
    std::ofstream(requests) << R"({"prompt": "abc", "n": 1})"
                            << "\n\n"
                            << line << "\n";
    const Outcome result = run_program("batch -m " + model + " --requests " + requests);
    EXPECT_EQ(result.code, 2) << line;
    EXPECT_THAT(result.output, AllOf(HasSubstr("request on line 3: "), HasSubstr(part)));
    EXPECT_THAT(result.output, testing::Not(HasSubstr("KV bf16"))) << "was loaded: " << line;
  }
}

TEST_F(Documents, APromptThatIsTooLongFailsAloneAndIsNamedByItsLine) {
  const std::string requests = temporary_path("requests.jsonl");
  std::ofstream(requests) << R"({"prompt": "abc", "n": 1})"
                          << "\n"
                          << R"({"prompt": "a much longer prompt"})"
                          << "\n";
  const Outcome result = run_program("batch -m " + model + " --ctx 16 --requests " + requests);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("request on line 2: the prompt has 27 tokens"),
                                   HasSubstr("\"prompt_tokens\":4")));
}

TEST_F(Documents, ABatchWithoutARequestIsRefusedAlsoQuietly) {
  const std::string requests = temporary_path("requests.jsonl");
  std::ofstream(requests) << "\n \n";
  for (const auto& [flags, name] : std::vector<std::pair<std::string, std::string>>{
           {"--requests " + requests, "requests.jsonl'"}, {"-q --requests -", "standard input"}}) {
    const Outcome result = run_program("batch -m " + model + " " + flags);
    EXPECT_EQ(result.code, 2) << flags;
    EXPECT_THAT(result.output, HasSubstr(name + " has no request; needed: one JSON object a line"));
  }
}

TEST_F(Documents, WhatWasNotMeasuredIsNoNumber) {
  for (const auto& [tokens, prefill] : std::vector<std::pair<int, bool>>{{0, true}, {1, false}}) {
    const std::string flags = fmt::format("-p x --ignore-eos -n {} ", tokens);
    const core::Json json = json_of(run_program(run_model + flags + "-q --json -").output);
    EXPECT_EQ(at(json, "stats.prefill_tokens_per_s").is_null(), prefill) << tokens;
    EXPECT_TRUE(at(json, "stats.decode_tokens_per_s").is_null()) << tokens;
    EXPECT_THAT(run_program(run_model + flags).output,
                HasSubstr(tokens == 1 ? "1 token at -/s, - a step" : "0 tokens at -/s, - a step"));
  }
}

/// Settings are those that were used, and what has no setting is told of what ran.
TEST_F(Documents, TheDocumentNamesTheDraftsTheKernelsAndThePathsThatWere) {
  for (const auto& [spec, most] :
       std::vector<std::pair<std::string, int>>{{"off", 0}, {"ngram", 4}, {"auto", 8}}) {
    const core::Json json = json_of(
        run_program(run_model + "-p 'abcabcabc' -n 9 --ignore-eos -q --json - --spec " + spec)
            .output);
    EXPECT_EQ(*at(json, "settings.draft_tokens").as_int(), most);
    EXPECT_EQ(*at(json, "settings.model").as_string(), model);
    EXPECT_TRUE(at(json, "settings.kernel").is_null());
    std::int64_t steps = 0;  // of the sliding layers
    for (const core::Json& use : *at(json, "attention").as_array()) {
      EXPECT_THAT(*at(use, "kernel").as_string(), HasSubstr("cpu."));
      if (*at(use, "kind").as_string() == "sliding") steps += *at(use, "steps").as_int();
    }
    EXPECT_EQ(steps, 1 + *at(json, "stats.steps").as_int());  // one of the prompt
  }
}

TEST_F(Documents, InspectAndTokenizeRecordSettingsMachineAndBuild) {
  for (const std::string& command : {"inspect " + model, "tokenize -p x -m " + model}) {
    const core::Json json = json_of(run_program(command + " -q --json -").output);
    for (const char* field : {"settings", "machine.cpu", "build.commit"})
      EXPECT_FALSE(at(json, field).is_null()) << command << field;
  }
}

TEST_F(Documents, LadderMeasuresEveryCellAndSolvesForBreakEven) {
  const Outcome result =
      run_program("ladder -m " + model +
                  " --depths 64,300 --spec off,ngram:2,auto --policies segue,stock "
                  "--rounds 2 --tokens 16 --synthetic-acceptance 0.8,0.5 --quiet --json -");
  ASSERT_EQ(result.code, 0) << result.output;
  const core::Json json = json_of(result.output);
  EXPECT_GT(*at(json, "settings.threads").as_int(), 0);
  EXPECT_EQ(*at(json, "settings.page_size").as_int(), 64);
  const core::Json::Array* rows = at(json, "rows").as_array();
  ASSERT_NE(rows, nullptr);
  EXPECT_EQ(rows->size(), 12u);
  for (const core::Json& row : *rows) {
    EXPECT_EQ(at(row, "tokens_per_s.samples").as_array()->size(), 2u);
    ASSERT_EQ(at(row, "groups").as_array()->size(), 2u);
    EXPECT_THAT(*at(at(row, "groups").as_array()->front(), "kernel").as_string(),
                HasSubstr("cpu."));
    EXPECT_TRUE(at(row, "ratio_to_off.low95").is_null());  // four slices bound nothing
    EXPECT_TRUE(at(row, "ratio_to_off.high95").is_null());
    if (*at(row, "spec").as_string() == "off") {
      EXPECT_EQ(at(row, "tokens_per_step").dump(), "1.0");
    }
    EXPECT_NE(row.find("break_even_acceptance"), nullptr);
  }
}

}  // namespace
}  // namespace segue::e2e
