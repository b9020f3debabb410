// SPDX-License-Identifier: Apache-2.0
// Loading a model file into a Runtime.
#include "engine/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "core/clock.h"
#include "core/cpu.h"
#include "engine/load_model.h"

namespace segue::engine {

Result<int> resolve_threads(int threads) {
  constexpr int kMaxThreads = 1024;
  if (threads < 0 || threads > kMaxThreads) {
    return Error{ErrorCode::kUsage,
                 fmt::format("threads is {}; allowed: 0 (all CPUs) to {}", threads, kMaxThreads)};
  }
  return threads == 0 ? core::cpu_facts().logical_cpus : threads;
}

namespace {

/// A draft is a row of token ids: they must mean the same in both models.
Status same_vocabulary(const RuntimeOptions& options, const Runtime& target,
                       const LoadedModel& draft) {
  const auto refuse = [&](std::string_view what, std::int64_t drafts, std::int64_t targets) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("draft model '{}' has {} {}, model '{}' has {}; they must be equal",
                             options.draft_model, drafts, what, options.model, targets)};
  };
  const text::Tokenizer& ours = *target.tokenizer;
  const text::Tokenizer& theirs = *draft.tokenizer;
  if (ours.vocab_size() != theirs.vocab_size())
    return refuse("tokens", theirs.vocab_size(), ours.vocab_size());
  const std::int64_t rows = target.model->config().vocab;
  if (draft.model->config().vocab != rows)
    return refuse("rows of embeddings", draft.model->config().vocab, rows);
  for (std::int32_t id = 0; id < ours.vocab_size(); ++id) {
    const std::string_view text = ours.vocabulary().tokens[static_cast<std::size_t>(id)];
    const std::string_view other = theirs.vocabulary().tokens[static_cast<std::size_t>(id)];
    if (text == other) continue;
    return Error{ErrorCode::kUnsupported,
                 fmt::format("token {} is '{}' in draft model '{}' and '{}' in model '{}'; the "
                             "vocabularies must be equal",
                             id, other, options.draft_model, text, options.model)};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::load(const RuntimeOptions& options) {
  const double start = core::now_us();
  const Result<int> threads = resolve_threads(options.threads);
  if (!threads.ok()) return threads.error();
  auto runtime = std::make_unique<Runtime>();
  try {
    runtime->pool = std::make_unique<core::ThreadPool>(*threads);
  } catch (const std::system_error& problem) {
    return Error{ErrorCode::kDevice, problem.what()};
  }
  model::LoadOptions load_options;
  load_options.device = options.device;
  load_options.progress = options.progress;
  load_options.cancelled = options.cancelled;
  load_options.dequantise = options.dequantise;
  Result<LoadedModel> target = load_model(options.model, *runtime->pool, load_options);
  if (!target.ok()) return target.error();
  runtime->model = std::move(target->model);
  runtime->tokenizer = std::move(target->tokenizer);
  if (!options.assistant.empty()) {
    Result<std::unique_ptr<model::Assistant>> assistant =
        model::Assistant::load(options.assistant, *runtime->model, *runtime->pool,
                               {load_options.isa, options.dequantise, options.cancelled});
    if (!assistant.ok()) return assistant.error();
    runtime->assistant = std::move(assistant).value();
  }
  if (!options.draft_model.empty()) {
    load_options.progress = nullptr;
    Result<LoadedModel> draft = load_model(options.draft_model, *runtime->pool, load_options);
    if (!draft.ok()) return draft.error();
    if (Status status = same_vocabulary(options, *runtime, *draft); !status.ok())
      return status.error();
    runtime->draft_model = std::move(draft->model);
  }
  runtime->load_s = (core::now_us() - start) / 1e6;
  return runtime;
}

std::int64_t Runtime::cache_budget_bytes() const {
  constexpr double kMemoryShare = 0.9;  // that weights and caches together may reserve
  const std::int64_t weights = model->weight_bytes() +
                               (draft_model == nullptr ? 0 : draft_model->weight_bytes()) +
                               (assistant == nullptr ? 0 : assistant->weight_bytes());
  const auto memory = static_cast<double>(model->place().memory_bytes());
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(kMemoryShare * memory) - weights);
}

}  // namespace segue::engine
