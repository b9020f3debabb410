// SPDX-License-Identifier: Apache-2.0
// The public Engine: requests to sequences, which of them step together, and completions. The step
// itself is loop.cc.
#include "segue/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>

#include "core/check.h"
#include "core/clock.h"
#include "engine/loop.h"
#include "engine/runtime.h"
#include "engine/trace.h"
#include "text/chat.h"

namespace segue {
namespace {

constexpr int kMaxK = 8;
constexpr int kDefaultFixedK = 4;

Error usage(std::string message) { return {ErrorCode::kUsage, std::move(message)}; }

GenerationStats stats_of(const engine::Sequence& sequence, std::int64_t prefilled) {
  const speculate::Statistics& counts = sequence.stats;
  GenerationStats stats;
  stats.steps = counts.steps();
  stats.drafted = counts.drafted();
  stats.accepted = counts.accepted();
  stats.mean_acceptance_length = counts.mean_acceptance_length();
  for (std::size_t i = 0;
       i < counts.positions().drafted.size() && counts.positions().drafted[i] > 0; ++i) {
    stats.drafted_per_position.push_back(counts.positions().drafted[i]);
    stats.accepted_per_position.push_back(counts.positions().accepted[i]);
  }
  const auto& histogram = counts.k_histogram();
  std::size_t used = histogram.size();
  while (used > 1 && histogram[used - 1] == 0) --used;
  stats.k_histogram.assign(histogram.begin(),
                           histogram.begin() + static_cast<std::ptrdiff_t>(used));
  stats.draft_s = counts.draft_us() / 1e6;
  stats.verify_s = counts.verify_us() / 1e6;
  stats.other_s = counts.other_us() / 1e6;
  if (sequence.first_token_us > 0) {
    stats.prefill_s = (sequence.first_token_us - sequence.prefill_started_us) / 1e6;
    stats.decode_s = (sequence.last_token_us - sequence.first_token_us) / 1e6;
    if (stats.prefill_s > 0)
      stats.prefill_tokens_per_s = static_cast<double>(prefilled) / stats.prefill_s;
    if (stats.decode_s > 0) {
      stats.decode_tokens_per_s = static_cast<double>(sequence.generated() - 1) / stats.decode_s;
    }
  }
  return stats;
}

/// Without control characters: what a file says of itself must not drive a terminal.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace

struct Engine::Impl {
  EngineOptions options;
  attention::Policy policy = attention::Policy::kSegue;
  std::unique_ptr<engine::Runtime> runtime;
  std::unique_ptr<engine::Loop> loop;
  speculate::Controller controller;
  std::int64_t context = 0;
  std::int64_t steps = 0;
  std::unique_ptr<engine::Sequence>
      warm;  // finished, its cache kept for a prompt that continues it

  struct InFlight {
    std::size_t index;  // of the request
    engine::Sequence sequence;
    std::int64_t prefilled;  // prompt rows that were computed, not reused
  };

  Result<engine::Sequence> prepare(const Request& request) const;
  std::int64_t reuse_warm(engine::Sequence& sequence);
  Completion complete(InFlight& done) const;
  Status run(std::deque<InFlight>& waiting, std::vector<std::optional<Result<Completion>>>& results,
             bool keep_warm);
  Status step(std::vector<std::unique_ptr<InFlight>>& active);
  Result<attention::Plan> verify_plan(int kind) const;
};

/// Checks a request and makes it a sequence that is not yet admitted.
Result<engine::Sequence> Engine::Impl::prepare(const Request& request) const {
  if (Status status = speculate::validate(request.sampling); !status.ok()) return status.error();
  if (request.max_tokens < -1) {
    return usage(
        fmt::format("max_tokens is {}; allowed: -1 (until the end) and more", request.max_tokens));
  }
  if (request.draft_tokens < 0 || request.draft_tokens > kMaxK) {
    return usage(
        fmt::format("draft tokens is {}; allowed: 0 (default) to {}", request.draft_tokens, kMaxK));
  }
  engine::Sequence sequence;
  const text::Tokenizer& tokenizer = *runtime->tokenizer;
  sequence.tokens = request.prompt_tokens.empty()
                        ? tokenizer.encode_prompt(request.prompt, request.parse_special)
                        : request.prompt_tokens;
  const std::int64_t vocab = runtime->model->config().vocab;
  for (std::int32_t token : sequence.tokens) {
    if (token < 0 || token >= vocab) {
      return usage(fmt::format("prompt token {}; allowed: 0 to {}", token, vocab - 1));
    }
  }
  // A model needs one token to start from; an empty prompt starts where a text starts.
  if (sequence.tokens.empty()) sequence.tokens.push_back(std::max(0, tokenizer.bos()));
  sequence.prompt_tokens = static_cast<std::int64_t>(sequence.tokens.size());
  if (sequence.prompt_tokens > context) {
    return Error{ErrorCode::kTooLong, fmt::format("the prompt has {} tokens, the context holds {}",
                                                  sequence.prompt_tokens, context)};
  }
  const std::int64_t room = context - sequence.prompt_tokens;
  const bool bounded = request.max_tokens >= 0 && request.max_tokens <= room;
  sequence.limit = sequence.prompt_tokens + (bounded ? request.max_tokens : room);
  sequence.limit_reason = bounded ? FinishReason::kLength : FinishReason::kContext;
  if (sequence.limit == sequence.prompt_tokens) sequence.finished = sequence.limit_reason;
  sequence.sampling = request.sampling;
  sequence.spec = request.spec;
  sequence.ignore_eos = request.ignore_eos;
  sequence.hash_logits = request.logits_hash;
  Result<std::vector<speculate::Drafter*>> drafters = loop->drafters(request.spec);
  if (!drafters.ok()) return drafters.error();
  sequence.drafters = std::move(drafters).value();
  const int fallback = request.spec == SpecMode::kAuto ? kMaxK : kDefaultFixedK;
  sequence.max_draft = request.draft_tokens > 0 ? request.draft_tokens : fallback;
  sequence.output = std::make_unique<engine::Output>(tokenizer, request.stop, request.on_text);
  return sequence;
}

/// Takes over the warm sequence's cache when the prompt continues it; returns how many rows that
/// saves.
std::int64_t Engine::Impl::reuse_warm(engine::Sequence& sequence) {
  if (warm == nullptr) return 0;
  const std::unique_ptr<engine::Sequence> old = std::move(warm);
  const std::int64_t cached =
      std::min<std::int64_t>(loop->cached(*old), static_cast<std::int64_t>(old->tokens.size()));
  const auto [mismatch, unused] = std::mismatch(old->tokens.begin(), old->tokens.begin() + cached,
                                                sequence.tokens.begin(), sequence.tokens.end());
  // At least one prompt row has to be computed for its logits.
  const std::int64_t common =
      std::min<std::int64_t>(mismatch - old->tokens.begin(), sequence.prompt_tokens - 1);
  if (common > 0 && loop->take_over(*old, sequence, common)) return common;
  loop->release(*old);
  return 0;
}

Completion Engine::Impl::complete(InFlight& done) const {
  engine::Sequence& sequence = done.sequence;
  sequence.output->finish();
  Completion completion;
  completion.tokens.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
  completion.text = sequence.output->text();
  completion.prompt_tokens = sequence.prompt_tokens;
  completion.finish_reason = *sequence.finished;
  completion.stats = stats_of(sequence, done.prefilled);
  const auto depth = static_cast<std::int64_t>(sequence.tokens.size());
  if (const auto against = controller.against_off(sequence.stats, depth)) {
    completion.stats.speedup_over_off = against->speedup;
    completion.stats.usual_k = against->k;
    completion.stats.usual_acceptance = against->acceptance;
    completion.stats.break_even_acceptance = against->break_even.value_or(2);
  }
  if (sequence.hash_logits) completion.logits_hash = sequence.hash.digest();
  return completion;
}

/// One step of everything active: all that decode, and the first that is still in its prompt.
Status Engine::Impl::step(std::vector<std::unique_ptr<InFlight>>& active) {
  std::vector<engine::Sequence*> batch;
  bool prefilling = false;
  for (const std::unique_ptr<InFlight>& one : active) {
    const bool in_prefill = one->sequence.in_prefill(loop->cached(one->sequence));
    if (in_prefill && prefilling) continue;
    prefilling = prefilling || in_prefill;
    batch.push_back(&one->sequence);
  }
  const Result<engine::StepReport> report = loop->step(batch, policy, controller);
  if (!report.ok()) return report.error();
  if (options.trace) options.trace(engine::trace_step(*report, steps).dump());
  ++steps;
  return {};
}

Status Engine::Impl::run(std::deque<InFlight>& waiting,
                         std::vector<std::optional<Result<Completion>>>& results, bool keep_warm) {
  std::vector<std::unique_ptr<InFlight>> active;
  while (!waiting.empty() || !active.empty()) {
    while (!waiting.empty() && static_cast<int>(active.size()) < options.max_sequences) {
      auto one = std::make_unique<InFlight>(std::move(waiting.front()));
      waiting.pop_front();
      if (!one->sequence.finished) {
        const std::int64_t reused = keep_warm ? reuse_warm(one->sequence) : 0;
        if (reused == 0) loop->admit(one->sequence);
        one->prefilled = one->sequence.prompt_tokens - reused;
      }
      active.push_back(std::move(one));
    }
    const bool cancelled =
        options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
    for (std::unique_ptr<InFlight>& one : active) {
      if (cancelled && !one->sequence.finished) one->sequence.finished = FinishReason::kCancelled;
      if (!one->sequence.finished) continue;
      results[one->index] = complete(*one);
      controller.forget(one->sequence.key);
      if (one->sequence.cache_id.value >= 0) {
        if (keep_warm) {
          one->sequence.output.reset();
          warm = std::make_unique<engine::Sequence>(std::move(one->sequence));
        } else {
          loop->release(one->sequence);
        }
      }
      one.reset();
    }
    std::erase(active, nullptr);
    if (active.empty()) continue;
    if (Status status = step(active); !status.ok()) {
      for (const std::unique_ptr<InFlight>& one : active) loop->release(one->sequence);
      return status;
    }
  }
  return {};
}

/// A verify step at the end of the context, in the layers of this kind. Fails when a kernel was
/// forced that cannot run them.
Result<attention::Plan> Engine::Impl::verify_plan(int kind) const {
  const engine::LoopOptions& set = loop->options();
  const attention::SequenceRows rows{std::max<std::int64_t>(0, context - set.decode_rows),
                                     set.decode_rows, false};
  attention::PlanInput input;
  input.shape = runtime->model->attention_shape(kind, options.kv, set.page_size);
  input.sequences = std::span(&rows, 1);
  input.policy = policy;
  input.decode_rows = set.decode_rows;
  input.kernel = set.kernel;
  attention::Plan plan;
  if (Status status = attention::plan(input, runtime->model->device(), plan); !status.ok())
    return status.error();
  return plan;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  const Result<attention::Policy> policy = attention::parse_policy(options.policy);
  if (!policy.ok()) return policy.error();
  impl->policy = *policy;
  engine::LoopOptions loop_options;
  if (!options.kernel.empty()) {
    const Result<const attention::Kernel*> kernel = attention::find_kernel(options.kernel);
    if (!kernel.ok()) return kernel.error();
    loop_options.kernel = *kernel;
  }
  if (options.max_sequences < 1 || options.max_sequences > 4096) {
    return usage(
        fmt::format("requests in flight is {}; allowed: 1 to 4096", options.max_sequences));
  }
  if (options.context < 0)
    return usage(fmt::format("context is {}; allowed: 0 (the model's) and more", options.context));
  Result<std::unique_ptr<engine::Runtime>> runtime =
      engine::Runtime::load({.model = options.model,
                             .assistant = options.assistant,
                             .draft_model = options.draft_model,
                             .threads = options.threads,
                             .progress = options.load_progress});
  if (!runtime.ok()) return runtime.error();
  impl->runtime = std::move(runtime).value();
  const std::int64_t trained = impl->runtime->model->config().context;
  if (options.context > trained) {
    return usage(fmt::format("context is {}; the model was trained for {} tokens", options.context,
                             trained));
  }
  impl->context = options.context > 0 ? options.context : trained;
  loop_options.kv = options.kv;
  if (options.page_size != 0) loop_options.page_size = options.page_size;
  loop_options.prefill_chunk = options.prefill_chunk;
  loop_options.context = impl->context;
  loop_options.max_sequences = options.max_sequences;
  loop_options.decode_rows = options.decode_rows > 0 ? options.decode_rows : 1 + kMaxK;
  Result<std::unique_ptr<engine::Loop>> loop = engine::Loop::create(*impl->runtime, loop_options);
  if (!loop.ok()) return loop.error();
  impl->loop = std::move(loop).value();
  for (std::size_t kind = 0; kind < impl->runtime->model->config().kinds.size(); ++kind) {
    const Result<attention::Plan> plan = impl->verify_plan(static_cast<int>(kind));
    if (!plan.ok()) return usage(plan.error().message);
  }
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Result<Completion> Engine::generate(const Request& request) {
  Result<engine::Sequence> sequence = impl_->prepare(request);
  if (!sequence.ok()) return sequence.error();
  std::deque<Impl::InFlight> waiting;
  waiting.push_back({0, std::move(sequence).value(), 0});
  std::vector<std::optional<Result<Completion>>> results(1);
  if (Status status = impl_->run(waiting, results, true); !status.ok()) return status.error();
  return std::move(*results[0]);
}

std::vector<Result<Completion>> Engine::generate_batch(std::span<const Request> requests) {
  if (impl_->warm != nullptr) {
    impl_->loop->release(*impl_->warm);
    impl_->warm.reset();
  }
  std::deque<Impl::InFlight> waiting;
  std::vector<std::optional<Result<Completion>>> results(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Result<engine::Sequence> sequence = impl_->prepare(requests[i]);
    if (sequence.ok()) {
      waiting.push_back({i, std::move(sequence).value(), 0});
    } else {
      results[i] = sequence.error();
    }
  }
  const Status status = impl_->run(waiting, results, false);
  std::vector<Result<Completion>> out;
  for (std::optional<Result<Completion>>& result : results) {
    out.push_back(result.has_value() ? std::move(*result) : Result<Completion>(status.error()));
  }
  return out;
}

std::string Engine::start_line() const {
  const model::LanguageModel& model = *impl_->runtime->model;
  std::string line =
      fmt::format("{} ({}) on {}, {}, {} threads, KV {}", printable(model.config().name),
                  model.config().architecture, model.device().name, core::isa_name(model.isa()),
                  threads(), kv_type_name(impl_->options.kv));
  for (std::size_t kind = 0; kind < model.config().kinds.size(); ++kind) {
    const attention::Plan plan = impl_->verify_plan(static_cast<int>(kind)).value();
    line += fmt::format("; verify steps ({} layers): {}, {} path", model.config().kinds[kind].name,
                        plan.kernel->name, attention::path_name(plan.verdict.path));
  }
  std::string names;
  for (const speculate::Drafter* drafter : impl_->loop->drafters(SpecMode::kAuto).value())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", drafter->name());
  return line + fmt::format("; drafters: {}", names);
}

std::string Engine::model_name() const { return impl_->runtime->model->config().name; }
std::int64_t Engine::context() const { return impl_->context; }
int Engine::threads() const { return impl_->runtime->pool->threads(); }
double Engine::load_s() const { return impl_->runtime->load_s; }

std::vector<std::int32_t> Engine::tokenize(std::string_view text, bool parse_special) const {
  return impl_->runtime->tokenizer->encode_prompt(text, parse_special);
}

Result<std::vector<std::int32_t>> Engine::encode_chat(std::span<const Message> messages) const {
  const Result<text::ChatTemplate> format =
      text::ChatTemplate::detect(impl_->runtime->tokenizer->vocabulary());
  if (!format.ok()) return format.error();
  std::vector<text::Message> converted;
  for (const Message& message : messages) converted.push_back({message.role, message.content});
  return format->encode(*impl_->runtime->tokenizer, converted, true);
}

}  // namespace segue
