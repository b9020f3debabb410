// SPDX-License-Identifier: Apache-2.0
// Controller: picks k, 0 included, per sequence and step, to maximise expected tokens per second. A
// pure state machine: measured step times and tokens in, decisions out; no clock, no randomness, no
// threads. One controller serves all sequences of an engine and chooses among their drafters, too.
// Its choices change speed, never the text.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/json.h"
#include "speculate/acceptance.h"
#include "speculate/cost_model.h"
#include "speculate/drafter.h"
#include "speculate/observations.h"
#include "speculate/statistics.h"
#include "speculate/watch.h"

namespace segue::speculate {

struct ControllerOptions {
  int max_draft = 8;         // largest k to choose, up to kMaxDraft
  RowPrior rows = kCpuRows;  // of the place where the model runs
};

/// What one drafter offers for one sequence of the step being decided. A sequence that several
/// drafters serve has one offer for each, next to each other and with the same depth.
struct DraftOffer {
  std::int64_t sequence = 0;  // any id that stays the same for the life of the sequence
  std::int64_t depth = 0;     // keys in the cache before the step
  int available = 0;          // tokens that the drafter has ready, or could draft
  int grade = 0;              // of the draft (drafter.h); of the last one when not `ready`
  bool ready = true;          // drafted already (ngram): its time is spent whatever is chosen
  int kind = 0;               // of the drafter: 0 to kDraftKinds - 1, each kind once per sequence
  int behind = 0;  // not `ready`: committed tokens that the drafter must read before it can draft
  DraftSource source() const { return {kind, grade}; }
};

struct Decision {
  int draft = 0;       // k: how many of the available tokens to verify
  bool probe = false;  // chosen to learn, not because it is expected to be fastest
};

/// What speculation did for a request, by the step times measured so far.
struct AgainstOff {
  double speedup = 1;                // below 1: slower than no speculation
  bool estimated = false;            // from few steps without drafts, or from none
  int k = 0;                         // of most of its steps with drafts
  double acceptance = 0;             // at every position, that yields the tokens it got from them
  std::optional<double> break_even;  // the same at which k drafts pay; empty: none does
};

/// How an engine uses it, each step:
///   1. drafters whose drafts cost nothing worth mentioning draft (`ready` offers); `observe_draft`
///      for each draft, also for those that will not be verified: all are judged by the tokens that
///      follow, which is how acceptance is learnt while k = 0;
///   2. `decide` for all sequences of the step, and `observe_weighing` with what that took. Of the
///      offers of one sequence at most one gets drafts. Offers that were not ready and got some
///      draft now, as many tokens as decided, or fewer; `observe_draft` and `observe_draft_time`
///      for each;
///   3. the target's step; `observe_tokens` with what each sequence committed, drafts and next
///      token;
///   4. `observe_step` with the time of the step without the times of 2, unless the step also held
///      prefill rows.
class Controller {
 public:
  explicit Controller(ControllerOptions options = {});

  /// One decision per offer; `decisions` has offers.size() entries. Every sequence of the step
  /// should be offered, those that draft nothing once with `available` = 0: they are part of what
  /// the step costs. Sequences not seen before start from what all sequences so far have taught.
  void decide(std::span<const DraftOffer> offers, std::span<Decision> decisions);

  /// The last `decide` took `us`. Where steps are short, weighing anew is what a trial costs most.
  /// Ignored where the last decision merely stood.
  void observe_weighing(double us);

  /// A drafter proposes `tokens` to follow the sequence's committed tokens.
  void observe_draft(std::int64_t sequence, DraftSource source,
                     std::span<const std::int32_t> tokens);

  /// The sequence committed `tokens` (without speculation just one). Judges the drafts observed so
  /// far, verified or not: that is how acceptance is learnt while k = 0.
  void observe_tokens(std::int64_t sequence, std::span<const std::int32_t> tokens);

  /// The target's step took `us`. `rows`: every sequence of the step. Non-positive and non-finite
  /// times are ignored.
  void observe_step(std::span<const StepRows> rows, double us);

  /// Drafting for one sequence took `us`; of a call for several sequences, its share.
  void observe_draft_time(const DraftWork& work, double us);

  void forget(std::int64_t sequence);

  /// The constant per-position acceptance at which verifying k drafts (1 to kMaxDraft) of one
  /// sequence at `depth` among `batch` like it is as fast as no speculation, the drafting by
  /// drafters of `kind` included. Empty when not even accepting all of them is enough, or while
  /// nothing has been measured.
  std::optional<double> break_even_acceptance(int k, std::int64_t depth, int batch = 1,
                                              int kind = 0);

  /// For one sequence alone that ended at `depth`; `draft_us`: what its drafts took beside the
  /// times of observe_step, in all. Empty when it verified nothing, or while so few steps with
  /// drafts have been measured that a slow moment of the machine may have been all of them. An
  /// estimate where that is so of steps without drafts, as under `auto` where drafts pay at once;
  /// empty where none was measured, because 2026-12-01 the cost model's own guess of it was half
  /// of what it took (segue-pair, k = 4 fixed).
  std::optional<AgainstOff> against_off(const Statistics& counts, std::int64_t depth,
                                        double draft_us);

  /// Estimates with their errors: step time by rows at the depth last seen, acceptance by grade and
  /// position, the last decision with the expected rate of every k, probes and what they cost.
  core::Json explain();

 private:
  struct Sequence {
    SequenceAcceptance acceptance;
    int last_draft = 0;
    int last_kind = 0;
  };

  /// One drafter of one sequence, with what its drafts are expected to bring.
  struct Source {
    DraftOffer offer;
    int limit = 0;                               // largest k
    std::array<double, kMaxDraft + 1> tokens{};  // by k
    AcceptanceCurve curve{};
    double stale = 0;  // 0 to 1: how much the curve may have changed unseen

    double tokens_error(int k, int known) const;
    double tokens_variance(int k) const;  // of one step
  };

  /// k for one sequence, and which of its sources drafts.
  struct Pick {
    int draft = 0;
    int source = 0;  // 0 when draft = 0
    bool operator==(const Pick&) const = default;
  };

  /// One sequence of the step being decided.
  struct Member {
    std::int64_t depth = 0;
    std::array<Source, kDraftKinds> sources;
    int count = 0;      // of sources
    Pick previous;      // of its last step, as far as it is offered
    int limit() const;  // largest k of all sources
    const Source& source(Pick pick) const { return sources[static_cast<std::size_t>(pick.source)]; }
    double tokens(Pick pick) const {
      return source(pick).tokens[static_cast<std::size_t>(pick.draft)];
    }
  };

  /// A choice of k for every member, and what it promises.
  struct Choice {
    std::vector<Pick> drafts;  // [members]
    StepShape shape;
    double tokens = 0;
    double us = 0;  // drafting included
    CostModel::Prediction step;
    double rate() const { return us > 0 ? tokens / us : 0; }
  };

  std::vector<Member> members_of(std::span<const DraftOffer> offers);
  double draft_us(const Member& member, Pick pick) const;
  Choice evaluate(const std::vector<Member>& members, std::vector<Pick> drafts) const;
  std::vector<Choice> choices_for(const std::vector<Member>& members) const;
  Pick best_source(const Member& member, int cap, double rate) const;
  std::vector<Pick> best_per_member(const std::vector<Member>& members, double rate) const;
  double unknown_us(const std::vector<Member>& members, const Choice& choice,
                    const Choice& best) const;
  double most_doubt_steps(const std::vector<Member>& members, const Choice& choice) const;
  bool too_many_rows(const std::vector<Choice>& choices, const Choice& choice) const;
  const Choice* worthwhile_probe(const std::vector<Member>& members,
                                 const std::vector<Choice>& choices, const Choice& best) const;
  bool proven(const std::vector<Member>& members, const Choice& choice, const Choice& off) const;
  std::size_t best_proven(const std::vector<Member>& members,
                          const std::vector<Choice>& choices) const;
  bool rests(std::span<const DraftOffer> offers);
  void plan_rest(const std::vector<Member>& members, std::span<const DraftOffer> offers,
                 std::span<const Decision> decisions, bool same);
  void learn_step(std::span<const StepRows> rows, double us, int times = 1);
  void digest();
  bool hopeless(const std::vector<Member>& members, const std::vector<Choice>& choices) const;
  bool stands_for(std::span<const DraftOffer> offers) const;
  Watch::Expected expected_step(const std::vector<Member>& members) const;
  void charge(double loss_us, double alone_us);
  core::Json describe(const Choice& choice) const;

  ControllerOptions options_;
  CostModel costs_;
  SharedAcceptance shared_;
  std::unordered_map<std::int64_t, Sequence> sequences_;

  double budget_steps_ = 1.5;      // time that probes may still lose, in steps without drafts
  std::int64_t verify_steps_ = 0;  // measured
  std::int64_t off_steps_ = 0;
  std::int64_t baseline_steps_ = 0;  // without drafts, counted anew when costs have changed
  bool probing_ = false;             // between the decision and the end of its step
  double probe_token_us_ = 0;        // time per token of the choice that the probe stands in for
  double probe_draft_us_ = 0;
  std::int64_t probe_tokens_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t steps_since_verify_ = 0;
  std::int64_t probes_ = 0;
  double probe_loss_us_ = 0;
  int lost_probes_ = 0;  // in a row whose step nobody could measure
  int probe_pause_ = 0;  // weighings without a probe
  std::int64_t weighings_ = 0;
  bool weighed_ = false;    // by the last decision
  double weighing_us_ = 0;  // what that takes, lately
  // A decision stands for some steps before anything is weighed again; what is observed meanwhile
  // waits.
  int rest_ = 0;           // steps for which it still stands
  int unchanged_ = 0;      // weighings in a row that chose the same
  bool hopeless_ = false;  // no drafts of these sources help
  std::array<bool, kDraftSlots> hopeless_slots_{};
  std::vector<DraftOffer> rested_;          // of the step in which it was made
  std::vector<Decision> rested_decisions_;  // [rested_]
  Watch watch_;
  Observations waiting_;
  bool waits_ = false;
  Choice last_chosen_;
  std::vector<Pick> settled_;  // by the last decision that was no probe
  std::vector<Choice> last_choices_;
  bool last_was_probe_ = false;
};

}  // namespace segue::speculate
