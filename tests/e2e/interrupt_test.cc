// SPDX-License-Identifier: Apache-2.0
// Ctrl-C in the middle of a generation, as a terminal sends it to the program.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "e2e/tiny_model.h"
#include "engine/loop.h"
#include "lab/cells.h"
#include "lab/ladder.h"
#include "segue/engine.h"

namespace segue::e2e {
namespace {

/// The program with its standard output on a pipe.
struct Running {
  pid_t pid = -1;
  int output = -1;

  explicit Running(std::vector<std::string> arguments) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    output = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    arguments.insert(arguments.begin(), SEGUE_PROGRAM);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid, SEGUE_PROGRAM, &actions, nullptr, pointers.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  ~Running() { close(output); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  /// Up to `most` bytes, fewer only at the end of the output.
  std::string read_bytes(std::size_t most) const {
    std::string text;
    std::array<char, 256> buffer;
    while (text.size() < most) {
      const ssize_t got =
          ::read(output, buffer.data(), std::min(buffer.size(), most - text.size()));
      if (got <= 0) break;
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return text;
  }

  int wait_code() const {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
};

TEST(Interrupt, CtrlCEndsARunCleanlyWithWhatWasWritten) {
  // Slow enough that it cannot be finished by the time that its first bytes have been read.
  const std::string model = write_tiny({.context = 100'000});
  const std::string json = temporary_path("interrupted.json");
  const Running program({"run", "-m", model, "-p", "x", "--ignore-eos", "--spec", "off",
                         "--temperature", "1", "--threads", "2", "--json", json});
  std::string text = program.read_bytes(8);
  ASSERT_EQ(text.size(), 8u);
  for (int i = 0; i < 2; ++i)  // as timeout(1) does: the process, then its group
    ASSERT_EQ(kill(program.pid, SIGINT), 0);
  text += program.read_bytes(10'000'000);
  EXPECT_EQ(program.wait_code(), 128 + SIGINT);

  const Result<std::string> written = core::read_file(json);
  ASSERT_TRUE(written.ok());
  const Result<core::Json> document = core::Json::parse(*written);
  ASSERT_TRUE(document.ok()) << "the JSON must be whole";
  EXPECT_EQ(*document->find("finish_reason")->as_string(), "cancelled");
  const std::size_t tokens = document->find("tokens")->as_array()->size();
  EXPECT_LT(tokens, 99'000u);

  // A run of just so many tokens prints the same: nothing that the JSON holds was lost.
  const Running again({"run", "-m", model, "-p", "x", "--ignore-eos", "--spec", "off",
                       "--temperature", "1", "--quiet", "-n", fmt::format("{}", tokens)});
  EXPECT_EQ(text, again.read_bytes(10'000'000));
  EXPECT_EQ(again.wait_code(), 0);
}

TEST(Interrupt, CtrlCEndsAMeasurementWithATableAndADocumentOfWhatFinished) {
  const std::string model = write_tiny({.context = 100'000});
  const std::string text = temporary_path("long.txt");
  ASSERT_TRUE(core::write_file(text, std::string(90'000, 'x')).ok());
  const std::vector<std::vector<std::string>> commands{
      {"ladder", "-m", model, "--depths", "64,128", "--rounds", "1000", "--tokens", "64", "--spec",
       "off,ngram:2", "--policies", "segue"},
      {"cells", "-m", model, "--depths", "64", "--rounds", "1000", "--tokens", "64", "--fixed",
       "2"},
      {"sweep", "--shape", "4,1,64", "--depths", "64", "--rounds", "1000", "--cache", "warm"},
      {"exactness"},
      {"eval", "-m", model, "--text-file", text}};
  for (std::vector<std::string> command : commands) {
    const std::string json = temporary_path("interrupted.json");
    const std::string name = command[0];
    command.insert(command.end(), {"--threads", "2", "--json", json});
    const Running program(command);
    usleep(800'000);
    ASSERT_EQ(kill(program.pid, SIGINT), 0);
    const std::string table = program.read_bytes(1'000'000);
    EXPECT_EQ(program.wait_code(), 128 + SIGINT) << name;
    EXPECT_NE(table.find('\n'), std::string::npos) << name;
    const Result<std::string> written = core::read_file(json);
    ASSERT_TRUE(written.ok()) << name;
    const Result<core::Json> document = core::Json::parse(*written);
    ASSERT_TRUE(document.ok()) << name;
    EXPECT_TRUE(*document->find("interrupted")->as_bool()) << name;
    if (name == "eval") {
      const std::int64_t positions = *document->find("positions")->as_int();
      EXPECT_LT(positions, *document->find("total_positions")->as_int());
      EXPECT_NE(table.find(fmt::format("{} of 90000 positions", positions)), std::string::npos)
          << table;
      continue;
    }
    const core::Json* results = nullptr;
    for (const char* key : {"rows", "cells", "cases"}) {
      if (results == nullptr) results = document->find(key);
    }
    ASSERT_NE(results, nullptr) << name;
    for (const core::Json& row : *results->as_array()) {
      const core::Json* rates = row.find("tokens_per_s");
      if (rates == nullptr) continue;
      EXPECT_GT(rates->find("samples")->as_array()->size(), 0u);
      EXPECT_LT(rates->find("samples")->as_array()->size(), 1000u);
    }
  }
}

/// One step of the whole prompt, which takes far longer than loading: a signal that came while the
/// program was loading, so that it wrote no document, is sent later the next time.
TEST(Interrupt, CtrlCEndsARunInTheMiddleOfAStep) {
  const std::string model = write_tiny({.architecture = "llama", .context = 65536});
  const std::string text = temporary_path("long.txt");
  const std::string json = temporary_path("interrupted.json");
  ASSERT_TRUE(core::write_file(text, std::string(65'000, 'x')).ok());
  Result<std::string> written = std::string();
  for (unsigned ms = 400; ms < 30'000; ms *= 2) {
    std::filesystem::remove(json);
    const Running program({"run", "-m", model, "--prompt-file", text, "--prefill-chunk", "65536",
                           "--ignore-eos", "--threads", "2", "--json", json});
    usleep(1000 * ms);
    ASSERT_EQ(kill(program.pid, SIGINT), 0);
    EXPECT_EQ(program.wait_code(), 128 + SIGINT);
    written = core::read_file(json);
    if (written.ok()) break;
  }
  ASSERT_TRUE(written.ok());
  const Result<core::Json> document = core::Json::parse(*written);
  ASSERT_TRUE(document.ok());
  EXPECT_EQ(*document->find("finish_reason")->as_string(), "cancelled");
  EXPECT_TRUE(document->find("tokens")->as_array()->empty()) << "the step went on to its end";
}

/// Asked for the n-th time: before the first layer of the first step of a model, in the middle of
/// some layer, or in the head. A prompt in one chunk, which wants logits at once, or in two.
class CancelledStep : public testing::TestWithParam<int> {};

TEST_P(CancelledStep, LeavesTheCacheAsItWas) {
  const std::string path = write_tiny({});
  const auto runtime =
      engine::Runtime::load({.model = path, .draft_model = path, .threads = 2}).value();
  std::int64_t left = -1;  // questions until the answer is yes; below 0: never
  engine::LoopOptions options;
  options.context = 600;
  options.prefill_chunk = GetParam();
  options.cancelled = [&left] { return left == 0 || left-- == 0; };
  const auto loop = engine::Loop::create(*runtime, options).value();
  speculate::Controller controller;
  /// Tries every step this many times with a cancellation before it lets it run.
  const auto tokens = [&](int tries) {
    engine::Sequence sequence;
    sequence.tokens = repetitive_tokens(300, 3);
    sequence.prompt_tokens = 300;
    sequence.limit = 330;
    sequence.ignore_eos = true;
    sequence.spec = SpecMode::kDraft;
    sequence.max_draft = 4;
    sequence.drafters = loop->drafters(SpecMode::kDraft).value();
    loop->admit(sequence);
    engine::Sequence* const one = &sequence;
    int cancelled = 0;
    while (!sequence.finished) {
      const std::int64_t depth = loop->cached(sequence);
      const std::int64_t pages[] = {loop->cache().pages_in_use(0), loop->cache().pages_in_use(1)};
      const std::vector<std::int32_t> before = sequence.tokens;
      for (int i = 0; i < tries; ++i) {
        left = i * i;
        const Result<engine::StepReport> report =
            loop->step({&one, 1}, attention::Policy::kSegue, controller);
        if (report.ok()) break;  // so few questions that it had its answer before
        EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
        EXPECT_EQ(loop->cached(sequence), depth);
        EXPECT_EQ(sequence.tokens, before);
        EXPECT_EQ(loop->cache().check_integrity(), "");
        for (int pool = 0; pool < 2; ++pool)
          EXPECT_EQ(loop->cache().pages_in_use(pool), pages[pool]);
        ++cancelled;
      }
      left = -1;
      if (loop->cached(sequence) == depth) {
        EXPECT_TRUE(loop->step({&one, 1}, attention::Policy::kSegue, controller).ok());
      }
    }
    loop->release(sequence);
    EXPECT_EQ(cancelled > 10, tries > 0) << cancelled;
    return sequence.tokens;
  };
  const std::vector<std::int32_t> found = tokens(12);
  EXPECT_EQ(found, tokens(0));
}

INSTANTIATE_TEST_SUITE_P(Chunks, CancelledStep, testing::Values(256, 512));

TEST(Interrupt, AnEngineGoesOnAfterAPromptThatWasCancelledInTheMiddleOfAStep) {
  std::atomic<bool> cancel{false};
  EngineOptions options;
  options.model = write_tiny({.architecture = "llama", .context = 50'000});
  options.threads = 2;
  options.prefill_chunk = 50'000;
  options.cancel = &cancel;
  const auto engine = Engine::create(options).value();
  Request request;
  request.max_tokens = 20;
  request.ignore_eos = true;
  request.prompt_tokens = repetitive_tokens(400, 5);
  const std::vector<std::int32_t> expected = engine->generate(request).value().tokens;
  EXPECT_EQ(expected.size(), 20u);
  Request longer = request;  // begins as the other does
  longer.prompt_tokens = repetitive_tokens(49'000, 5);
  std::thread person([&] {
    usleep(200'000);
    cancel = true;
  });
  const Completion cut = engine->generate(longer).value();
  person.join();
  EXPECT_EQ(cut.finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(cut.tokens.empty());
  cancel = false;
  EXPECT_EQ(engine->generate(request).value().tokens, expected);
}

TEST(Interrupt, ASecondCtrlCEndsTheProgramAtOnce) {
  const std::string model = write_tiny({.context = 100'000});
  const std::string json = temporary_path("interrupted.json");
  // Text that nobody reads: the program cannot end cleanly before its pipe is empty.
  const Running program({"run", "-m", model, "-p", "x", "--ignore-eos", "--spec", "off",
                         "--temperature", "1", "--json", json});
  ASSERT_GE(fcntl(program.output, F_SETPIPE_SZ, 4096), 4096);
  for (int queued = 0, before = -1; queued < 2000 || queued != before;) {
    before = queued;
    usleep(300'000);
    ASSERT_EQ(ioctl(program.output, FIONREAD, &queued), 0);
  }
  ASSERT_EQ(kill(program.pid, SIGINT), 0);
  usleep(300'000);
  ASSERT_EQ(kill(program.pid, SIGINT), 0);
  EXPECT_EQ(program.wait_code(), 128 + SIGINT);
  EXPECT_FALSE(core::read_file(json).ok());
}

TEST(Interrupt, NothingGoesOnLoadingAfterCtrlC) {
  const std::string model = write_tiny({});
  std::atomic<bool> cancel{true};
  EngineOptions engine;
  engine.model = model;
  engine.cancel = &cancel;
  EXPECT_EQ(Engine::create(engine).error().code, ErrorCode::kCancelled);
  lab::LadderOptions ladder;
  ladder.depths = {64};
  ladder.specs = {lab::parse_ladder_spec("off").value()};
  ladder.policies = {attention::Policy::kSegue};
  ladder.cancelled = [] { return true; };
  EXPECT_EQ(lab::run_ladder(model, ladder).error().code, ErrorCode::kCancelled);
  lab::CellOptions cells;
  cells.depths = {64};
  cells.batches = {1};
  cells.profiles = {lab::parse_cell_profile("0").value()};
  cells.cancelled = [] { return true; };
  EXPECT_EQ(lab::run_cells(model, cells).error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace segue::e2e
