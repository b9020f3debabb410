// SPDX-License-Identifier: Apache-2.0
// The program as its user sees it: exit codes, messages, flags and help, on a small random model.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/file.h"
#include "core/json.h"
#include "e2e/program.h"
#include "e2e/tiny_model.h"

namespace segue::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Cli : public testing::Test {
 protected:
  std::string model = write_tiny({});
  std::string run_model = "run -m " + model + " ";
  std::string chatty = write_tiny({.chat_template = "{{ '<start_of_turn>' }}"}, "chatty");
};

TEST_F(Cli, UsageErrorsExitWithTwoAndNameTheFlag) {
  for (const auto& [arguments, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "Commands"},
           {"dance", "no command 'dance'"},
           {"run", "--model"},
           {run_model, "-p TEXT"},
           {run_model + "-p x --frobnicate", "there is no flag '--frobnicate'"},
           {run_model + "-p x -n -2", "-n"},
           {run_model + "-p x -n 1e3", "1e3"},
           {run_model + "-p x --temperature nan", "--temperature"},
           {run_model + "-p x --kv q8_0", "'q8_0' is not allowed; allowed: f32, f16, bf16"},
           {run_model + "-p x --temperature -1", "--temperature"},
           {run_model + "-p x --top-p 1.5", "--top-p"},
           {run_model + "-p x --spec medusa", "off, ngram, mtp, draft, auto"},
           {run_model + "-p x --policy fast", "pr45450"},
           {run_model + "-p x --kv int3", "bf16"},
           {run_model + "-p x --page-size 12",
            "--page-size: '12' is not allowed; allowed: multiples"},
           {run_model + "-p", "--prompt needs a value"},
           {run_model + "-p x --chat=yes", "--chat takes no value"},
           {run_model + "-p x -p y", "--prompt is given 2 times; allowed: once"},
           {run_model + "-p x file", "'file' belongs to no flag"},
           {"--version twice", "--version takes no more; found 'twice'"},
           {"help dance", "no command 'dance'"},
           {"help run run", "run takes no more; found 'run'"},
           {run_model + "-p x --draft-tokens 9", "--draft-tokens"},
           {run_model + "-p x --kernel nothing", "reference"},
           {run_model + "-p x --ctx 1000000", "--ctx) is 1000000; allowed: 0 to 2048"},
           {run_model + "-p x --prompt-file y", "exclude"},
           {run_model + "-p x --system y", "--chat"},
           {run_model + "--chat --json -", "standard output"},
           {run_model + "--chat -q", "no turn tokens of a known chat format"},
           {run_model + "--chat", "; -p completes a text without a format"},
           {run_model + "-p x -n 1 --stop", "--stop"},
           {run_model + "-p x --stop -n 1", "1"},
           {run_model + "-p x -n 1 --stop a b", "b"},
           {run_model + "-p x -n 1 --stop ''", "empty"},
           {"explain --shape 16,7,256", "7"},
           {"explain --shape banana", "banana"},
           {"explain", "--shape"},
           {"sweep --shape 4,1,100", "100"},
           {"sweep", "--shape is required"},
           {"sweep --shape 4,1,64 --rows 0", "--rows"},
           {"sweep --shape 4,1,64 --depths 512,,1024", "--depths"},
           {"ladder -m " + model + " --spec ngram:99", "ngram:K"},
           {"inspect ''", "empty"},
           // More than the model has, or what there is no model for: found before it is loaded.
           {"ladder -m " + model + " --depths 100000", "2048"},
           {"cells -m " + model + " --depths 100000", "2048"},
           {run_model + "-p x --spec mtp", "--assistant"},
           {run_model + "-p x --spec draft", "--draft-model"},
           {"ladder -m " + model + " --spec off,mtp:4", "--assistant"},
           {"ladder -m " + model + " --spec draft:4", "--draft-model"},
           {"ladder -m " + model + " --page-size 12", "multiples of 8"},
           {"ladder -m " + model + " --synthetic-acceptance .9,.8,.7,.6,.5,.4,.3,.2,.1",
            "9 values; allowed: up to 8"},
           {"sweep --shape 4,1,64 --kernel cuda.sm80.bf16", "cuda.sm80.bf16"},
           {"explain --shape 4,1,64 --device cuda --kernel reference", "--device cpu"},
           {"explain --shape 4,1,64 --device cuda --kv f32", "f16, bf16"},
           {"explain --shape 4,1,64 --kernel cpu.portable.f16", "it does with KV (--kv) of f16"},
           {"sweep --shape 4,1,64 --kernel cpu.portable.f16", "does not support"},
           {"sweep --shape 4,1,64 --layout swizzled8", "token-major and head-major"},
           {"exactness --kv f16 --kernel cpu.portable.bf16", "does not support"},
           {run_model + "-p x --kernel cpu.portable.f16", "does not support"},
       }) {
    const Outcome result = run_program(arguments);
    EXPECT_EQ(result.code, 2) << arguments << "\n" << result.output;
    EXPECT_THAT(result.output, HasSubstr(part)) << arguments;
  }
}

TEST_F(Cli, FailuresExitWithOneAndNameTheThing) {
  const std::string empty = temporary_path("empty.gguf");
  std::ofstream(empty).flush();
  const std::string text = temporary_path("text.gguf");
  std::ofstream(text) << "this is not a model";
  const std::string other = write_tiny({.vocab = 259}, "other");
  const std::string assistant = write_tiny_assistant({.hidden = 128});
  const std::string loop = temporary_path("loop");
  std::filesystem::create_symlink(loop, loop);
  for (const auto& [arguments, part] : std::vector<std::pair<std::string, std::string>>{
           {"run -m /nonexistent.gguf -p x", "/nonexistent.gguf"},
           {"run -m / -p x", "config.json"},
           {"run -m " + empty + " -p x", "empty.gguf"},
           {"run -m " + text + " -p x", "text.gguf"},
           {"inspect " + text, "text.gguf"},
           {run_model + "--prompt-file /nonexistent.txt", "/nonexistent.txt"},
           {"run -p x -m " + loop, "cannot open '" + loop},
           {"explain -m " + loop, "cannot open '" + loop},
           {"tokenize -p x -m " + loop, "cannot open '" + loop},
           {"run -p x -m " + std::string(300, 'a'), "File name too long"},
           {run_model + "-p x -n 1 --json /nonexistent/out.json", "/nonexistent/out.json"},
           {run_model + "-p x -n 1 --json /dev/full", "/dev/full"},
           {run_model + "-p x -n 1 --trace /dev/full", "'/dev/full': No space left"},
           {run_model + "-p 'a longer prompt' --ctx 8", "context (--ctx) holds 8"},
           {"kernels --device cuda", "CUDA"},
           {run_model + "-p x --device cuda", "CUDA"},
           {"ladder -m " + model + " --device cuda", "CUDA"},
           {"cells -m " + model + " --device cuda", "CUDA"},
           {"eval -m " + model + " --device cuda --text-file " + text, "CUDA"},
           {"sweep --shape 4,1,64 --shape 64,64,512 --depths 64,16777216 --rows 1 --kv f32 "
            "--rounds 1000",
            "bytes"},
           {"eval -m " + model + " --text-file " + empty, "empty.gguf"},
           {"eval -m " + model + " --text-file -", "standard input is empty"},
           {run_model + "--prompt-file " + empty, "empty.gguf' is empty"},
           {run_model + "--prompt-file -", "standard input is empty"},
           {"ladder -m " + model + " --prompt-file " + empty, "empty.gguf"},
           {run_model + "-p x --draft-model " + other, "they must be equal"},
           {run_model + "-p x --assistant " + assistant, "was made for a target with"},
       }) {
#ifdef SEGUE_CUDA
    if (part == "CUDA") continue;
#endif
    const Outcome result = run_program(arguments);
    EXPECT_EQ(result.code, 1) << arguments << "\n" << result.output;
    EXPECT_THAT(result.output, HasSubstr(part)) << arguments;
  }
}

TEST_F(Cli, AChatWithoutATemplateNamesTheFormatThatTheTokensTell) {
  const std::string turns =
      write_tiny({.first_tokens = {"<start_of_turn>", "<end_of_turn>"}}, "turns");
  const std::string note =
      "the model has no chat template: turns of the format gemma3 are used, because its vocabulary "
      "has <start_of_turn> and <end_of_turn>\n";
  EXPECT_THAT(run_program("run --chat -m " + turns).output, HasSubstr(note));
  EXPECT_EQ(run_program("run --chat -q -m " + turns).output, "");
  EXPECT_THAT(run_program("run --chat -m " + chatty).output, testing::Not(HasSubstr("template")));
}

TEST_F(Cli, AChatReadsNoLineThatTheContextCannotHold) {
  const std::string json = temporary_path("chat.json");
  const Outcome result = run_program("run -m " + chatty + " --chat --json " + json, "/dev/zero");
  EXPECT_EQ(result.code, 1);
  // The longest tokens are called "<0x00>" and so on.
  EXPECT_THAT(result.output, HasSubstr("more than 12288 bytes"));
  EXPECT_THAT(result.output, HasSubstr("2048 tokens of the context"));
  EXPECT_TRUE(at(json_of(core::read_file(json).value()), "completions").as_array()->empty());
}

TEST_F(Cli, AChatWhoseInputCannotBeReadFails) {
  const Outcome result = run_program("run -m " + chatty + " --chat", "/");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.output, HasSubstr("cannot read standard input: Is a directory"));
}

TEST_F(Cli, NobodyReadingStandardErrorIsNoFailureAndChangesNoExitStatus) {
  const auto code = [](const std::string& arguments, const char* error) {
    const std::string command =
        fmt::format("{} > /dev/null < /dev/null 2>{} {}", SEGUE_PROGRAM, error, arguments);
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  };
  for (const char* error : {"&-", "/dev/full"}) {
    EXPECT_EQ(code(run_model + "-p x -n 1", error), 0);
    EXPECT_EQ(code(run_model + "-p x -n 1 --quiet --logits-hash", error), 0);
    EXPECT_EQ(code("run -m " + chatty + " --chat", error), 0);
    EXPECT_EQ(code("inspect /nonexistent.gguf", error), 1);
    EXPECT_EQ(code("run --nonsense", error), 2);
    EXPECT_EQ(code("", error), 2);
    EXPECT_EQ(code("kernels >&-", error), 1);
  }
}

TEST_F(Cli, TruncatedModelsAreRefusedAtEveryLength) {
  const Result<std::string> bytes = core::read_file(model);
  ASSERT_TRUE(bytes.ok());
  const std::string path = temporary_path("cut.gguf");
  for (std::size_t size = 0; size < bytes->size(); size += bytes->size() / 12 + 1) {
    ASSERT_TRUE(core::write_file(path, std::string_view(*bytes).substr(0, size)).ok());
    EXPECT_EQ(run_program("run -m " + path + " -p x -n 1").code, 1) << size;
  }
}

TEST_F(Cli, WhatIsNoModelIsNamedWithWhatItIsAndWhatIsAllowed) {
  const std::string folder = temporary_path("folder");
  std::filesystem::create_directory(folder);
  const std::string json = temporary_path("config.json");
  std::ofstream(json) << "{}";
  for (const auto& [command, allowed] : std::vector<std::pair<std::string, std::string>>{
           {"run -p x -m ", "tokenizer.json"},
           {"batch --requests /dev/null -m ", "tokenizer.json"},
           {"ladder -m ", "tokenizer.json"},
           {"cells -m ", "tokenizer.json"},
           {"eval --text-file " + json + " -m ", "tokenizer.json"},
           {"tokenize -p x -m ", "tokenizer.json"},
           {run_model + "-p x --assistant ", "tokenizer.json"},
           {run_model + "-p x --draft-model ", "tokenizer.json"},
           {"ladder -m " + model + " --assistant ", "tokenizer.json"},
           {"inspect ", "safetensors"}}) {
    for (const std::string& path : {folder, json}) {
      const Outcome result = run_program(command + path);
      EXPECT_EQ(result.code, 1) << command;
      EXPECT_THAT(result.output, AllOf(HasSubstr(path), HasSubstr(allowed))) << command;
    }
  }
}

TEST_F(Cli, AReferenceOfEvalIsNamedWithWhatIsWrongInIt) {
  const std::string reference = temporary_path("reference.json");
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "no 'tokens'"},
           {R"({"tokens": 5})", "no array"},
           {R"({"tokens": [1, -2]})", "token 1 is -2; allowed: 0 to 259"},
           {R"({"tokens": [1, "a"]})", "token 1 is \"a\""},
           {R"({"tokens": [1]})", "has 1 token; at least 2"},
           {R"({"tokens": [1, 2, 3]})", "top_ids has 0 entries"},
           {R"({"tokens": [1, 2], "top_ids": [[1]], "top_logprobs": [[]]})", "position 0"}}) {
    std::ofstream(reference) << text;
    const Outcome result = run_program("eval -m " + model + " --reference " + reference);
    EXPECT_EQ(result.code, 1) << text;
    EXPECT_THAT(result.output, AllOf(HasSubstr("reference.json"), HasSubstr(part))) << text;
  }
}

TEST_F(Cli, BytesWithoutATokenAreCountedWhereverTextIsRead) {
  // Without the last three bytes: 0xfd, 0xfe, 0xff.
  const std::string lacking = write_tiny({.vocab = 257}, "lacking");
  const std::string requests = temporary_path("requests.jsonl");
  const std::string text = temporary_path("text.txt");
  std::ofstream(text) << "a\xff"
                      << "b\xfe\xff";
  const std::string warning = "warning: 3 bytes of the text are in no token";
  const std::string file = "-m " + lacking + " --prompt-file " + text + " ";
  EXPECT_THAT(run_program("tokenize " + file).output, HasSubstr(warning));
  EXPECT_EQ(*at(json_of(run_program("tokenize -q --json - " + file).output), "lost_bytes").as_int(),
            3);
  EXPECT_THAT(run_program("run -n 1 " + file).output, HasSubstr(warning));
  EXPECT_EQ(*at(json_of(run_program("run -n 1 -q --json - " + file).output), "lost_bytes").as_int(),
            3);
  // A vocabulary that has them all says nothing.
  const std::string whole = "run -n 1 -m " + model + " --prompt-file " + text;
  EXPECT_THAT(run_program(whole).output, testing::Not(HasSubstr("warning")));
  EXPECT_EQ(*at(json_of(run_program(whole + " -q --json -").output), "lost_bytes").as_int(), 0);
}

TEST_F(Cli, TheStartLineSaysWhatStepItDescribes) {
  const std::string models =
      fmt::format("--assistant {} --draft-model {} ", write_tiny_assistant({}), model);
  for (const auto& [flags, part] : std::vector<std::pair<std::string, std::string>>{
           {"--draft-tokens 3",
            "auto, up to 3 drafts a step by ngram; its largest steps, of 4 rows:"},
           {"--spec auto " + models, "auto, up to 8 drafts a step by ngram, mtp, draft; "},
           {"--spec ngram " + models,
            "ngram, up to 4 drafts a step by ngram; its largest steps, of 5 rows:"},
           {"--spec mtp " + models, "mtp, up to 4 drafts a step by mtp; "},
           {"--spec draft " + models, "draft, up to 4 drafts a step by draft; "},
           {"--spec off " + models, "speculation off; steps of 1 row:"}}) {
    EXPECT_THAT(run_program(run_model + "-p x -n 1 --ctx 1000 " + flags).output, HasSubstr(part));
  }
}

TEST_F(Cli, ExplainNamesTheLayersOfAModel) {
  const std::string command = "explain -m " + model;
  EXPECT_THAT(run_program(command).output,
              AllOf(HasSubstr("layers      tiny gemma3 sliding (6 layers)\n"),
                    HasSubstr("layers      tiny gemma3 global (1 layer)\n"),
                    HasSubstr(" of partials in each layer\n")));
  const core::Json json = json_of(run_program(command + " -q --json -").output);
  EXPECT_EQ(*at(at(json, "groups").as_array()->front(), "layers").as_string(),
            "tiny gemma3 sliding (6 layers)");
}

TEST_F(Cli, ExplainKnowsTheModelsContext) {
  const Outcome deep = run_program("explain -m " + model + " --depth 10000000");
  EXPECT_EQ(deep.code, 2);
  EXPECT_THAT(deep.output, HasSubstr("--depth 10000000 and 1 rows need 10000001 positions"));
  EXPECT_EQ(run_program("explain -m " + model + " --rows 4").code, 0);  // as deep as there is room
}

TEST_F(Cli, NoCommandOverwritesWhatItReads) {
  const std::string folder = temporary_path("model");
  std::filesystem::create_directory(folder);
  for (const char* name : {"config.json", "tokenizer.json"})
    std::ofstream(std::filesystem::path(folder) / name) << "{}";
  for (const std::string command :
       {"run -p x -m ", "batch --requests - -m ", "ladder -m ", "cells -m ",
        "eval --text-file x -m ", "tokenize -p x -m ", "explain -m "}) {
    for (const auto& [input, output] : std::vector<std::pair<std::string, std::string>>{
             {model, model},
             {folder, folder + "/config.json"},
             {folder, folder + "/tokenizer.json"},
             {folder, folder + "/model.safetensors"}}) {
      const Outcome result = run_program(command + input + " --json " + output);
      EXPECT_EQ(result.code, 2) << command << output;
      EXPECT_THAT(result.output, AllOf(HasSubstr("--json would overwrite"), HasSubstr(output)));
    }
  }
  EXPECT_EQ(run_program("ladder --random-weights " + folder + "/config.json --json " + folder +
                        "/config.json")
                .code,
            2);
  const Result<std::string> kept = core::read_file(folder + "/config.json");
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(*kept, "{}");
  EXPECT_EQ(run_program(run_model + "-p x -n 1 -q --json " + folder + "/result.json").code, 0);
}

TEST_F(Cli, ASeedWithoutRandomWeightsIsRefused) {
  for (const std::string command : {"ladder", "cells"}) {
    const Outcome result = run_program(command + " -m " + model + " --seed 3");
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_THAT(result.output, HasSubstr("--random-weights, which is not given")) << command;
  }
}

TEST_F(Cli, APipeMayBeTheOutput) {
  const std::string pipe = temporary_path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string copy = temporary_path("copy.json");
  for (const std::string& command :
       {run_model + "-p x -n 1 -q --json ", run_model + "-p x -n 1 -q --trace ",
        std::string("explain --shape 4,1,64 -q --json ")}) {
    const Outcome result =
        run_program(command + pipe + " & timeout 20 cat " + pipe + " > " + copy + "; wait; true");
    EXPECT_EQ(result.code, 0) << command << result.output;
    const Result<std::string> text = core::read_file(copy);
    ASSERT_TRUE(text.ok());
    EXPECT_THAT(*text, HasSubstr("{")) << command;
  }
}

TEST_F(Cli, HelpSaysWhatExitStatusesMean) {
  EXPECT_THAT(run_program("--help").output,
              AllOf(HasSubstr("Exit status"), HasSubstr("must be changed")));
}

TEST_F(Cli, ExplainNamesClausesAndWorkgroupsOfThePublishedCase) {
  const auto explain = [](const std::string& flags) {
    return json_of(
        run_program("explain --shape 16,8,256 --depth 32768 --quiet --json - " + flags).output);
  };
  EXPECT_EQ(*at(explain("--policy stock --rows 2"), "workgroups").as_int(), 8);
  EXPECT_EQ(*at(explain("--policy stock --rows 1"), "workgroups").as_int(), 128);
  for (const char* layout : {"token-major", "head-major"}) {
    const core::Json natural = explain(std::string("--layout ") + layout);
    EXPECT_EQ(*at(natural, "kernel").as_string(), *at(explain(""), "kernel").as_string());
    EXPECT_THAT(run_program(std::string("explain --shape 16,8,256 --layout ") + layout).output,
                HasSubstr(layout));
  }
  EXPECT_THAT(run_program("explain --shape 16,8,256 --policy stock --rows 2").output,
              HasSubstr("max_seqlen_q > 1"));
  EXPECT_THAT(run_program("explain --shape 16,8,256 --policy stock --batch 64").output,
              HasSubstr("seq_threshold_3D"));
  EXPECT_THAT(
      run_program("explain --shape 16,8,256 --policy pr45450 --decode-rows 2 --rows 2").output,
      testing::ContainsRegex("path +segmented"));
}

/// Situation 25: what memory cannot hold is refused before the first step, with the context that it
/// can; that number is then true.
TEST_F(Cli, AContextThatMemoryCannotHoldIsRefusedAtStartWithOneThatItCan) {
  const std::string long_model = write_tiny({.layers = 6, .context = 1 << 30}, "long");
  for (const std::string& command :
       {"run -q -p x -n 2 -m " + long_model, "run -q -p x -n 2 --spec off -m " + long_model}) {
    const Outcome refused = run_program(command);
    EXPECT_EQ(refused.code, 1) << command;
    EXPECT_THAT(refused.output, HasSubstr("1 sequence(s) of 1073741824 tokens needs"));
    const std::string before = "enough for ";
    const std::size_t at = refused.output.find(before);
    ASSERT_NE(at, std::string::npos) << refused.output;
    const std::int64_t fits = std::stoll(refused.output.substr(at + before.size()));
    ASSERT_GT(fits, 1000);
    EXPECT_EQ(run_program(command + fmt::format(" --ctx {}", fits)).code, 0) << fits;
    EXPECT_EQ(run_program(command + fmt::format(" --ctx {}", fits + 64)).code, 1) << fits;
  }
}

TEST_F(Cli, AnEntryOfAListIsRefusedTheSecondTime) {
  for (const auto& [arguments, part] : std::vector<std::pair<std::string, std::string>>{
           {"ladder -m " + model + " --depths 512,64,512", "--depths: '512,64,512' has 512 twice"},
           {"ladder -m " + model + " --spec off,auto,off", "has off twice"},
           {"sweep --shape 4,1,64 --rows 1,2,1", "--rows: '1,2,1' has 1 twice"},
           {"sweep --shape 4,1,64 --shape 4,1,64", "4,1,64 is given twice"}}) {
    const Outcome result = run_program(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_THAT(result.output, HasSubstr(part)) << arguments;
  }
}

TEST_F(Cli, FlagsOfRunAndFieldsOfBatchHaveTheSameRanges) {
  const std::string requests = temporary_path("requests.jsonl");
  for (const auto& [flag, field, value, range] :
       std::vector<std::array<std::string, 4>>{{"-n", "n", "-2", "-1 to 1073741824"},
                                               {"--temperature", "temperature", "1000001", "0 to "},
                                               {"--top-p", "top_p", "0", "1e-09 to 1"},
                                               {"--min-p", "min_p", "1.5", "0 to 1"},
                                               {"--repeat-penalty", "repeat_penalty", "0", "0.001"},
                                               {"--repeat-last-n", "repeat_last_n", "-2", "-1 to"},
                                               {"--draft-tokens", "draft_tokens", "9", "0 to 8"},
                                               {"--seed", "seed", "-1", "9223372036854775807"}}) {
    const Outcome run = run_program(run_model + "-p x " + flag + " " + value);
    EXPECT_EQ(run.code, 2) << flag;
    EXPECT_THAT(run.output, AllOf(HasSubstr(value), HasSubstr(range))) << flag;
    std::ofstream(requests) << fmt::format("{{\"prompt\": \"x\", \"{}\": {}}}\n", field, value);
    const Outcome batch = run_program("batch -m " + model + " --quiet --requests " + requests);
    EXPECT_EQ(batch.code, 2) << field;
    EXPECT_THAT(batch.output, AllOf(HasSubstr("line 1"), HasSubstr(field), HasSubstr(range)))
        << field;
  }
}

TEST_F(Cli, RangesThatAreEnforcedAreInTheHelp) {
  for (const auto& [command, flag, range] : std::vector<std::array<std::string, 3>>{
           {"run", "--top-p", "1e-09 to 1; default 1"},
           {"run", "--draft-tokens", "0 to 8; default 0"},
           {"run", "--page-size", "multiples of 8 from 0 to 65536"},
           {"batch", "--parallel", "1 to 4096; default 8"},
           {"sweep", "--rounds", "3 to 1000"},
           {"sweep", "--rows", "each 1 to 8192; default 1,2,4,8"},
           {"ladder", "--tokens", "8 to 65536"},
           {"ladder", "--spec", "K from 1 to 8"},
           {"cells", "--fixed", "each 1 to 8"},
           {"explain", "--workgroups", "0 to 1048576"}}) {
    const std::string help = run_program(command + " --help").output;
    const std::size_t begin = help.find("\n  " + flag);
    ASSERT_NE(begin, std::string::npos) << command << " " << flag;
    EXPECT_THAT(help.substr(begin, help.find("\n  -", begin + 1) - begin), HasSubstr(range))
        << command;
  }
}

TEST_F(Cli, HelpOfACommandIsTheHelpThatItGives) {
  for (const char* command : {"run", "explain"}) {
    const Outcome help = run_program(fmt::format("help {}", command));
    EXPECT_EQ(help.code, 0);
    EXPECT_EQ(help.output, run_program(fmt::format("{} --help", command)).output);
  }
}

TEST_F(Cli, ExplainPlansForTheKvTypeThatAKernelNeeds) {
  const Outcome result = run_program(
      "explain --shape 4,1,64 --kv f16 --kernel cpu.portable.f16 --depth 4096 --quiet --json -");
  ASSERT_EQ(result.code, 0) << result.output;
  const core::Json json = json_of(result.output);
  EXPECT_EQ(*at(json, "kernel").as_string(), "cpu.portable.f16");
  EXPECT_EQ(*at(json, "shape.kv").as_string(), "f16");
  EXPECT_EQ(*at(json, "settings.kv").as_string(), "f16");
  const Outcome f32 = run_program("explain -m " + model + " --kv f32");
  EXPECT_THAT(f32.output, HasSubstr("f32 KV"));
}

TEST_F(Cli, ExplainTellsWorkgroupsOfThePlanFromThoseThatTheDeviceRunsAtOnce) {
  const std::string flags = "explain --shape 16,8,256 --policy stock --rows 2 --workgroups 7 ";
  EXPECT_THAT(run_program(flags).output,
              AllOf(HasSubstr("; runs 7 workgroups at once"), HasSubstr("\nworkgroups  8\n")));
  const core::Json json = json_of(run_program(flags + "--quiet --json -").output);
  EXPECT_EQ(*at(json, "device.workgroups_at_once").as_int(), 7);
  EXPECT_EQ(*at(json, "workgroups").as_int(), 8);
}

TEST_F(Cli, EveryCommandHasHelpWithExamples) {
  for (const char* command : {"run", "batch", "ladder", "cells", "sweep", "exactness", "explain",
                              "kernels", "inspect", "tokenize", "eval"}) {
    const Outcome result = run_program(fmt::format("{} --help", command));
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_THAT(result.output, AllOf(HasSubstr("Examples:"), HasSubstr("--json"),
                                     HasSubstr("--quiet"), HasSubstr("--threads")));
  }
  EXPECT_THAT(run_program("--version").output, HasSubstr("segue 0."));
}

TEST_F(Cli, WhatAFileSaysOfItselfDoesNotDriveTheTerminal) {
  const std::string path = temporary_path("escapes.gguf");
  for (const char* key : {"general.name", "general.architecture"}) {
    gguf::Writer writer = tiny_writer({});
    writer.set(key, "\x1b[2Jgemma");
    writer.tensor("\x1b[31mred", {1}, std::vector<float>{1.0f});
    ASSERT_TRUE(writer.write(path).ok());
    for (const std::string& command :
         {"run -p x -n 1 -m " + path, "inspect " + path, "explain -m " + path}) {
      const Outcome result = run_program(command);
      EXPECT_THAT(result.output, testing::Not(HasSubstr("\x1b"))) << command;
      EXPECT_FALSE(result.output.empty());
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // they need the room themselves
TEST_F(Cli, ThreadsThatTheSystemRefusesAreAFailureWithTheirNumber) {
  for (const std::string& command :
       {run_model + "-p x -n 1", std::string("sweep --shape 4,1,64"), std::string("exactness")}) {
    const Outcome result = run_program("--version > /dev/null; ulimit -v 4000000; " +
                                       (SEGUE_PROGRAM " " + command) + " --threads 1000");
    EXPECT_EQ(result.code, 1) << command << result.output;
    EXPECT_THAT(result.output, HasSubstr("cannot start ")) << command;
  }
}
#endif

TEST_F(Cli, AModelThatIsCutWhileItIsReadIsNoCrash) {
  const std::string whole = write_tiny({.vocab = 259}, "whole");
  const std::string cut = temporary_path("cut.gguf");
  for (const char* delay : {"0", "0.002", "0.004", "0.008", "0.016"}) {
    std::filesystem::copy_file(whole, cut, std::filesystem::copy_options::overwrite_existing);
    const Outcome result = run_program(fmt::format(
        "run -m {0} -p x -n 1 2> /dev/null & sleep {1}; truncate -s 100 {0}; wait $!", cut, delay));
    EXPECT_TRUE(result.code == 0 || result.code == 1) << result.code << result.output;
  }
}

TEST_F(Cli, EmptyPromptsAndZeroTokensAreAllowed) {
  EXPECT_EQ(run_program(run_model + "-p '' -n 2 --quiet").code, 0);
  EXPECT_EQ(run_program(run_model + "-p x -n 0 --quiet").code, 0);
}

}  // namespace
}  // namespace segue::e2e
