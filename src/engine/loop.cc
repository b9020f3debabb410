// SPDX-License-Identifier: Apache-2.0
// The step: rows of all sequences go through the target together, then each sequence keeps the
// drafts that equal what the target samples. Nothing here may influence a token; k only decides how
// many rows are computed at once.
#include "engine/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"
#include "core/clock.h"
#include "engine/limits.h"
#include "speculate/accept.h"
#include "speculate/model_drafter.h"
#include "speculate/mtp_drafter.h"
#include "speculate/ngram_drafter.h"

namespace segue::engine {
namespace {

// Verify rows whose logits have their memory from the start; a first step that pays for it looks
// several times as expensive as it is.
constexpr std::int64_t kReservedRows = 64;
// Less than any preemption lasts: steps that follow each other so closely had none between them.
constexpr double kBetweenStepsUs = 100;
// A step that waited for longer than it ran tells nothing: the other threads may have done the work
// of the one that waited.
constexpr double kMostPreempted = 0.5;

}  // namespace

speculate::Controller new_controller(const model::Place& place) {
  const bool gpu = place.device == Device::kCuda;
  return speculate::Controller({.rows = gpu ? speculate::kGpuRows : speculate::kCpuRows});
}

Result<std::unique_ptr<Loop>> Loop::create(Runtime& runtime, const LoopOptions& options) {
  if (Status status = check_sizes(options.page_size, options.prefill_chunk); !status.ok())
    return status.error();
  const model::LanguageModel& model = *runtime.model;
  kv::Demand demand;
  demand.sequences = options.max_sequences;
  demand.drafts = speculate::kMaxDraft;
  demand.tokens = options.context + demand.drafts;
  demand.max_rows = std::max(options.prefill_chunk, 1 + speculate::kMaxDraft);
  kv::CacheOptions cache_options;
  cache_options.max_rows = demand.max_rows;
  cache_options.budget_bytes = runtime.cache_budget_bytes();
  Result<std::vector<kv::PoolSpec>> specs = kv::size_pools(
      model.pool_specs(options.kv, options.page_size), demand, cache_options.budget_bytes);
  if (!specs.ok()) return specs.error();
  Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), cache_options);
  if (!cache.ok()) return cache.error();
  runtime.model->reserve_logits(std::min<std::int64_t>(
      kReservedRows, std::int64_t{options.max_sequences} * (1 + speculate::kMaxDraft)));
  auto loop = std::unique_ptr<Loop>(new Loop(runtime, options, std::move(cache).value()));
  if (Status status = loop->add_drafters(cache_options.budget_bytes - loop->cache_.bytes());
      !status.ok()) {
    return status.error();
  }
  return loop;
}

Loop::Loop(Runtime& runtime, const LoopOptions& options, kv::Cache cache)
    : runtime_(runtime), options_(options), cache_(std::move(cache)) {}

Status Loop::add_drafters(std::int64_t budget_bytes) {
  drafters_.push_back(std::make_unique<speculate::NgramDrafter>());
  if (runtime_.assistant != nullptr) {
    drafters_.push_back(
        std::make_unique<speculate::MtpDrafter>(*runtime_.assistant, cache_, options_.workgroups));
  }
  if (runtime_.draft_model == nullptr) return {};
  speculate::ModelDrafterOptions draft;
  draft.kv = options_.kv;
  draft.page_size = options_.page_size;
  draft.chunk = options_.prefill_chunk;
  draft.context = options_.context;
  draft.sequences = options_.max_sequences;
  draft.budget_bytes = budget_bytes;
  draft.workgroups = options_.workgroups;
  draft.cancelled = options_.cancelled;
  Result<std::unique_ptr<speculate::ModelDrafter>> drafter =
      speculate::ModelDrafter::create(*runtime_.draft_model, draft);
  if (!drafter.ok()) {
    return Error{drafter.error().code, fmt::format("draft model: {}", drafter.error().message)};
  }
  drafters_.push_back(std::move(drafter).value());
  return {};
}

Result<std::vector<speculate::Drafter*>> Loop::drafters(SpecMode mode) const {
  if (Status status =
          check_drafter(mode, runtime_.assistant != nullptr, runtime_.draft_model != nullptr);
      !status.ok()) {
    return status.error();
  }
  std::vector<speculate::Drafter*> found;
  if (mode == SpecMode::kOff) return found;
  for (const auto& drafter : drafters_) {
    if (mode == SpecMode::kAuto || drafter->name() == spec_mode_name(mode))
      found.push_back(drafter.get());
  }
  return found;
}

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
  copy.hidden = from.hidden;
  for (const auto& drafter : drafters_) drafter->fork(from.key, copy.key);
  return copy;
}

bool Loop::take_over(Sequence& old, Sequence& next, std::int64_t tokens) {
  if (!cache_.truncate(old.cache_id, tokens).ok()) return false;
  for (const auto& drafter : drafters_) drafter->rewind(old.key, tokens);
  next.key = old.key;
  next.cache_id = old.cache_id;
  old.cache_id = {};
  return true;
}

void Loop::release(Sequence& sequence) {
  for (const auto& drafter : drafters_) drafter->forget(sequence.key);
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

Status Loop::reserve(std::span<Block> blocks) {
  try {
    for (const Block& block : blocks) {
      if (Status status = cache_.reserve(block.sequence->cache_id,
                                         static_cast<std::int64_t>(block.rows.size()));
          !status.ok()) {
        return status;
      }
    }
  } catch (const device::DeviceError& error) {  // a shared page was to be copied on a GPU
    return Error{ErrorCode::kDevice, error.what()};
  }
  return {};
}

Result<model::StepOutput> Loop::run_target(std::span<Block> blocks, attention::Policy policy) {
  if (Status status = reserve(blocks); !status.ok()) return status.error();
  inputs_.clear();
  for (const Block& block : blocks) {
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
  input.cancelled = options_.cancelled;
  return runtime_.model->forward(input);
}

/// What the prompt costs the drafters is paid while it is read.
void Loop::prepare_drafters(const Block& block) {
  const Sequence& sequence = *block.sequence;
  const auto read =
      std::span(sequence.tokens).first(static_cast<std::size_t>(block.depth) + block.rows.size());
  for (speculate::Drafter* drafter : sequence.drafters) drafter->prepare(sequence.key, read);
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

/// Samples the block's rows in order, keeps what agrees, commits. Its logits are the output's from
/// `first_row` on; returns how many they are. Logits that are not finite fail the step: the weights
/// are damaged.
Result<int> Loop::take(Block& block, const model::StepOutput& output, std::int64_t first_row,
                       speculate::Controller& controller, SequenceStep& record) {
  Sequence& sequence = *block.sequence;
  const std::int64_t vocab = runtime_.model->config().vocab;
  const float* const logits = output.logits + first_row * vocab;
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
        static_cast<std::int64_t>(sequence.tokens.size() + count),
        runtime_.tokenizer->suppressed_ids(),
        output.maxima_of(first_row + static_cast<std::int64_t>(count), vocab)};
    sampled[count] = speculate::sample(sequence.sampling, row, scratch_);
    if (!std::isfinite(row.logits[static_cast<std::size_t>(sampled[count])])) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("the logits at position {} are not finite: the weights are damaged",
                               row.position)};
    }
    ++count;
    if (count > drafts.size() || sampled[count - 1] != drafts[count - 1]) break;
  }
  const speculate::Accepted accepted = speculate::accept(drafts, std::span(sampled).first(count));
  cache_.commit(sequence.cache_id,
                block.prefill ? static_cast<std::int64_t>(block.rows.size()) : 1 + accepted.drafts);
  if (std::ranges::any_of(sequence.drafters, &speculate::Drafter::wants_hidden)) {
    const std::int64_t width = runtime_.model->config().hidden;
    // Of the rows that stay.
    const float* newest = output.hidden + (first_row + accepted.drafts) * width;
    sequence.hidden.assign(newest, newest + width);
  }
  const std::int64_t before = sequence.generated();
  for (std::size_t i = 0; i < count && !sequence.finished; ++i) {
    emit(sequence, sampled[i], logits + static_cast<std::int64_t>(i) * vocab);
  }
  record.accepted = accepted.drafts;
  record.emitted = static_cast<int>(sequence.generated() - before);
  if (sequence.spec == SpecMode::kAuto && !sequence.drafters.empty()) {
    controller.observe_tokens(sequence.key, std::span<const std::int32_t>(sampled).first(count));
  }
  return block.logits;
}

Result<StepReport> Loop::step(std::span<Sequence* const> sequences, attention::Policy policy,
                              speculate::Controller& controller) {
  if (core::now_us() - last_step_end_us_ > kBetweenStepsUs) {
    preemption_.since_last_us(*runtime_.pool);  // what happened before is no part of this step
  }
  const double start = core::now_us();
  blocks_.clear();
  bool any_prefill = false;
  for (Sequence* sequence : sequences) {
    if (sequence->finished) continue;
    const std::int64_t depth = cached(*sequence);
    const bool prefill = sequence->in_prefill(depth);
    blocks_.push_back({sequence, {}, depth, prefill, 0, 0, 0, {}});
    if (!prefill) continue;
    any_prefill = true;
    if (sequence->prefill_started_us == 0) sequence->prefill_started_us = start;
    build_prefill(blocks_.back());
  }
  if (blocks_.empty()) return StepReport{};
  draft(blocks_, controller);
  const double drafted = core::now_us();
  const Result<model::StepOutput> output = run_target(blocks_, policy);
  if (!output.ok()) {
    for (const Block& block : blocks_) {  // what drafters and cache hold of rows that never came
      for (const auto& drafter : drafters_) drafter->rewind(block.sequence->key, block.depth);
      CHECK(cache_.truncate(block.sequence->cache_id, block.depth).ok());
    }
    return output.error();
  }
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
                        block.prefill,
                        block.drafter};
    if (block.prefill) prepare_drafters(block);
    const Result<int> taken = take(block, *output, logits_row, controller, record);
    if (!taken.ok()) return taken.error();
    logits_row += *taken;
    records_.push_back(record);
  }
  const double end = core::now_us();

  StepReport report{
      records_, output->groups, drafted - start, verified - drafted, end - verified, end - start,
      0};
  last_step_end_us_ = end;
  report.preempted_us = std::min(preemption_.since_last_us(*runtime_.pool), report.total_us);
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
  if (!any_prefill && report.preempted_us < kMostPreempted * report.total_us) {
    // Steps whose k was weighed anew, as those of all trials, took no longer for that: a trial
    // would look dearer than the same k is once it stands.
    controller.observe_step(rows, report.total_us - slow_draft_us_ - weighing_us_ -
                                      report.preempted_us - output->recording_us);
  }
  return report;
}

}  // namespace segue::engine
