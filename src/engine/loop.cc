// SPDX-License-Identifier: Apache-2.0
// The step: rows of all sequences go through the target together, then each sequence keeps the
// drafts that equal what the target samples. Nothing here may influence a token; k only decides how
// many rows are computed at once.
#include "engine/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/clock.h"
#include "speculate/accept.h"

namespace segue::engine {
namespace {

constexpr double kMemoryShare =
    0.9;  // of the machine's memory that weights and cache together may reserve

}  // namespace

Result<std::unique_ptr<Loop>> Loop::create(Runtime& runtime, const LoopOptions& options) {
  if (options.page_size < 8 || options.page_size % 8 != 0) {
    return Error{ErrorCode::kUsage,
                 fmt::format("page size is {}; allowed: multiples of 8", options.page_size)};
  }
  if (options.prefill_chunk < 1) {
    return Error{ErrorCode::kUsage,
                 fmt::format("prefill chunk is {}; allowed: 1 and more", options.prefill_chunk)};
  }
  const model::LanguageModel& model = *runtime.model;
  const std::int64_t memory = core::cpu_facts().memory_bytes;
  kv::Demand demand;
  demand.sequences = options.max_sequences;
  demand.tokens = options.context + speculate::kMaxDraft;
  demand.max_rows = std::max(options.prefill_chunk, 1 + speculate::kMaxDraft);
  kv::CacheOptions cache_options;
  cache_options.max_rows = demand.max_rows;
  cache_options.budget_bytes = std::max<std::int64_t>(
      0,
      static_cast<std::int64_t>(kMemoryShare * static_cast<double>(memory)) - model.weight_bytes());
  Result<std::vector<kv::PoolSpec>> specs = kv::size_pools(
      model.pool_specs(options.kv, options.page_size), demand, cache_options.budget_bytes);
  if (!specs.ok()) return specs.error();
  Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), cache_options);
  if (!cache.ok()) return cache.error();
  return std::unique_ptr<Loop>(new Loop(runtime, options, std::move(cache).value()));
}

Loop::Loop(Runtime& runtime, const LoopOptions& options, kv::Cache cache)
    : runtime_(runtime), options_(options), cache_(std::move(cache)) {}

void Loop::admit(Sequence& sequence) {
  CHECK(cache_.sequences() < options_.max_sequences);
  sequence.key = next_key_++;
  sequence.cache_id = cache_.create_sequence();
}

Result<Sequence> Loop::fork(const Sequence& from) {
  CHECK(cache_.sequences() < options_.max_sequences);
  Result<kv::SequenceId> id = cache_.share_prefix(from.cache_id, cache_.length(from.cache_id));
  if (!id.ok()) return id.error();
  Sequence copy;
  copy.key = next_key_++;
  copy.cache_id = *id;
  copy.tokens = from.tokens;
  copy.prompt_tokens = from.prompt_tokens;
  copy.limit = from.limit;
  copy.limit_reason = from.limit_reason;
  copy.sampling = from.sampling;
  copy.ignore_eos = from.ignore_eos;
  return copy;
}

void Loop::release(Sequence& sequence) {
  cache_.destroy(sequence.cache_id);
  sequence.cache_id = {};
}

/// The next chunk of the prompt. Chunks end at multiples of the chunk size, whatever else is in the
/// step.
void Loop::build_prefill(Block& block) {
  const Sequence& sequence = *block.sequence;
  const std::int64_t chunk = options_.prefill_chunk;
  const std::int64_t end = std::min(sequence.prompt_tokens, (block.depth / chunk + 1) * chunk);
  block.rows.assign(sequence.tokens.begin() + block.depth, sequence.tokens.begin() + end);
  block.logits = end == sequence.prompt_tokens ? 1 : 0;
}

/// Fills the decode blocks: the newest token, then as many drafts as the controller (or the fixed
/// k) wants.
void Loop::draft(std::span<Block> blocks, speculate::Controller& controller) {
  std::vector<speculate::DraftOffer> offers;  // of every decoding sequence: all share the step
  std::vector<Block*> offering;
  bool any_auto = false;
  for (Block& block : blocks) {
    if (block.prefill) continue;
    Sequence& sequence = *block.sequence;
    block.rows.assign(1, sequence.tokens.back());
    const auto room = sequence.limit - static_cast<std::int64_t>(sequence.tokens.size()) - 1;
    const auto most =
        static_cast<std::size_t>(std::clamp<std::int64_t>(room, 0, sequence.max_draft));
    speculate::DraftOffer offer{sequence.key, block.depth, 0, 0, true};
    if (sequence.drafter != nullptr && most > 0) {
      const double start = core::now_us();
      std::array<std::int32_t, speculate::kMaxDraft> proposed;
      const speculate::Draft drafted =
          sequence.drafter->draft(sequence.tokens, std::span(proposed).first(most));
      block.rows.insert(block.rows.end(), proposed.begin(), proposed.begin() + drafted.tokens);
      if (sequence.spec == SpecMode::kAuto) {
        any_auto = true;
        offer.available = drafted.tokens;
        offer.grade = drafted.grade;
        controller.observe_draft(sequence.key, offer.source(), std::span(block.rows).subspan(1));
      }
      block.draft_us = core::now_us() - start;
    }
    offers.push_back(offer);
    offering.push_back(&block);
  }
  if (any_auto) {
    std::vector<speculate::Decision> decisions(offers.size());
    controller.decide(offers, decisions);
    for (std::size_t i = 0; i < offers.size(); ++i) {
      if (offering[i]->sequence->spec != SpecMode::kAuto) continue;
      offering[i]->rows.resize(static_cast<std::size_t>(1 + decisions[i].draft));
    }
  }
  for (Block* block : offering) block->logits = static_cast<int>(block->rows.size());
}

Result<model::StepOutput> Loop::run_target(std::span<Block> blocks, attention::Policy policy) {
  inputs_.clear();
  for (const Block& block : blocks) {
    if (Status status =
            cache_.reserve(block.sequence->cache_id, static_cast<std::int64_t>(block.rows.size()));
        !status.ok()) {
      return status.error();
    }
    inputs_.push_back(
        {block.sequence->cache_id, block.depth, block.rows, block.prefill, block.logits});
  }
  model::StepInput input;
  input.cache = &cache_;
  input.sequences = inputs_;
  input.policy = policy;
  input.kernel = options_.kernel;
  input.decode_rows = options_.decode_rows;
  input.workgroups = options_.workgroups;
  return runtime_.model->forward(input);
}

/// Adds one token to the sequence and decides whether it was the last.
void Loop::emit(Sequence& sequence, std::int32_t token, const float* logits) {
  if (sequence.hash_logits) {
    sequence.hash.update(logits,
                         static_cast<std::size_t>(runtime_.model->config().vocab) * sizeof(float));
  }
  if (!sequence.ignore_eos && runtime_.tokenizer->is_stop(token)) {
    sequence.finished = FinishReason::kStop;
    return;
  }
  sequence.tokens.push_back(token);
  sequence.last_token_us = core::now_us();
  if (sequence.generated() == 1) sequence.first_token_us = sequence.last_token_us;
  if (sequence.output != nullptr && sequence.output->push(token)) {
    sequence.finished = FinishReason::kStopText;
  } else if (static_cast<std::int64_t>(sequence.tokens.size()) >= sequence.limit) {
    sequence.finished = sequence.limit_reason;
  }
}

/// Samples the block's rows in order, keeps what agrees, commits. Returns the rows of logits that
/// it had.
int Loop::take(Block& block, const float* logits, speculate::Controller& controller,
               SequenceStep& record) {
  Sequence& sequence = *block.sequence;
  const std::int64_t vocab = runtime_.model->config().vocab;
  const std::span<const std::int32_t> drafts =
      block.prefill ? std::span<const std::int32_t>()
                    : std::span<const std::int32_t>(block.rows).subspan(1);
  if (block.logits == 0) {
    cache_.commit(sequence.cache_id, static_cast<std::int64_t>(block.rows.size()));
    return 0;
  }
  std::array<std::int32_t, speculate::kMaxDraft + 1> sampled;
  std::size_t count = 0;
  for (;;) {
    const speculate::SampleRow row{
        {logits + static_cast<std::int64_t>(count) * vocab, static_cast<std::size_t>(vocab)},
        sequence.tokens,
        drafts.first(count),
        static_cast<std::int64_t>(sequence.tokens.size() + count)};
    sampled[count] = speculate::sample(sequence.sampling, row, scratch_);
    ++count;
    if (count > drafts.size() || sampled[count - 1] != drafts[count - 1]) break;
  }
  const speculate::Accepted accepted = speculate::accept(drafts, std::span(sampled).first(count));
  cache_.commit(sequence.cache_id,
                block.prefill ? static_cast<std::int64_t>(block.rows.size()) : 1 + accepted.drafts);
  const std::int64_t before = sequence.generated();
  for (std::size_t i = 0; i < count && !sequence.finished; ++i) {
    emit(sequence, sampled[i], logits + static_cast<std::int64_t>(i) * vocab);
  }
  record.accepted = accepted.drafts;
  record.emitted = static_cast<int>(sequence.generated() - before);
  if (sequence.spec == SpecMode::kAuto && sequence.drafter != nullptr) {
    controller.observe_tokens(sequence.key, std::span<const std::int32_t>(sampled).first(count));
  }
  if (sequence.drafter != nullptr) sequence.drafter->observe(sequence.tokens, accepted.drafts);
  return block.logits;
}

Result<StepReport> Loop::step(std::span<Sequence* const> sequences, attention::Policy policy,
                              speculate::Controller& controller) {
  const double start = core::now_us();
  blocks_.clear();
  bool any_prefill = false;
  for (Sequence* sequence : sequences) {
    if (sequence->finished) continue;
    const std::int64_t depth = cached(*sequence);
    const bool prefill = sequence->in_prefill(depth);
    blocks_.push_back({sequence, {}, depth, prefill, 0, 0});
    if (!prefill) continue;
    any_prefill = true;
    if (sequence->prefill_started_us == 0) sequence->prefill_started_us = start;
    build_prefill(blocks_.back());
  }
  if (blocks_.empty()) return StepReport{};
  draft(blocks_, controller);
  const double drafted = core::now_us();
  const Result<model::StepOutput> output = run_target(blocks_, policy);
  if (!output.ok()) return output.error();
  const double verified = core::now_us();

  records_.clear();
  std::int64_t logits_row = 0;
  for (Block& block : blocks_) {
    SequenceStep record{block.sequence->key,
                        block.depth,
                        static_cast<int>(block.rows.size()),
                        block.prefill ? 0 : static_cast<int>(block.rows.size()) - 1,
                        0,
                        0,
                        block.prefill};
    logits_row += take(block, output->logits + logits_row * runtime_.model->config().vocab,
                       controller, record);
    records_.push_back(record);
  }
  const double end = core::now_us();

  StepReport report{records_,           output->groups, drafted - start,
                    verified - drafted, end - verified, end - start};
  const double share = 1.0 / static_cast<double>(blocks_.size());
  std::vector<speculate::StepRows> rows;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const SequenceStep& record = records_[i];
    rows.push_back({record.depth, record.rows});
    if (record.prefill) continue;
    blocks_[i].sequence->stats.record({record.depth, record.drafted, record.accepted,
                                       blocks_[i].draft_us, report.verify_us * share,
                                       report.other_us * share});
  }
  if (!any_prefill) controller.observe_step(rows, report.total_us);
  return report;
}

}  // namespace segue::engine
