// SPDX-License-Identifier: Apache-2.0
// Controller: picks k, 0 included, per sequence and step, to maximise expected tokens per second. A
// pure state machine: measured step times and tokens in, decisions out; no clock, no randomness, no
// threads. One controller serves all sequences of an engine that use one kind of drafter. Its
// choices change speed, never the text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "core/json.h"
#include "speculate/acceptance.h"
#include "speculate/cost_model.h"
#include "speculate/drafter.h"

namespace segue::speculate {

struct ControllerOptions {
  int max_draft = 8;  // largest k to choose, up to kMaxDraft
};

/// One sequence of the step being decided.
struct DraftOffer {
  std::int64_t sequence = 0;  // any id that stays the same for the life of the sequence
  std::int64_t depth = 0;     // keys in the cache before the step
  int available = 0;          // tokens that the drafter has ready, or could draft
  int grade = 0;              // of the draft (drafter.h)
  bool ready = true;          // drafted already (ngram): its time is spent whatever is chosen
};

struct Decision {
  int draft = 0;       // k: how many of the available tokens to verify
  bool probe = false;  // chosen to learn, not because it is expected to be fastest
};

/// How an engine uses it, each step:
///   1. ready drafters draft; `observe_draft` for each draft, also for those that will not be
///   verified;
///   2. `decide` for all sequences of the step; other drafters draft what was decided, then
///   `observe_draft`;
///   3. the target's step; `observe_step` unless the step also held prefill rows;
///   4. `observe_tokens` with what each sequence committed, drafts and next token.
class Controller {
 public:
  explicit Controller(ControllerOptions options = {});

  /// One decision per offer; `decisions` has offers.size() entries. Sequences not seen before start
  /// from what all sequences so far have taught.
  void decide(std::span<const DraftOffer> offers, std::span<Decision> decisions);

  /// The drafter proposes `tokens` to follow the sequence's committed tokens.
  void observe_draft(std::int64_t sequence, int grade, std::span<const std::int32_t> tokens);

  /// The sequence committed `tokens` (without speculation just one). Judges the drafts observed so
  /// far, verified or not: that is how acceptance is learnt while k = 0.
  void observe_tokens(std::int64_t sequence, std::span<const std::int32_t> tokens);

  /// The target's step took `us`. `rows`: every sequence of the step. Non-positive and non-finite
  /// times are ignored.
  void observe_step(std::span<const StepRows> rows, double us);

  /// Drafting `tokens` tokens for one sequence at `depth` took `us`.
  void observe_draft_time(int tokens, std::int64_t depth, double us);

  void forget(std::int64_t sequence);

  /// The constant per-position acceptance at which verifying k drafts (1 to kMaxDraft) of one
  /// sequence at `depth` among `batch` like it is as fast as no speculation. Empty when not even
  /// accepting all of them is enough, or while nothing has been measured.
  std::optional<double> break_even_acceptance(int k, std::int64_t depth, int batch = 1) const;

  /// Estimates with their errors: step time by rows at the depth last seen, acceptance by grade and
  /// position, the last decision with the expected rate of every k, probes and what they cost.
  core::Json explain() const;

 private:
  struct Sequence;
  ControllerOptions options_;
};

}  // namespace segue::speculate
