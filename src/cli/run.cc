// SPDX-License-Identifier: Apache-2.0
// segue run: one prompt, or a chat with a person.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>

#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "core/log.h"

namespace segue::cli {
namespace {

// Estimates below are said to be slower than no speculation.
constexpr double kNotSlower = 0.98;

struct RunFlags {
  EngineFlags engine;
  RequestFlags request;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  bool chat = false;
};

void print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// "123", or "-" where nothing was measured.
std::string measured(double value, int digits) {
  return value > 0 ? fmt::format("{:.{}f}", value, digits) : "-";
}

/// `chosen`: the user fixed k, so that the advice to leave it open is one.
void print_stats(const Completion& completion, bool chosen, bool with_hash) {
  const GenerationStats& stats = completion.stats;
  const auto plural = [](auto count) { return count == 1 ? "" : "s"; };
  std::string line =
      fmt::format("[{} prompt token{} at {}/s, {} token{} at {}/s, {} a step, {}",
                  completion.prompt_tokens, plural(completion.prompt_tokens),
                  measured(stats.prefill_tokens_per_s, 0), completion.tokens.size(),
                  plural(completion.tokens.size()), measured(stats.decode_tokens_per_s, 1),
                  measured(stats.tokens_per_step, 2), finish_reason_name(completion.finish_reason));
  if (stats.drafted > 0) {
    line += fmt::format("; {} of {} drafts accepted, acceptance length {:.2f}", stats.accepted,
                        stats.drafted, stats.mean_acceptance_length);
  }
  if (with_hash) line += fmt::format("; logits hash {:016x}", completion.logits_hash);
  core::log_info(line + "]");
  if (chosen && !stats.speedup_estimated && stats.speedup_over_off > 0 &&
      stats.speedup_over_off < kNotSlower) {
    const std::string need =
        stats.break_even_acceptance > 1
            ? fmt::format("no acceptance makes k = {} pay", stats.usual_k)
            : fmt::format("k = {} needs {:.2f} of the drafts right at every position, {:.2f} were",
                          stats.usual_k, stats.break_even_acceptance, stats.usual_acceptance);
    core::log_info(fmt::format(
        "[speculation was on and slower: {:.2f} of the speed without. At this depth {}; "
        "--spec auto picks k by itself]",
        stats.speedup_over_off, need));
  }
}

void warn_of_lost_bytes(std::int64_t lost_bytes) {
  if (lost_bytes > 0) core::log_info(lost_bytes_warning(lost_bytes));
}

/// What the person sees after a completion. The hash was asked for: it is said with --quiet too,
/// unless the JSON has it.
void print_end(const RunFlags& flags, const Completion& completion) {
  const bool with_hash = flags.request.values.logits_hash;
  if (!flags.engine.quiet) {
    print_stats(completion, flags.request.request().spec != SpecMode::kAuto, with_hash);
  } else if (with_hash && flags.engine.json.empty()) {
    core::tell(fmt::format("logits hash {:016x}\n", completion.logits_hash));
  }
}

/// What `json` says of completions, with what made them.
Status write_document(const RunFlags& flags, const Engine& engine, core::Json json) {
  core::Json settings = all_settings(engine.options(), flags.request.request());
  settings.set("device_name", engine.device_name());
  json.set("model", engine.model_name()).set("attention", attention_json(engine));
  return write_with_settings(flags.engine.json, std::move(json), std::move(settings));
}

core::Json completion_json(const RunFlags& flags, const Engine& engine,
                           const Completion& completion) {
  return cli::completion_json(completion, engine.load_s(), flags.request.values.logits_hash);
}

Status run_once(const RunFlags& flags, Engine& engine, Request request) {
  const bool echo = flags.engine.json != "-";
  warn_of_lost_bytes(engine.lost_bytes(request.prompt, request.parse_special));
  if (echo) request.on_text = print_text;
  const Result<Completion> completion = engine.generate(request);
  if (!completion.ok()) return completion.error();
  if (echo) print_text("\n");
  print_end(flags, *completion);
  return write_document(flags, engine, completion_json(flags, engine, *completion));
}

/// The next line of standard input; false after the last.
Result<bool> read_message(const Engine& engine, std::string& line) {
  const std::int64_t most = engine.most_text_bytes();
  line.clear();
  std::streambuf& input = *std::cin.rdbuf();
  for (int next = input.sbumpc(); next != EOF; next = input.sbumpc()) {
    if (next == '\n') return true;
    if (std::ssize(line) == most) {
      return Error{ErrorCode::kTooLong,
                   fmt::format("a line of standard input has more than {} bytes, as many as the {} "
                               "tokens of the context can hold",
                               most, engine.options().context)};
    }
    line.push_back(static_cast<char>(next));
  }
  if (std::ferror(stdin) != 0 && !interrupted()) {
    return Error{ErrorCode::kIo,
                 fmt::format("cannot read standard input: {}", std::strerror(errno))};
  }
  return !line.empty();
}

/// A line for the person whose next message may not fit.
void warn_of_a_full_context(const Engine& engine, const Completion& completion) {
  constexpr std::int64_t kShare = 10;
  const std::int64_t context = engine.options().context;
  const std::int64_t left =
      context - completion.prompt_tokens - static_cast<std::int64_t>(completion.tokens.size());
  if (left * kShare >= context) return;
  core::log_info(fmt::format(
      "warning: {} of the {} tokens of the context (--ctx) are left for the next message and its "
      "reply",
      left, context));
}

/// Turns until end of input; the JSON document has the reply of each, and the message that it
/// answers as its prompt; a turn that fails is the last, and has its error. Where a person types,
/// Ctrl-C ends a reply, and the chat only between replies.
Status run_chat(const RunFlags& flags, Engine& engine, Request request) {
  std::vector<Engine::Message> messages;
  std::int64_t lost_bytes = 0;
  const auto say = [&](std::string role, const std::string& text) {
    const std::int64_t lost = engine.lost_bytes(text, false);
    warn_of_lost_bytes(lost);
    lost_bytes += lost;
    messages.push_back({std::move(role), text});
  };
  if (!flags.system.empty()) say("system", flags.system);
  request.on_text = print_text;
  core::Json replies = core::Json::array();
  std::string line = flags.prompt;
  bool given = !line.empty();
  const bool person = isatty(STDIN_FILENO) != 0;
  if (person) core::log_info("[Ctrl-C stops a reply, Ctrl-D ends the chat]");
  Status status;
  while (!interrupted()) {
    if (!given) {
      if (!flags.engine.quiet) {
        core::tell("> ");
        std::fflush(stderr);
      }
      const Result<bool> read = read_message(engine, line);
      if (!read.ok()) status = read.error();
      if (!read.ok() || !*read) break;
      if (line.empty()) continue;
    }
    given = false;
    say("user", line);
    Result<std::vector<std::int32_t>> prompt = engine.encode_chat(messages);
    if (prompt.ok()) request.prompt_tokens = std::move(prompt).value();
    Result<Completion> completion =
        prompt.ok() ? engine.generate(request) : Result<Completion>(prompt.error());
    if (!completion.ok()) {
      status = completion.error();
      core::Json failed = core::Json::object();
      replies.push(failed.set("error", completion.error().message).set("prompt", line));
      break;
    }
    completion->lost_bytes = lost_bytes;
    print_text("\n");
    print_end(flags, *completion);
    warn_of_a_full_context(engine, *completion);
    messages.push_back({"assistant", completion->text});
    replies.push(completion_json(flags, engine, *completion).set("prompt", line));
    if (person && completion->finish_reason == FinishReason::kCancelled) forget_interrupt();
  }
  const Status written =
      write_document(flags, engine, core::Json::object().set("completions", std::move(replies)));
  return status.ok() ? written : status;
}

}  // namespace

Status run_command(int argc, const char* const* argv) {
  RunFlags flags;
  Args args(
      "run", "Complete a prompt, or chat.",
      {"segue run -m model.gguf -p 'The capital of France is' -n 16",
       "segue run -m model.gguf --chat --system 'Answer in one sentence.'",
       "segue run -m model.gguf --prompt-file notes.txt --temperature 0.8 --top-p 0.95 --seed 7",
       "segue run -m model.gguf -p 'x = 1' --spec off --json - --logits-hash"});
  flags.engine.declare(args);
  args.text("-p,--prompt", flags.prompt, "prompt text (with --chat: the first message)")
      .path("--prompt-file", flags.prompt_file,
            "read the prompt from this file (-: standard input)")
      .flag("--chat", flags.chat,
            "a conversation in the model's chat format; messages are lines of standard input. "
            "Without a chat template the turn tokens of the vocabulary tell the format, which is "
            "said; without those it is refused")
      .text("--system", flags.system, "system message of the chat");
  flags.request.declare(args);
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  if (flags.chat && flags.engine.json == "-") {
    return Error{
        ErrorCode::kUsage,
        "--json needs a file with --chat; '-' would mix it with the text on standard output"};
  }
  if (Status status = flags.engine.model.resolve(flags.request.values.sampling.seed); !status.ok())
    return status;
  const bool has_prompt = args.given("--prompt");
  if (has_prompt && args.given("--prompt-file")) {
    return Error{ErrorCode::kUsage, "-p and --prompt-file exclude each other"};
  }
  if (flags.chat && args.given("--prompt-file")) {
    return Error{
        ErrorCode::kUsage,
        "--chat reads its messages from standard input; --prompt-file does not go with it"};
  }
  if (!flags.chat && !has_prompt && !args.given("--prompt-file")) {
    return Error{ErrorCode::kUsage,
                 "one of -p TEXT, --prompt-file FILE or --chat is needed (see segue run --help)"};
  }
  if (!flags.chat && args.given("--system"))
    return Error{ErrorCode::kUsage, "--system needs --chat"};
  if (flags.engine.quiet) core::set_log_level(core::LogLevel::kQuiet);
  if (const auto given = flags.request.without_effect(args); !given.empty())
    core::log_info(warning_of(given, true));
  Request request = flags.request.request();
  request.prompt = flags.prompt;
  if (args.given("--prompt-file")) {
    Result<std::string> text = core::read_file(flags.prompt_file);
    if (!text.ok()) return text.error();
    if (text->empty()) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("--prompt-file: {} is empty", input_name(flags.prompt_file))};
    }
    request.prompt = std::move(text).value();
  }
  if (Status status = flags.engine.check_files({"--prompt-file", flags.prompt_file}); !status.ok())
    return status;
  EngineOptions options = flags.engine.options();
  options.decode_rows = 1 + most_drafts(request);
  const Result<Limits> limits = Engine::limits(options);
  if (!limits.ok()) return limits.error();
  if (Status status = limits->check(request); !status.ok()) return status;
  if (flags.chat) {
    const Result<std::string> note = Engine::chat_note(options.model);
    if (!note.ok()) {
      return Error{
          note.error().code,
          fmt::format("--chat: {}; -p completes a text without a format", note.error().message)};
    }
    if (!note->empty()) core::log_info(*note);
  }
  TraceFile trace;
  if (Status status = trace.open(flags.engine.trace, options); !status.ok()) return status;
  const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  if (!engine.ok()) return engine.error();
  core::log_info((*engine)->start_line({&request, 1}));
  const Status status = flags.chat ? run_chat(flags, **engine, std::move(request))
                                   : run_once(flags, **engine, std::move(request));
  return status.ok() ? trace.close() : status;
}

}  // namespace segue::cli
