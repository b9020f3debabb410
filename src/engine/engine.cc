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
#include "engine/limits.h"
#include "engine/loop.h"
#include "engine/runtime.h"
#include "engine/trace.h"
#include "text/chat.h"

namespace segue {
namespace {

/// Up to the last position ever drafted.
void set_positions(const speculate::PositionCounts& counts, std::vector<std::int64_t>& drafted,
                   std::vector<std::int64_t>& accepted) {
  for (std::size_t i = 0; i < counts.drafted.size() && counts.drafted[i] > 0; ++i) {
    drafted.push_back(counts.drafted[i]);
    accepted.push_back(counts.accepted[i]);
  }
}

GenerationStats stats_of(const engine::Sequence& sequence, std::int64_t prefilled) {
  const speculate::Statistics& counts = sequence.stats;
  GenerationStats stats;
  stats.steps = counts.steps();
  stats.drafted = counts.drafted();
  stats.accepted = counts.accepted();
  stats.mean_acceptance_length = counts.mean_acceptance_length();
  stats.tokens_per_step = counts.mean_tokens_per_step();
  set_positions(counts.positions(), stats.drafted_per_position, stats.accepted_per_position);
  for (const speculate::DepthCounts& depth : counts.by_depth()) {
    DepthStats& counted = stats.by_depth.emplace_back();
    counted.depth_from = depth.depth_from;
    counted.depth_to = depth.depth_to;
    counted.steps = depth.steps;
    set_positions(depth.positions, counted.drafted_per_position, counted.accepted_per_position);
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

}  // namespace

struct Engine::Impl {
  EngineOptions options;
  attention::Policy policy = attention::Policy::kSegue;
  std::unique_ptr<engine::Runtime> runtime;
  std::unique_ptr<engine::Loop> loop;
  speculate::Controller controller;
  Limits limits;
  std::int64_t steps = 0;
  std::vector<AttentionUse> attention;
  std::unique_ptr<engine::Sequence>
      warm;  // finished, its cache kept for a prompt that continues it

  struct InFlight {
    std::size_t index;  // of the request
    engine::Sequence sequence;
    std::int64_t prefilled;  // prompt rows that were computed, not reused
  };

  Result<engine::Sequence> prepare(const Request& request) const;
  std::int64_t reuse_warm(engine::Sequence& sequence);
  Completion complete(InFlight& done);
  Status run(std::deque<InFlight>& waiting, std::vector<std::optional<Result<Completion>>>& results,
             bool keep_warm);
  Status step(std::vector<std::unique_ptr<InFlight>>& active);
  void count_attention(std::span<const model::GroupRecord> groups);
};

/// Checks a request and makes it a sequence that is not yet admitted.
Result<engine::Sequence> Engine::Impl::prepare(const Request& request) const {
  if (Status status = limits.check(request); !status.ok()) return status.error();
  engine::Sequence sequence;
  const text::Tokenizer& tokenizer = *runtime->tokenizer;
  sequence.tokens = request.prompt_tokens.empty()
                        ? tokenizer.encode_prompt(request.prompt, request.parse_special)
                        : request.prompt_tokens;
  if (request.prompt_tokens.empty())
    sequence.lost_bytes = tokenizer.lost_bytes(request.prompt, request.parse_special);
  // A model needs one token to start from; an empty prompt starts where a text starts.
  if (sequence.tokens.empty()) sequence.tokens.push_back(std::max(0, tokenizer.bos()));
  sequence.prompt_tokens = static_cast<std::int64_t>(sequence.tokens.size());
  if (Status status = limits.check_length(sequence.prompt_tokens); !status.ok())
    return status.error();
  const std::int64_t room = limits.context - sequence.prompt_tokens;
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
  sequence.max_draft = most_drafts(request);
  sequence.output = std::make_unique<engine::Output>(tokenizer, request.stop, request.on_text);
  return sequence;
}

/// Takes over the warm sequence's cache when the prompt continues it; returns how many rows that
/// saves.
std::int64_t Engine::Impl::reuse_warm(engine::Sequence& sequence) {
  if (warm == nullptr) return 0;
  const std::unique_ptr<engine::Sequence> old = std::move(warm);
  std::int64_t cached =
      std::min<std::int64_t>(loop->cached(*old), static_cast<std::int64_t>(old->tokens.size()));
  // What was generated would get other bits as part of a prompt.
  if (runtime->model->place().prompts_differ()) cached = std::min(cached, old->prompt_tokens);
  const auto [mismatch, unused] = std::mismatch(old->tokens.begin(), old->tokens.begin() + cached,
                                                sequence.tokens.begin(), sequence.tokens.end());
  // At least one prompt row has to be computed for its logits.
  const std::int64_t common =
      std::min<std::int64_t>(mismatch - old->tokens.begin(), sequence.prompt_tokens - 1);
  if (common > 0 && loop->take_over(*old, sequence, common)) return common;
  loop->release(*old);
  return 0;
}

Completion Engine::Impl::complete(InFlight& done) {
  engine::Sequence& sequence = done.sequence;
  sequence.output->finish();
  Completion completion;
  completion.tokens.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
  completion.text = sequence.output->text();
  completion.prompt_tokens = sequence.prompt_tokens;
  completion.lost_bytes = sequence.lost_bytes;
  completion.finish_reason = *sequence.finished;
  completion.stats = stats_of(sequence, done.prefilled);
  const auto depth = static_cast<std::int64_t>(sequence.tokens.size());
  // Drafters that are always ready draft within the times of the steps.
  const bool ready = std::ranges::all_of(sequence.drafters, &speculate::Drafter::ready);
  const double draft_us = ready ? 0 : sequence.stats.draft_us();
  if (const auto against = controller.against_off(sequence.stats, depth, draft_us)) {
    completion.stats.speedup_over_off = against->speedup;
    completion.stats.speedup_estimated = against->estimated;
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
  count_attention(report->groups);
  return {};
}

void Engine::Impl::count_attention(std::span<const model::GroupRecord> groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const attention::Plan& plan = *groups[i].plan;
    const std::string_view kind = runtime->model->config().kinds[i].name;
    const std::string_view path = attention::path_name(plan.verdict.path);
    const auto same = std::ranges::find_if(attention, [&](const AttentionUse& use) {
      return use.kind == kind && use.kernel == plan.kernel->name && use.path == path;
    });
    AttentionUse& use = same != attention.end() ? *same : attention.emplace_back();
    use.kind = kind;
    use.layers = groups[i].layers;
    use.kernel = plan.kernel->name;
    use.path = path;
    ++use.steps;
  }
}

Status Engine::Impl::run(std::deque<InFlight>& waiting,
                         std::vector<std::optional<Result<Completion>>>& results, bool keep_warm) {
  std::vector<std::unique_ptr<InFlight>> active;
  bool cancelled = false;
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
    cancelled =
        cancelled || (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed));
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
    const Status status = step(active);
    cancelled = !status.ok() && status.error().code == ErrorCode::kCancelled;
    if (!status.ok() && !cancelled) {
      for (const std::unique_ptr<InFlight>& one : active) loop->release(one->sequence);
      return status;
    }
  }
  return {};
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  auto impl = std::make_unique<Impl>();
  const Result<Limits> limits = Engine::limits(options);
  if (!limits.ok()) return limits.error();
  impl->limits = *limits;
  impl->policy = attention::parse_policy(options.policy).value();
  engine::RuntimeOptions load{.model = options.model,
                              .assistant = options.assistant,
                              .draft_model = options.draft_model,
                              .device = options.device,
                              .threads = options.threads,
                              .progress = options.load_progress};
  if (options.cancel != nullptr)
    load.cancelled = [cancel = options.cancel] { return cancel->load(std::memory_order_relaxed); };
  Result<std::unique_ptr<engine::Runtime>> runtime = engine::Runtime::load(load);
  if (!runtime.ok()) return runtime.error();
  impl->runtime = std::move(runtime).value();
  engine::LoopOptions loop_options;
  if (!options.kernel.empty()) loop_options.kernel = attention::find_kernel(options.kernel).value();
  loop_options.kv = options.kv;
  if (options.page_size != 0) loop_options.page_size = options.page_size;
  loop_options.prefill_chunk = options.prefill_chunk;
  loop_options.context = impl->limits.context;
  loop_options.max_sequences = options.max_sequences;
  loop_options.decode_rows = engine::verify_rows(options);
  loop_options.cancelled = load.cancelled;
  Result<std::unique_ptr<engine::Loop>> loop = engine::Loop::create(*impl->runtime, loop_options);
  if (!loop.ok()) return loop.error();
  impl->loop = std::move(loop).value();
  impl->controller = engine::new_controller(impl->runtime->model->place());
  impl->options = options;
  impl->options.threads = impl->runtime->pool->threads();
  impl->options.page_size = loop_options.page_size;
  impl->options.context = loop_options.context;
  impl->options.decode_rows = loop_options.decode_rows;
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

std::string Engine::start_line(std::span<const Request> requests) const {
  const model::LanguageModel& model = *impl_->runtime->model;
  const EngineOptions& options = impl_->options;
  std::string line = fmt::format("{} ({}) on {}, {} threads, KV {}", model.config().name,
                                 model.config().architecture, model.place().text(), options.threads,
                                 kv_type_name(options.kv));
  std::vector<std::string_view> modes;
  std::vector<std::string_view> names;
  const auto add = [](std::string_view word, std::vector<std::string_view>& to) {
    if (std::ranges::find(to, word) == to.end()) to.push_back(word);
  };
  int most = 0;
  for (const Request& request : requests) {
    most = std::max(most, most_drafts(request));
    add(spec_mode_name(request.spec), modes);
    const auto drafters = impl_->loop->drafters(request.spec);
    if (!drafters.ok()) continue;  // the request's own failure
    for (const speculate::Drafter* drafter : *drafters) add(drafter->name(), names);
  }
  line += fmt::format("; speculation {}", fmt::join(modes, ", "));
  if (most > 0) line += fmt::format(", up to {} drafts a step by {}", most, fmt::join(names, ", "));
  const int rows = 1 + most;
  line += fmt::format("; {} of {} row{}:", most > 0 ? "its largest steps," : "steps", rows,
                      rows == 1 ? "" : "s");
  const std::int64_t last = std::max<std::int64_t>(0, options.context - rows);
  const std::int64_t first = std::min<std::int64_t>(1, last);
  for (std::size_t kind = 0; kind < model.config().kinds.size(); ++kind) {
    const auto at = [&](std::int64_t depth) {
      return engine::plan_step(options, model.config(), model.place(), static_cast<int>(kind),
                               {depth, rows, false})
          .value();
    };
    const attention::Plan shallow = at(first);
    const attention::Plan deep = at(last);
    line += fmt::format("{} {} layers {}, {} path at depth {}, {} at {}", kind == 0 ? "" : ";",
                        model.config().kinds[kind].name, deep.kernel->name,
                        attention::path_name(shallow.verdict.path), first,
                        attention::path_name(deep.verdict.path), last);
  }
  return line;
}

const std::vector<Engine::AttentionUse>& Engine::attention() const { return impl_->attention; }

std::string Engine::model_name() const { return impl_->runtime->model->config().name; }
const EngineOptions& Engine::options() const { return impl_->options; }
std::string Engine::device_name() const { return impl_->runtime->model->place().name(); }
double Engine::load_s() const { return impl_->runtime->load_s; }

std::vector<std::int32_t> Engine::tokenize(std::string_view text, bool parse_special) const {
  return impl_->runtime->tokenizer->encode_prompt(text, parse_special);
}

std::int64_t Engine::lost_bytes(std::string_view text, bool parse_special) const {
  return impl_->runtime->tokenizer->lost_bytes(text, parse_special);
}

std::int64_t Engine::most_text_bytes() const {
  const text::StringTable& tokens = impl_->runtime->tokenizer->vocabulary().tokens;
  std::size_t longest = 1;
  for (std::size_t id = 0; id < tokens.size(); ++id) longest = std::max(longest, tokens[id].size());
  return impl_->limits.context * static_cast<std::int64_t>(longest);
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
