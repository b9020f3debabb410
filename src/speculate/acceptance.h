// SPDX-License-Identifier: Apache-2.0
// Acceptance estimates: the probability that the draft at position j is right, given that those
// before it are, per kind of drafter and grade of draft. Counts that fade per sequence, over a
// prior that all sequences share; a sequence whose recent drafts contradict its older ones forgets
// the older ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "speculate/drafter.h"

namespace segue::speculate {

inline constexpr int kDraftKinds = 4;  // of drafters that may serve one sequence

/// Who wrote a draft. Kinds are numbered by the engine, in any order that stays the same; grades
/// are the drafter's own (drafter.h). Out of range counts as the nearest.
struct DraftSource {
  int kind = 0;
  int grade = 0;
  std::size_t slot() const;  // below kDraftSlots
};
inline constexpr std::size_t kDraftSlots = std::size_t{kDraftKinds} * kDraftGrades;

struct AcceptanceEstimate {
  double mean = 0;
  double error = 0;  // standard deviation
};
using AcceptanceCurve =
    std::array<AcceptanceEstimate, kMaxDraft>;  // by draft position, conditional

/// Right and wrong drafts, each fading.
struct FadingCounts {
  double trials = 0;
  double hits = 0;
  void fade(double factor) { trials *= factor, hits *= factor; }
  void add(bool hit) { trials += 1, hits += hit ? 1 : 0; }
};

using SlotCounts = std::array<FadingCounts, kMaxDraft>;
using CountTable = std::array<SlotCounts, kDraftSlots>;

/// What sequences teach each other: the counts of those that live and, fading, of those that are
/// finished.
class SharedAcceptance {
 public:
  /// A living sequence's counts of a slot changed.
  void replace(std::size_t slot, const SlotCounts& before, const SlotCounts& after);
  /// A sequence has ended: what it knew stays, until newer sequences push it out.
  void archive(const CountTable& counts);
  /// Has any draft of this source been judged?
  bool tried(DraftSource source) const;
  struct Common {
    double mean;
    double trials;
  };
  /// What all but the sequence with counts `own` know, by position. A position without trials
  /// follows the one before it, a grade all grades of its kind.
  std::array<Common, kMaxDraft> all_but(const CountTable& own, DraftSource source,
                                        int positions) const;

 private:
  CountTable living_{};
  CountTable finished_{};
};

/// One sequence: its counts, and drafts that wait for the tokens that prove them right or wrong.
class SequenceAcceptance {
 public:
  void draft(DraftSource source, std::span<const std::int32_t> tokens);
  void commit(std::span<const std::int32_t> tokens, SharedAcceptance& shared);
  /// The first `positions` entries; the others are zero.
  AcceptanceCurve curve(DraftSource source, const SharedAcceptance& shared,
                        int positions = kMaxDraft) const;
  const CountTable& counts() const { return counts_; }
  /// Tokens committed since a draft of this source was last judged.
  std::int64_t tokens_since_trial(DraftSource source) const {
    return tokens_ - last_trial_[source.slot()];
  }

 private:
  struct Pending {
    std::array<std::int32_t, kMaxDraft> tokens;
    int size;
    int judged;
    std::size_t slot;
  };
  void judge(std::size_t slot, int position, bool hit);

  std::vector<Pending> pending_;
  std::int64_t tokens_ = 0;                             // committed
  std::array<std::int64_t, kDraftSlots> last_trial_{};  // tokens_ when a draft was judged
  std::array<bool, kDraftSlots> used_{};                // had drafts
  struct Recent {
    std::uint32_t hits = 0;  // one bit a trial, the newest lowest
    int trials = 0;
  };
  CountTable counts_{};
  std::array<std::array<Recent, kMaxDraft>, kDraftSlots> recent_{};
};

/// Expected tokens of a step that verifies 0, 1, .. drafts: 1 + the sum of the products of the
/// curve.
std::array<double, kMaxDraft + 1> expected_tokens(const AcceptanceCurve& curve);

}  // namespace segue::speculate
