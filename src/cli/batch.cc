// SPDX-License-Identifier: Apache-2.0
// segue batch: requests from a JSON Lines file, completed in one engine at once; one line of JSON
// per request.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "core/log.h"

namespace segue::cli {
namespace {

Error on_line(std::int64_t line, const Error& error) {
  return {error.code, fmt::format("request on line {}: {}", line, error.message)};
}

struct Line {
  std::int64_t number;  // in the file, from 1
  Request request;
  std::vector<WithoutEffect> without_effect;  // of the fields that it has
  core::Json id;  // the user's name for it, given back as it is; or null
};

/// One line of the requests file. Absent fields keep the defaults of the flags; unknown fields are
/// refused.
class LineReader {
 public:
  explicit LineReader(const core::Json& json) : json_(json) {}

  Result<Line> read(std::int64_t line_number, Request defaults) {
    Line line{line_number, std::move(defaults), {}, {}};
    Request& request = line.request;
    id(line.id);
    text("prompt", request.prompt);
    tokens("prompt_tokens", request.prompt_tokens);
    if ((json_.find("prompt") == nullptr) == (json_.find("prompt_tokens") == nullptr))
      fail("prompt", "exactly one of prompt and prompt_tokens is needed");
    integer("n", request.max_tokens, ranges::kMaxTokens);
    number("temperature", request.sampling.temperature, ranges::kTemperature);
    integer("top_k", request.sampling.top_k, ranges::kTopK);
    number("top_p", request.sampling.top_p, ranges::kTopP);
    number("min_p", request.sampling.min_p, ranges::kMinP);
    number("repeat_penalty", request.sampling.repeat_penalty, ranges::kRepeatPenalty);
    integer("repeat_last_n", request.sampling.repeat_last_n, ranges::kRepeatLastN);
    integer("seed", request.sampling.seed, ranges::kSeed);
    integer("draft_tokens", request.draft_tokens, ranges::kDraftTokens);
    boolean("ignore_eos", request.ignore_eos);
    boolean("logits_hash", request.logits_hash);
    boolean("parse_special", request.parse_special);
    texts("stop", request.stop);
    std::string spec;
    text("spec", spec);
    if (json_.find("spec") != nullptr) {
      const Result<SpecMode> mode = parse_spec(spec);
      if (mode.ok()) {
        request.spec = *mode;
      } else {
        fail("spec", mode.error().message);
      }
    }
    for (const auto& [key, value] : *json_.as_object()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        fail(key, fmt::format("no such field; fields: {}", fmt::join(known_, ", ")));
      }
    }
    if (!problem_.empty()) return Error{ErrorCode::kUsage, problem_};
    line.without_effect = without_effect(request);
    std::erase_if(line.without_effect,
                  [&](const WithoutEffect& one) { return json_.find(one.field) == nullptr; });
    return line;
  }

 private:
  const core::Json* field(std::string_view key) {
    known_.emplace_back(key);
    return json_.find(key);
  }
  void fail(std::string_view key, std::string_view what) {
    if (problem_.empty()) problem_ = fmt::format("'{}': {}", key, what);
  }
  void refuse(std::string_view key, const core::Json& found, std::string_view allowed) {
    constexpr std::size_t kShown = 60;
    const std::string text = found.dump();
    fail(key, fmt::format("{}{} is not allowed; allowed: {}", text.substr(0, kShown),
                          text.size() > kShown ? ".." : "", allowed));
  }
  void id(core::Json& out) {
    const core::Json* json = field("id");
    if (json == nullptr) return;
    if (json->as_string() == nullptr && json->as_int() == nullptr)
      return refuse("id", *json, "a string or a whole number");
    out = *json;
  }
  void text(std::string_view key, std::string& out) {
    const core::Json* json = field(key);
    if (json == nullptr) return;
    if (json->as_string() == nullptr) return refuse(key, *json, "a string");
    out = *json->as_string();
  }
  void boolean(std::string_view key, bool& out) {
    const core::Json* json = field(key);
    if (json == nullptr) return;
    if (json->as_bool() == nullptr) return refuse(key, *json, "true or false");
    out = *json->as_bool();
  }
  void number(std::string_view key, float& out, const Range<double>& range) {
    const core::Json* json = field(key);
    double value = 0;
    if (json == nullptr) return;
    if (!json->as_double(value) || !range.has(value)) return fail(key, range.refusal(json->dump()));
    out = static_cast<float>(value);
  }
  template <class T, class Bound>
  void integer(std::string_view key, T& out, const Range<Bound>& range) {
    const core::Json* json = field(key);
    if (json == nullptr) return;
    const std::int64_t* value = json->as_int();
    // In 64 bits: a number that Bound cannot hold must not wrap into the range.
    const Range<std::int64_t> wide{range.low, range.high, range.multiple_of};
    if (value == nullptr || !wide.has(*value)) return fail(key, range.refusal(json->dump()));
    out = static_cast<T>(*value);
  }
  void tokens(std::string_view key, std::vector<std::int32_t>& out) {
    const core::Json* json = field(key);
    if (json == nullptr) return;
    if (!json->is_array()) return refuse(key, *json, kTokens);
    for (const core::Json& item : *json->as_array()) {
      const std::int64_t* value = item.as_int();
      if (value == nullptr || *value < 0 || *value > INT32_MAX) return refuse(key, *json, kTokens);
      out.push_back(static_cast<std::int32_t>(*value));
    }
  }
  void texts(std::string_view key, std::vector<std::string>& out) {
    const core::Json* json = field(key);
    if (json == nullptr) return;
    if (!json->is_array()) return refuse(key, *json, kTexts);
    out.clear();
    for (const core::Json& item : *json->as_array()) {
      if (item.as_string() == nullptr || item.as_string()->empty())
        return refuse(key, *json, kTexts);
      out.push_back(*item.as_string());
    }
  }

  static constexpr std::string_view kTokens = "an array of token ids";
  static constexpr std::string_view kTexts = "an array of strings that are not empty";

  const core::Json& json_;
  std::vector<std::string> known_;
  std::string problem_;
};

Result<std::vector<Line>> read_requests(const std::string& path, const Request& defaults) {
  const Result<std::string> text = core::read_file(path);
  if (!text.ok()) return text.error();
  std::vector<Line> lines;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text->size();) {
    const std::size_t end = std::min(text->find('\n', begin), text->size());
    const std::string_view line = std::string_view(*text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Result<core::Json> json = core::Json::parse(line, core::Json::Repeats::kRefused);
    Result<Line> read = !json.ok()          ? Error{ErrorCode::kUsage, json.error().message}
                        : json->is_object() ? LineReader(*json).read(number, defaults)
                                            : Error{ErrorCode::kUsage, "not a JSON object"};
    if (!read.ok()) return on_line(number, read.error());
    lines.push_back(std::move(read).value());
  }
  if (lines.empty()) {
    return Error{ErrorCode::kUsage, fmt::format("{} has no request; needed: one JSON object a line",
                                                input_name(path))};
  }
  return lines;
}

/// Fields of a line, and flags that change no request.
void warn_of_what_has_no_effect(const std::vector<Line>& lines, std::vector<WithoutEffect> flags) {
  std::erase_if(flags, [&](const WithoutEffect& flag) {
    return !std::ranges::all_of(lines, [&](const Line& line) {
      const std::vector<WithoutEffect> all = without_effect(line.request);
      return std::ranges::find(all, flag.field, &WithoutEffect::field) != all.end();
    });
  });
  if (!flags.empty()) core::log_info(warning_of(flags, true));
  for (const Line& line : lines) {
    if (line.without_effect.empty()) continue;
    core::log_info(
        fmt::format("request on line {}: {}", line.number, warning_of(line.without_effect, false)));
  }
}

/// Where it differs from the flags.
core::Json own_settings(const Request& request, const Request& flags) {
  const core::Json common = request_settings(flags);
  const core::Json settings = request_settings(request);
  core::Json own = core::Json::object();
  for (const auto& [key, value] : *settings.as_object()) {
    if (value.dump() != common.find(key)->dump()) own.set(key, value);
  }
  return own;
}

/// Before anything starts: what can never work ends the command. What fails alone, a prompt that is
/// too long, is left to its own answer.
Status check_requests(const std::vector<Line>& lines, const Limits& limits) {
  for (const Line& line : lines) {
    const Status status = limits.check(line.request);
    if (!status.ok() && status.error().code == ErrorCode::kUsage)
      return on_line(line.number, status.error());
  }
  return {};
}

/// An answer per request into `answers`. The first failure, if there is any.
Status collect_answers(const std::vector<Line>& lines, const Request& flags,
                       const std::vector<Result<Completion>>& completions, double load_s,
                       core::Json& answers) {
  Status first;
  std::int64_t failed = 0;
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const Result<Completion>& completion = completions[i];
    core::Json json = core::Json::object();
    if (!lines[i].id.is_null()) json.set("id", lines[i].id);
    if (completion.ok()) {
      const core::Json answer = completion_json(*completion, load_s, lines[i].request.logits_hash);
      for (const auto& [key, value] : *answer.as_object()) json.set(key, value);
      if (completion->lost_bytes > 0) {
        core::log_info(fmt::format("request on line {}: {}", lines[i].number,
                                   lost_bytes_warning(completion->lost_bytes)));
      }
    } else {
      json.set("error", completion.error().message);
      if (first.ok()) first = on_line(lines[i].number, completion.error());
      ++failed;
    }
    json.set("settings", own_settings(lines[i].request, flags));
    answers.push(std::move(json));
  }
  if (failed < 2) return first;
  return Error{first.error().code, fmt::format("{} of {} requests failed; the first: {}", failed,
                                               lines.size(), first.error().message)};
}

}  // namespace

Status batch_command(int argc, const char* const* argv) {
  EngineFlags flags;
  RequestFlags defaults;
  std::string path;
  int parallel = 8;
  Args args(
      "batch",
      "Complete many requests at once; one line of JSON per request, in order, on standard output. "
      "Its settings are those in which it differs from the flags.",
      {"segue batch -m model.gguf --requests requests.jsonl",
       "echo '{\"prompt\": \"The sky is\", \"n\": 8}' | segue batch -m model.gguf --requests -"});
  flags.declare(args);
  args.path("--requests", path,
            "JSON Lines: prompt or prompt_tokens, and any of n, temperature, top_k, top_p, min_p, "
            "repeat_penalty, repeat_last_n, seed, spec, draft_tokens, stop, ignore_eos, "
            "logits_hash, parse_special; an id, a string or a number, comes back with its answer "
            "(-: standard input)",
            true)
      .integer("--parallel", parallel, {1, 4096}, "requests in flight at once");
  defaults.declare(args);
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  if (Status status = flags.model.resolve(defaults.values.sampling.seed); !status.ok())
    return status;
  if (flags.quiet) core::set_log_level(core::LogLevel::kQuiet);
  if (Status status = flags.check_files({"--requests", path}); !status.ok()) return status;
  const Result<std::vector<Line>> lines = read_requests(path, defaults.request());
  if (!lines.ok()) return lines.error();
  warn_of_what_has_no_effect(*lines, defaults.without_effect(args));
  EngineOptions options = flags.options();
  options.max_sequences = std::clamp(static_cast<int>(lines->size()), 1, parallel);
  std::vector<Request> requests;
  for (const Line& line : *lines) {
    options.decode_rows = std::max(options.decode_rows, 1 + most_drafts(line.request));
    requests.push_back(line.request);
  }
  const Result<Limits> limits = Engine::limits(options);
  if (!limits.ok()) return limits.error();
  if (Status status = check_requests(*lines, *limits); !status.ok()) return status;
  TraceFile trace;
  if (Status status = trace.open(flags.trace, options); !status.ok()) return status;
  const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  if (!engine.ok()) return engine.error();
  core::log_info((*engine)->start_line(requests));
  core::Json all = core::Json::array();
  const Status answered = collect_answers(
      *lines, defaults.request(), (*engine)->generate_batch(requests), (*engine)->load_s(), all);
  if (flags.json != "-") {
    for (const core::Json& answer : *all.as_array()) fmt::print("{}\n", answer.dump());
  }
  core::Json document = core::Json::object();
  core::Json settings = all_settings((*engine)->options(), defaults.request());
  settings.set("parallel", options.max_sequences).set("device_name", (*engine)->device_name());
  document.set("completions", std::move(all)).set("attention", attention_json(**engine));
  if (Status status = write_with_settings(flags.json, std::move(document), std::move(settings));
      !status.ok()) {
    return status;
  }
  if (Status status = trace.close(); !status.ok()) return status;
  return answered;
}

}  // namespace segue::cli
