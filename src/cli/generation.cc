// SPDX-License-Identifier: Apache-2.0
// Flags to options, completions to JSON.
#include "cli/generation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace segue::cli {

void EngineFlags::declare(Args& args) {
  model.declare(args);
  args.path("--assistant", assistant, "the model's assistant: a folder or a GGUF file")
      .path("--draft-model", draft_model, "a small model with the same vocabulary that drafts")
      .integer("--threads", threads, 0, 1024, "threads; 0: all CPUs of this process")
      .choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .integer("--page-size", page_size, 0, 1 << 20,
               "tokens of a KV page, a multiple of 8; 0: the default")
      .integer("--prefill-chunk", prefill_chunk, 1, 1 << 16, "prompt rows of one step")
      .integer("--ctx", context, 0, std::int64_t{1} << 30,
               "largest prompt + completion; 0: the model's")
      .choice("--policy", policy,
              {"segue", "stock", "pr45450", "pr47520", "batch_invariant", "whole", "segmented"},
              "the rule that picks the attention path")
      .text("--kernel", kernel, "force an attention kernel (see segue kernels)")
      .path("--trace", trace, "write one line of JSON per step to this file")
      .path("--json", json, "write the result to this file (-: standard output)")
      .flag("-q,--quiet", quiet, "no progress, no start line, no statistics");
}

Status EngineFlags::check_outputs(const NamedPath& input) const {
  if (trace == "-") {
    return Error{ErrorCode::kUsage,
                 "--trace needs a file; '-' would mix it with the text on standard output"};
  }
  const NamedPath inputs[] = {
      {"--model", model.model}, {"--assistant", assistant}, {"--draft-model", draft_model}, input};
  const NamedPath outputs[] = {{"--json", json}, {"--trace", trace}};
  if (Status status = check_distinct(inputs, outputs); !status.ok()) return status;
  for (const NamedPath& output : outputs) {
    if (Status status = check_writable(output.path); !status.ok()) return status;
  }
  return {};
}

EngineOptions EngineFlags::options() const {
  EngineOptions options;
  options.model = model.model;
  options.assistant = assistant;
  options.draft_model = draft_model;
  options.threads = threads;
  options.kv = parse_kv(kv).value();
  options.page_size = page_size;
  options.prefill_chunk = prefill_chunk;
  options.context = context;
  options.policy = policy;
  options.kernel = kernel;
  return options;
}

core::Json EngineFlags::settings() const {
  core::Json out = core::Json::object();
  return out.set("model", file_name(model.model))
      .set("assistant", file_name(assistant))
      .set("draft_model", file_name(draft_model))
      .set("threads", threads)
      .set("kv", kv)
      .set("page_size", page_size)
      .set("prefill_chunk", prefill_chunk)
      .set("ctx", context)
      .set("policy", policy)
      .set("kernel", kernel);
}

void RequestFlags::declare(Args& args) {
  using namespace ranges;
  args.integer("-n,--max-tokens", max_tokens, kMaxTokens.low, kMaxTokens.high,
               "tokens to generate; -1: until the end")
      .texts("--stop", stop, "end before this text; may be given several times")
      .flag("--ignore-eos", ignore_eos, "go on after the model ends its turn")
      .real("--temperature", sampling.temperature, kTemperature.low, kTemperature.high,
            "0: the most likely token")
      .integer("--top-k", sampling.top_k, kTopK.low, kTopK.high,
               "sample among the k most likely; 0: off")
      .real("--top-p", sampling.top_p, kTopP.low, kTopP.high,
            "sample among the most likely with this total probability; 1: off")
      .real("--min-p", sampling.min_p, kMinP.low, kMinP.high,
            "drop tokens below this share of the largest probability; 0: off")
      .real("--repeat-penalty", sampling.repeat_penalty, kRepeatPenalty.low, kRepeatPenalty.high,
            "penalty on recent tokens; 1: off")
      .integer("--repeat-last-n", sampling.repeat_last_n, kRepeatLastN.low, kRepeatLastN.high,
               "how far back it looks; -1: all")
      .seed("--seed", sampling.seed, "seed of the sampling noise")
      .choice("--spec", spec, {"off", "ngram", "mtp", "draft", "auto"}, "speculation")
      .integer("--draft-tokens", draft_tokens, kDraftTokens.low, kDraftTokens.high,
               "largest k; 0: 4, and 8 for auto")
      .flag("--logits-hash", logits_hash, "report a hash of the raw logits of every emitted token");
}

std::string RequestFlags::without_effect(const Args& args) const {
  std::vector<std::string_view> names;
  if (sampling.temperature == 0) {
    for (const std::string_view name : {"--top-k", "--top-p", "--min-p"}) {
      if (args.given(name)) names.push_back(name);
    }
  }
  std::string line;
  const auto add = [&](std::string_view why, std::string_view flags) {
    line += fmt::format("{}without effect {}: {}", line.empty() ? "warning: " : "; ", why, flags);
  };
  if (!names.empty()) add("at temperature 0", fmt::format("{}", fmt::join(names, ", ")));
  if (args.given("--repeat-last-n") && sampling.repeat_penalty == 1)
    add("without --repeat-penalty", "--repeat-last-n");
  if (args.given("--draft-tokens") && spec == "off") add("with --spec off", "--draft-tokens");
  return line;
}

Request RequestFlags::request() const {
  Request request;
  request.max_tokens = max_tokens;
  request.sampling = sampling;
  request.spec = parse_spec(spec).value();
  request.draft_tokens = draft_tokens;
  request.stop = stop;
  request.ignore_eos = ignore_eos;
  request.logits_hash = logits_hash;
  return request;
}

core::Json RequestFlags::settings() const {
  core::Json json = core::Json::object();
  return json.set("n", max_tokens)
      .set("temperature", sampling.temperature)
      .set("top_k", sampling.top_k)
      .set("top_p", sampling.top_p)
      .set("min_p", sampling.min_p)
      .set("repeat_penalty", sampling.repeat_penalty)
      .set("repeat_last_n", sampling.repeat_last_n)
      .set("seed", static_cast<std::int64_t>(sampling.seed))
      .set("spec", spec)
      .set("draft_tokens", draft_tokens)
      .set("stop", stop)
      .set("ignore_eos", ignore_eos);
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

core::Json completion_json(const Completion& completion, double load_s, bool with_hash) {
  const GenerationStats& stats = completion.stats;
  core::Json time = core::Json::object();
  time.set("draft", stats.draft_s).set("verify", stats.verify_s).set("other", stats.other_s);
  core::Json counts = core::Json::object();
  counts.set("load_s", load_s)
      .set("prefill_tokens_per_s", stats.prefill_tokens_per_s)
      .set("decode_tokens_per_s", stats.decode_tokens_per_s)
      .set("prefill_s", stats.prefill_s)
      .set("decode_s", stats.decode_s)
      .set("steps", stats.steps)
      .set("drafted", stats.drafted)
      .set("accepted", stats.accepted)
      .set("accepted_per_position", stats.accepted_per_position)
      .set("drafted_per_position", stats.drafted_per_position)
      .set("mean_acceptance_length", stats.mean_acceptance_length)
      .set("speedup_over_off",
           stats.speedup_over_off > 0 ? core::Json(stats.speedup_over_off) : core::Json())
      .set("k_histogram", stats.k_histogram)
      .set("time_s", time);
  core::Json json = core::Json::object();
  json.set("tokens", completion.tokens)
      .set("text", completion.text)
      .set("prompt_tokens", completion.prompt_tokens)
      .set("finish_reason", finish_reason_name(completion.finish_reason))
      .set("stats", counts);
  if (with_hash) json.set("logits_hash", fmt::format("{:016x}", completion.logits_hash));
  return json;
}

}  // namespace segue::cli
