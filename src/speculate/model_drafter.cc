// SPDX-License-Identifier: Apache-2.0
// Per draft() call: what of the last drafts was accepted is committed, the tokens that were never
// read are, then one forward pass per draft position.
#include "speculate/model_drafter.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace segue::speculate {

Result<std::unique_ptr<ModelDrafter>> ModelDrafter::create(model::LanguageModel& model,
                                                           const ModelDrafterOptions& options) {
  CHECK(options.chunk >= 1 && options.sequences >= 1);
  kv::Demand demand;
  demand.sequences = options.sequences;
  demand.drafts = kMaxDraft;
  demand.tokens = std::min(options.context, model.config().context) + demand.drafts;
  demand.max_rows = std::max(options.chunk, 1 + kMaxDraft);
  Result<std::vector<kv::PoolSpec>> specs =
      kv::size_pools(model.pool_specs(options.kv, options.page_size), demand, options.budget_bytes);
  if (!specs.ok()) return specs.error();
  kv::CacheOptions cache_options;
  cache_options.max_rows = demand.max_rows;
  cache_options.budget_bytes = options.budget_bytes;
  Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), cache_options);
  if (!cache.ok()) return cache.error();
  return std::unique_ptr<ModelDrafter>(new ModelDrafter(model, options, std::move(cache).value()));
}

ModelDrafter::ModelDrafter(model::LanguageModel& model, const ModelDrafterOptions& options,
                           kv::Cache cache)
    : model_(model),
      options_(options),
      cache_(std::move(cache)),
      longest_(std::min(options.context, model.config().context)) {}

ModelDrafter::Text& ModelDrafter::text_of(std::int64_t sequence) {
  Text& text = texts_[sequence];
  if (text.id.value < 0) text.id = cache_.create_sequence();
  return text;
}

/// Commits the rows of those drafts that are tokens of `context` now; returns the tokens cached.
/// The newest token stays unread: a draft begins with its row.
std::int64_t ModelDrafter::settle(Text& text, std::span<const std::int32_t> context) {
  const auto cached = static_cast<std::size_t>(cache_.length(text.id));
  std::size_t accepted = 0;
  while (accepted < text.drafts.size() && cached + accepted + 1 < context.size() &&
         text.drafts[accepted] == context[cached + accepted]) {
    ++accepted;
  }
  cache_.commit(text.id, static_cast<std::int64_t>(accepted));
  text.drafts.clear();
  return cache_.length(text.id);
}

std::int64_t ModelDrafter::behind(std::int64_t sequence,
                                  std::span<const std::int32_t> context) const {
  const auto unread = static_cast<std::int64_t>(context.size()) - 1;
  const auto found = texts_.find(sequence);
  if (found == texts_.end()) return unread;
  const std::int64_t cached = cache_.length(found->second.id);
  return std::max<std::int64_t>(
      0, unread - cached - static_cast<std::int64_t>(found->second.drafts.size()));
}

/// Caches `tokens`, at most a chunk of them at a time. False when it cannot.
bool ModelDrafter::read(Text& text, std::span<const std::int32_t> tokens) {
  while (!tokens.empty()) {
    const std::size_t count = std::min(tokens.size(), static_cast<std::size_t>(options_.chunk));
    if (!cache_.reserve(text.id, static_cast<std::int64_t>(count)).ok()) return false;
    const model::SequenceInput part{text.id, cache_.length(text.id), tokens.first(count), true, 0};
    model::StepInput input;
    input.cache = &cache_;
    input.sequences = std::span(&part, 1);
    input.workgroups = options_.workgroups;
    input.cancelled = options_.cancelled;
    if (!model_.forward(input).ok()) return false;
    cache_.commit(text.id, static_cast<std::int64_t>(count));
    tokens = tokens.subspan(count);
  }
  return true;
}

void ModelDrafter::prepare(std::int64_t sequence, std::span<const std::int32_t> context) {
  if (static_cast<std::int64_t>(context.size()) > longest_) return;
  Text& text = text_of(sequence);
  const std::int64_t cached = settle(text, context);
  read(text, context.subspan(static_cast<std::size_t>(cached)));
}

/// Runs inputs_ and samples the draft at `position` of every job.
bool ModelDrafter::forward(std::span<DraftJob* const> jobs, int position) {
  model::StepInput input;
  input.cache = &cache_;
  input.sequences = inputs_;
  input.decode_rows = 1 + kMaxDraft;
  input.workgroups = options_.workgroups;
  input.cancelled = options_.cancelled;
  const Result<model::StepOutput> output = model_.forward(input);
  if (!output.ok()) return false;
  const auto vocab = static_cast<std::size_t>(model_.config().vocab);
  const auto drafted = static_cast<std::size_t>(position);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    DraftJob& job = *jobs[i];
    const SampleRow row{{output->logits + i * vocab, vocab},
                        job.context,
                        job.out.first(drafted),
                        static_cast<std::int64_t>(job.context.size() + drafted),
                        job.suppressed,
                        output->maxima_of(static_cast<std::int64_t>(i), model_.config().vocab)};
    job.out[drafted] = sample(job.sampling, row, scratch_);
    job.draft.tokens = position + 1;
  }
  return true;
}

/// The rows that are unread, as many as a verify block at most, in one pass for all.
bool ModelDrafter::first_tokens(std::span<DraftJob* const> jobs) {
  inputs_.clear();
  for (const DraftJob* job : jobs) {
    Text& text = text_of(job->sequence);
    std::int64_t cached = settle(text, job->context);
    const auto size = static_cast<std::int64_t>(job->context.size());
    if (size - cached > 1 + kMaxDraft) {
      const auto unread = job->context.subspan(static_cast<std::size_t>(cached),
                                               static_cast<std::size_t>(size - 1 - cached));
      if (!read(text, unread)) return false;
      cached = size - 1;
    }
    if (!cache_.reserve(text.id, size - cached).ok()) return false;
    inputs_.push_back(
        {text.id, cached, job->context.subspan(static_cast<std::size_t>(cached)), false, 1});
  }
  if (!forward(jobs, 0)) return false;
  for (const model::SequenceInput& read_rows : inputs_) {
    cache_.commit(read_rows.id, static_cast<std::int64_t>(read_rows.tokens.size()));
  }
  return true;
}

bool ModelDrafter::next_tokens(std::span<DraftJob* const> jobs, int position) {
  inputs_.clear();
  const auto last = static_cast<std::size_t>(position - 1);
  for (const DraftJob* job : jobs) {
    Text& text = text_of(job->sequence);
    // Once for all drafts: rows that were reserved stay writable.
    if (position == 1 &&
        !cache_.reserve(text.id, static_cast<std::int64_t>(job->out.size()) - 1).ok()) {
      return false;
    }
    text.drafts.push_back(job->out[last]);
    inputs_.push_back(
        {text.id, cache_.length(text.id) + position - 1, job->out.subspan(last, 1), false, 1});
  }
  return forward(jobs, position);
}

void ModelDrafter::draft(std::span<DraftJob> jobs) {
  const auto wants = [&](const DraftJob& job, int position) {
    return job.draft.tokens == position && job.wants_more(static_cast<std::size_t>(position)) &&
           static_cast<std::int64_t>(job.context.size() + job.out.size()) <= longest_;
  };
  std::size_t most = 0;
  for (DraftJob& job : jobs) {
    CHECK(job.out.size() <= kMaxDraft && !job.context.empty());
    job.draft = {};
    most = std::max(most, job.out.size());
  }
  for (int position = 0; position < static_cast<int>(most); ++position) {
    active_.clear();
    for (DraftJob& job : jobs) {
      if (wants(job, position)) active_.push_back(&job);
    }
    if (active_.empty()) return;
    if (!(position == 0 ? first_tokens(active_) : next_tokens(active_, position))) return;
  }
}

void ModelDrafter::rewind(std::int64_t sequence, std::int64_t tokens) {
  const auto found = texts_.find(sequence);
  if (found == texts_.end()) return;
  Text& text = found->second;
  text.drafts.clear();
  const std::int64_t length = std::min(tokens, cache_.length(text.id));
  // A window that is gone: from the beginning.
  if (!cache_.truncate(text.id, length).ok()) CHECK(cache_.truncate(text.id, 0).ok());
}

void ModelDrafter::fork(std::int64_t from, std::int64_t to) {
  const auto found = texts_.find(from);
  if (found == texts_.end()) return;
  const Result<kv::SequenceId> copy =
      cache_.share_prefix(found->second.id, cache_.length(found->second.id));
  if (copy.ok()) texts_.insert_or_assign(to, Text{*copy, {}});
}

void ModelDrafter::forget(std::int64_t sequence) {
  const auto found = texts_.find(sequence);
  if (found == texts_.end()) return;
  cache_.destroy(found->second.id);
  texts_.erase(found);
}

}  // namespace segue::speculate
