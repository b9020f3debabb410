// SPDX-License-Identifier: Apache-2.0
// Assistant: the small model that Gemma 4 ships as a drafter for each of its sizes. It has no K and
// V of its own: its layers have queries only and read the target's cache through views, so it runs
// where the target does. Every draft of a step sits at the newest token's position and sees all
// keys before it; what one draft passes to the next is a vector of the target's width.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/thread_pool.h"
#include "kv/cache.h"
#include "model/assistant_config.h"
#include "model/lm.h"
#include "model/loader.h"
#include "segue/error.h"

namespace segue::model {

/// A sequence of the target that drafts: `depth` (>= 1) of its keys are committed, and that is the
/// position of its newest token, which has no key yet.
struct AssistantSequence {
  kv::SequenceId id;
  std::int64_t depth = 0;
};

/// The likeliest tokens of several draft positions, each following from the one before it.
struct DraftChain {
  std::span<const std::int32_t> tokens;      // [sequences] the newest ones
  const float* hidden = nullptr;             // [sequences, backbone] as for step()
  std::span<const std::int32_t> suppressed;  // ids in [0, vocab) that are never drafted
  int positions = 0;
  std::int32_t* out = nullptr;  // [sequences, positions]
};

/// On the device of its target: two implementations, as LanguageModel's.
class Assistant {
 public:
  /// As load_assistant(). Refuses one that was made for another target, with
  /// the two numbers that do not fit, and one that does not run where the target does. The target
  /// must outlive this.
  static Result<std::unique_ptr<Assistant>> load(const std::string& path,
                                                 const LanguageModel& target,
                                                 core::ThreadPool& pool,
                                                 const WeightOptions& options);
  virtual ~Assistant() = default;
  Assistant(const Assistant&) = delete;
  Assistant& operator=(const Assistant&) = delete;

  const AssistantConfig& config() const { return config_; }
  virtual std::int64_t weight_bytes() const = 0;

  /// Plans the attention of all draft positions of these sequences, over the target's `cache`,
  /// which must keep them as they are until the last step(). `workgroups` 0: as many as the device
  /// runs at once.
  virtual Status begin(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
                       int workgroups = 0) = 0;

  /// Valid until the next step().
  struct Output {
    const float* logits;  // [sequences, vocab]; -inf for tokens that the head did not look at
    const float* hidden;  // [sequences, backbone] what the next draft goes on from
  };

  /// One draft position of all sequences of begin(): the token before it, and `hidden`, at the
  /// first position the target's final row of the newest cached token, then its own last output.
  virtual Result<Output> step(std::span<const std::int32_t> tokens /*[sequences]*/,
                              const float* hidden /*[sequences, backbone]*/) = 0;

  /// Does the host wait for every step? Then several positions that need no sampling are cheaper as
  /// a chain.
  virtual bool chains() const { return false; }
  /// The same tokens as step() with the lowest id of the largest logits, position after position.
  virtual Status chain(const DraftChain& args);

 protected:
  explicit Assistant(AssistantConfig config) : config_(std::move(config)) {}

 private:
  AssistantConfig config_;
};

}  // namespace segue::model
