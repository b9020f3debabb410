// SPDX-License-Identifier: Apache-2.0
// Loop: one step at a time over the sequences that it is given: draft, verify, accept, commit. It
// owns the cache and the drafters, decides nothing about which requests run (engine.cc does), and
// reports every step.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "attention/kernel.h"
#include "attention/policy.h"
#include "core/preemption.h"
#include "engine/runtime.h"
#include "engine/sequence.h"
#include "kv/cache.h"
#include "segue/error.h"
#include "speculate/controller.h"
#include "speculate/sampler.h"

namespace segue::engine {

struct LoopOptions {
  KvType kv = KvType::kBF16;
  int page_size = kv::kDefaultPageSize;
  int prefill_chunk = 512;
  std::int64_t context = 0;  // tokens that a sequence may reach
  int max_sequences = 1;     // alive at once, forks included
  int decode_rows = 1;       // 1 + k that pr45450 is told
  int workgroups = 0;        // 0: threads
  const attention::Kernel* kernel = nullptr;
  std::function<bool()> cancelled{};  // asked while a model runs, or empty: kCancelled
};

/// What a step did with one of its sequences.
struct SequenceStep {
  std::int64_t key = 0;
  std::int64_t depth = 0;
  int rows = 0;
  int drafted = 0;
  int accepted = 0;
  int emitted = 0;  // tokens committed to the text, the stop token not counted
  bool prefill = false;
  std::string_view drafter;  // whose drafts were verified; empty: none
};

/// Valid until the next step.
struct StepReport {
  std::span<const SequenceStep> sequences;
  std::span<const model::GroupRecord> groups;
  double draft_us = 0;
  double verify_us = 0;  // the target's forward pass
  double other_us = 0;   // sampling, acceptance, bookkeeping
  double total_us = 0;
  double preempted_us = 0;  // of the total: other programs held our CPUs
};

/// A controller that has measured nothing yet, of models that run at `place`.
speculate::Controller new_controller(const model::Place& place);

class Loop {
 public:
  /// Sizes and reserves the cache. kUsage for impossible options, kNoMemory with the sizes.
  static Result<std::unique_ptr<Loop>> create(Runtime& runtime, const LoopOptions& options);

  /// The drafters that a sequence of this mode may use, best known first; `auto` chooses among all.
  /// kUsage when the runtime was loaded without what the mode needs. Valid as long as the loop.
  Result<std::vector<speculate::Drafter*>> drafters(SpecMode mode) const;

  /// Gives the sequence its place in the cache. At most max_sequences are alive at once (CHECK).
  void admit(Sequence& sequence);
  /// A copy of `from` that shares its cached prefix and what the loop's drafters know of it, with
  /// no drafters to use, output or statistics of its own.
  Result<Sequence> fork(const Sequence& from);
  /// `next` takes the place of `old`, of which it shares the first `tokens` cached tokens. False
  /// when the cache no longer has what they need; `old` keeps its place then.
  bool take_over(Sequence& old, Sequence& next, std::int64_t tokens);
  void release(Sequence& sequence);

  /// One step. Sequences in their prompt take the next chunk, the others draft and verify; finished
  /// ones are skipped. `controller` chooses k for the sequences of SpecMode::kAuto and learns from
  /// every step. An error leaves the sequences as they were before the step.
  Result<StepReport> step(std::span<Sequence* const> sequences, attention::Policy policy,
                          speculate::Controller& controller);

  std::int64_t cached(const Sequence& sequence) const { return cache_.length(sequence.cache_id); }
  kv::Cache& cache() { return cache_; }
  const LoopOptions& options() const { return options_; }
  Runtime& runtime() { return runtime_; }

 private:
  struct Block {  // one sequence's part of the step being built
    Sequence* sequence;
    std::vector<std::int32_t> rows;  // tokens of its rows; drafts are rows[1..]
    std::int64_t depth;
    bool prefill;
    int logits;
    double draft_us;
    int most;                  // drafts that the sequence has room for
    std::string_view drafter;  // of rows[1..]
  };
  struct Ask {  // one drafter's draft for one sequence of the step
    Block* block;
    int kind;  // of Sequence::drafters
    int most;  // tokens
    speculate::Draft draft;
    std::array<std::int32_t, speculate::kMaxDraft> tokens;
    double us;  // its share of the call's time
  };

  Loop(Runtime& runtime, const LoopOptions& options, kv::Cache cache);
  Status add_drafters(std::int64_t budget_bytes);
  void build_prefill(Block& block);
  void draft(std::span<Block> blocks, speculate::Controller& controller);
  void decide(std::span<Block> blocks, speculate::Controller& controller);
  double run_drafters(std::span<Ask> asks);
  static void take_draft(const Ask& ask, int tokens);
  void prepare_drafters(const Block& block);
  Status reserve(std::span<Block> blocks);
  Result<model::StepOutput> run_target(std::span<Block> blocks, attention::Policy policy);
  Result<int> take(Block& block, const model::StepOutput& output, std::int64_t first_row,
                   speculate::Controller& controller, SequenceStep& record);
  void emit(Sequence& sequence, std::int32_t token, const float* logits);

  Runtime& runtime_;
  LoopOptions options_;
  kv::Cache cache_;
  speculate::SampleScratch scratch_;
  std::int64_t next_key_ = 1;
  std::vector<std::unique_ptr<speculate::Drafter>> drafters_;  // those of this runtime
  core::Preemption preemption_;
  double last_step_end_us_ = 0;
  double slow_draft_us_ = 0;  // of the step: time in drafters that are not `ready`
  double weighing_us_ = 0;    // of the step: the controller's
  std::vector<Block> blocks_;
  std::vector<Ask> asks_;
  std::vector<speculate::DraftJob> jobs_;
  std::vector<model::SequenceInput> inputs_;
  std::vector<SequenceStep> records_;
};

}  // namespace segue::engine
