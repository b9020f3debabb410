// SPDX-License-Identifier: Apache-2.0
// Drafter: proposes the next tokens of sequences. The one virtual interface of speculation: one
// drafter per kind serves all sequences of an engine and drafts for those of a step together, so
// that one that runs a model runs it once per draft position. It can be wrong, late or silent, and
// can never change the output (see accept.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "segue/types.h"

namespace segue::speculate {

inline constexpr int kMaxDraft = 16;  // largest k anywhere
inline constexpr int kDraftGrades = 3;

/// What a drafter wrote. Grades are the drafter's own classes of confidence, 0 the lowest, below
/// kDraftGrades: the controller learns the acceptance of each apart.
struct Draft {
  int tokens = 0;
  int grade = 0;
};

/// One sequence of a step that wants a draft.
struct DraftJob {
  std::int64_t sequence = 0;                // any id that stays the same for the sequence's life
  std::span<const std::int32_t> context{};  // [tokens] prompt and all committed, the newest too
  std::span<std::int32_t> out{};            // [k] where the proposals for what follows them go
  Sampling sampling{};              // the target's: the same noise makes close distributions agree
  std::int64_t target_cache = -1;   // kv::SequenceId in the target's cache; -1: none
  std::span<const float> hidden{};  // [hidden] the target's final hidden row (after its last norm)
                                    // of the newest cached token; empty: not recorded
  std::span<const std::int32_t> stop{};        // tokens that end the sequence: nothing follows them
  std::span<const std::int32_t> suppressed{};  // tokens that the target never generates
  Draft draft{};                               // filled by the drafter; 0 tokens is a fine answer

  /// Is there anything to draft after the `drafted` tokens in `out`?
  bool wants_more(std::size_t drafted) const {
    return drafted < out.size() &&
           (drafted == 0 || std::find(stop.begin(), stop.end(), out[drafted - 1]) == stop.end());
  }
};

/// Deterministic: the same calls give the same drafts.
class Drafter {
 public:
  virtual ~Drafter() = default;
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  virtual std::string_view name() const = 0;

  /// Drafting costs next to nothing: drafts are made before k is decided, for nothing if need be.
  virtual bool ready() const { return false; }
  /// Does it read DraftJob::hidden?
  virtual bool wants_hidden() const { return false; }

  /// Committed tokens that it has to read before it can draft, the newest apart.
  virtual std::int64_t behind(std::int64_t sequence, std::span<const std::int32_t> context) const;

  /// The prompt is read as far as `context`: time for what a prompt costs a drafter once.
  virtual void prepare(std::int64_t sequence, std::span<const std::int32_t> context);

  /// Fills `draft` and `out` of every job, each of another sequence. From call to call the context
  /// of a sequence only grows; what of the last draft it kept tells what was accepted.
  virtual void draft(std::span<DraftJob> jobs) = 0;

  /// The sequence starts over from its first `tokens` tokens.
  virtual void rewind(std::int64_t sequence, std::int64_t tokens);
  /// `to` begins as a copy of `from`.
  virtual void fork(std::int64_t from, std::int64_t to);
  virtual void forget(std::int64_t sequence);
};

}  // namespace segue::speculate
