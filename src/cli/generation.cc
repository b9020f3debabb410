// SPDX-License-Identifier: Apache-2.0
// Flags to options, completions to JSON.
#include "cli/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace segue::cli {

void EngineFlags::declare(Args& args) {
  model.declare(args);
  args.path("--assistant", engine.assistant, kAssistantHelp)
      .path("--draft-model", engine.draft_model,
            "a small model with the same vocabulary that drafts")
      .choice("--device", device, {"cpu", "cuda"}, "where the model runs")
      .integer("--threads", engine.threads, ranges::kThreads,
               "threads; 0: all CPUs of this process")
      .choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .integer("--page-size", engine.page_size, ranges::kPageSize,
               "tokens of a KV page; 0: the default")
      .integer("--prefill-chunk", engine.prefill_chunk, ranges::kPrefillChunk,
               "prompt rows of one step")
      .integer("--ctx", engine.context, {0, std::int64_t{1} << 30},
               "largest prompt + completion; 0: the model's")
      .choice("--policy", engine.policy,
              {"segue", "stock", "pr45450", "pr47520", "batch_invariant", "whole", "segmented"},
              "the rule that picks the attention path")
      .text("--kernel", engine.kernel, "force an attention kernel (see segue kernels)")
      .path("--trace", trace, "write one line of JSON per step to this file")
      .path("--json", json, "write the result to this file (-: standard output)")
      .flag("-q,--quiet", quiet, "no progress, no start line, no statistics");
}

Status EngineFlags::check_files(const NamedPath& input) const {
  if (trace == "-") {
    return Error{ErrorCode::kUsage,
                 "--trace needs a file; '-' would mix it with the text on standard output"};
  }
  const NamedPath inputs[] = {{"--model", model.model},
                              {"--assistant", engine.assistant},
                              {"--draft-model", engine.draft_model},
                              {"--random-weights", model.random_config},
                              input};
  const NamedPath outputs[] = {{"--json", json}, {"--trace", trace}};
  if (Status status = check_distinct(inputs, outputs); !status.ok()) return status;
  if (Status status = model.check_drafts(engine.assistant, engine.draft_model); !status.ok())
    return status;
  for (const NamedPath& output : outputs) {
    if (Status status = check_writable(output.path); !status.ok()) return status;
  }
  return {};
}

EngineOptions EngineFlags::options() const {
  EngineOptions options = engine;
  options.model = model.model;
  options.device = parse_device(device);
  options.kv = parse_kv(kv).value();
  options.cancel = &interrupted();
  options.load_progress = progress_bar("loading", quiet);
  return options;
}

void RequestFlags::declare(Args& args) {
  using namespace ranges;
  Sampling& sampling = values.sampling;
  args.integer("-n,--max-tokens", values.max_tokens, kMaxTokens,
               "tokens to generate; -1: until the end")
      .texts("--stop", values.stop, "end before this text; may be given several times")
      .flag("--ignore-eos", values.ignore_eos, "go on after the model ends its turn")
      .real("--temperature", sampling.temperature, kTemperature, "0: the most likely token")
      .integer("--top-k", sampling.top_k, kTopK, "sample among the k most likely; 0: off")
      .real("--top-p", sampling.top_p, kTopP,
            "sample among the most likely with this total probability; 1: off")
      .real("--min-p", sampling.min_p, kMinP,
            "drop tokens below this share of the largest probability; 0: off")
      .real("--repeat-penalty", sampling.repeat_penalty, kRepeatPenalty,
            "penalty on recent tokens; 1: off")
      .integer("--repeat-last-n", sampling.repeat_last_n, kRepeatLastN,
               "how far back it looks; -1: all")
      .seed("--seed", sampling.seed, "seed of the sampling noise")
      .choice("--spec", spec, {"off", "ngram", "mtp", "draft", "auto"}, "speculation")
      .integer("--draft-tokens", values.draft_tokens, kDraftTokens,
               "largest k; 0: 4, and 8 for auto")
      .flag("--logits-hash", values.logits_hash,
            "report a hash of the raw logits of every emitted token");
}

std::vector<WithoutEffect> without_effect(const Request& request) {
  std::vector<WithoutEffect> found;
  const Sampling& sampling = request.sampling;
  if (sampling.temperature == 0) {
    for (const std::string_view field : {"top_k", "top_p", "min_p"})
      found.push_back({"at temperature 0", field});
  }
  if (sampling.repeat_penalty == 1) found.push_back({"at repeat penalty 1", "repeat_last_n"});
  if (sampling.repeat_last_n == 0) found.push_back({"on a history of 0 tokens", "repeat_penalty"});
  if (request.spec == SpecMode::kOff) found.push_back({"with speculation off", "draft_tokens"});
  if (!request.prompt_tokens.empty()) found.push_back({"on prompt_tokens", "parse_special"});
  return found;
}

namespace {

std::string flag_of(std::string_view field) {
  std::string flag = fmt::format("--{}", field);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

}  // namespace

std::string warning_of(const std::vector<WithoutEffect>& given, bool as_flags) {
  std::string line;
  std::string_view why;
  for (const WithoutEffect& one : given) {
    const std::string name = as_flags ? flag_of(one.field) : std::string(one.field);
    if (one.why == why) {
      line += ", " + name;
      continue;
    }
    why = one.why;
    line += fmt::format("{}without effect {}: {}", line.empty() ? "warning: " : "; ", why, name);
  }
  return line;
}

Request RequestFlags::request() const {
  Request request = values;
  request.spec = parse_spec(spec).value();
  return request;
}

std::vector<WithoutEffect> RequestFlags::without_effect(const Args& args) const {
  std::vector<WithoutEffect> found = cli::without_effect(request());
  std::erase_if(found, [&](const WithoutEffect& one) { return !args.given(flag_of(one.field)); });
  return found;
}

core::Json engine_settings(const EngineOptions& used) {
  core::Json json = core::Json::object();
  return json.set("model", used.model)
      .set("assistant", used.assistant)
      .set("draft_model", used.draft_model)
      .set("device", device_name(used.device))
      .set("threads", used.threads)
      .set("kv", kv_type_name(used.kv))
      .set("page_size", used.page_size)
      .set("prefill_chunk", used.prefill_chunk)
      .set("ctx", used.context)
      .set("policy", used.policy)
      .set("kernel", forced_kernel(used.kernel));
}

core::Json attention_json(const Engine& engine) {
  core::Json all = core::Json::array();
  for (const Engine::AttentionUse& use : engine.attention()) {
    core::Json json = core::Json::object();
    json.set("kind", use.kind)
        .set("layers", use.layers)
        .set("kernel", use.kernel)
        .set("path", use.path)
        .set("steps", use.steps);
    all.push(std::move(json));
  }
  return all;
}

core::Json forced_kernel(const std::string& kernel) {
  return kernel.empty() ? core::Json() : core::Json(kernel);
}

core::Json request_settings(const Request& request) {
  const Sampling& sampling = request.sampling;
  core::Json json = core::Json::object();
  return json.set("n", request.max_tokens)
      .set("temperature", sampling.temperature)
      .set("top_k", sampling.top_k)
      .set("top_p", sampling.top_p)
      .set("min_p", sampling.min_p)
      .set("repeat_penalty", sampling.repeat_penalty)
      .set("repeat_last_n", sampling.repeat_last_n)
      .set("seed", sampling.seed)
      .set("spec", spec_mode_name(request.spec))
      .set("draft_tokens", most_drafts(request))
      .set("stop", request.stop)
      .set("ignore_eos", request.ignore_eos)
      .set("logits_hash", request.logits_hash)
      .set("parse_special", request.parse_special);
}

core::Json all_settings(const EngineOptions& used, const Request& request) {
  core::Json json = engine_settings(used);
  const core::Json own = request_settings(request);
  for (const auto& [key, value] : *own.as_object()) json.set(key, value);
  return json;
}

Status TraceFile::open(const std::string& path, EngineOptions& options) {
  if (path.empty()) return {};
  path_ = path;
  file_.reset(std::fopen(path.c_str(), "we"));
  if (file_ == nullptr) {
    return Error{ErrorCode::kIo, fmt::format("cannot create '{}': {}", path, std::strerror(errno))};
  }
  options.trace = [this](std::string_view line) { write(line); };
  return {};
}

void TraceFile::write(std::string_view line) {
  if (problem_ != 0) return;
  const bool whole = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                     std::fputc('\n', file_.get()) != EOF;
  if (!whole) problem_ = errno;
}

Status TraceFile::close() {
  if (file_ == nullptr) return {};
  if (std::fclose(file_.release()) != 0 && problem_ == 0) problem_ = errno;
  if (problem_ == 0) return {};
  return Error{ErrorCode::kIo,
               fmt::format("cannot write '{}': {}", path_, std::strerror(problem_))};
}

std::string lost_bytes_warning(std::int64_t lost_bytes) {
  if (lost_bytes == 0) return {};
  return fmt::format(
      "warning: {} byte{} of the text {} in no token of this vocabulary; the model does not see {}",
      lost_bytes, lost_bytes == 1 ? "" : "s", lost_bytes == 1 ? "is" : "are",
      lost_bytes == 1 ? "it" : "them");
}

Result<SpecMode> parse_spec(std::string_view name) {
  for (SpecMode mode :
       {SpecMode::kOff, SpecMode::kNgram, SpecMode::kMtp, SpecMode::kDraft, SpecMode::kAuto}) {
    if (name == spec_mode_name(mode)) return mode;
  }
  return Error{
      ErrorCode::kUsage,
      fmt::format("spec '{}' is not allowed; allowed: off, ngram, mtp, draft, auto", name)};
}

Result<KvType> parse_kv(std::string_view name) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    if (name == kv_type_name(type)) return type;
  }
  return Error{ErrorCode::kUsage,
               fmt::format("kv '{}' is not allowed; allowed: f32, f16, bf16", name)};
}

Device parse_device(std::string_view name) {
  return name == device_name(Device::kCuda) ? Device::kCuda : Device::kCpu;
}

core::Json completion_json(const Completion& completion, double load_s, bool with_hash) {
  const GenerationStats& stats = completion.stats;
  // What was not measured is null: a rate of no tokens, a comparison without one of its sides.
  const auto measured = [](double value) { return value > 0 ? core::Json(value) : core::Json(); };
  core::Json time = core::Json::object();
  time.set("draft", stats.draft_s).set("verify", stats.verify_s).set("other", stats.other_s);
  core::Json depths = core::Json::array();
  for (const DepthStats& depth : stats.by_depth) {
    core::Json bucket = core::Json::object();
    bucket.set("depth_from", depth.depth_from)
        .set("depth_to", depth.depth_to > 0 ? core::Json(depth.depth_to) : core::Json())
        .set("steps", depth.steps)
        .set("accepted_per_position", depth.accepted_per_position)
        .set("drafted_per_position", depth.drafted_per_position);
    depths.push(std::move(bucket));
  }
  core::Json counts = core::Json::object();
  counts.set("load_s", load_s)
      .set("prefill_tokens_per_s", measured(stats.prefill_tokens_per_s))
      .set("decode_tokens_per_s", measured(stats.decode_tokens_per_s))
      .set("prefill_s", stats.prefill_s)
      .set("decode_s", stats.decode_s)
      .set("steps", stats.steps)
      .set("drafted", stats.drafted)
      .set("accepted", stats.accepted)
      .set("accepted_per_position", stats.accepted_per_position)
      .set("drafted_per_position", stats.drafted_per_position)
      .set("by_depth", std::move(depths))
      .set("mean_acceptance_length", stats.mean_acceptance_length)
      .set("tokens_per_step", measured(stats.tokens_per_step))
      .set("speedup_over_off", measured(stats.speedup_over_off))
      .set("speedup_estimated",
           stats.speedup_over_off > 0 ? core::Json(stats.speedup_estimated) : core::Json())
      .set("k_histogram", stats.k_histogram)
      .set("time_s", time);
  core::Json json = core::Json::object();
  json.set("tokens", completion.tokens)
      .set("text", completion.text)
      .set("prompt_tokens", completion.prompt_tokens)
      .set("lost_bytes", completion.lost_bytes)
      .set("finish_reason", finish_reason_name(completion.finish_reason))
      .set("stats", counts);
  if (with_hash) json.set("logits_hash", fmt::format("{:016x}", completion.logits_hash));
  return json;
}

}  // namespace segue::cli
