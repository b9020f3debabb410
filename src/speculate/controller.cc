// SPDX-License-Identifier: Apache-2.0
#include "speculate/controller.h"

#include <cmath>
#include <utility>

#include "core/check.h"

namespace segue::speculate {
namespace {

// Steps without drafts that are measured before drafts are held to win. The first may be slow:
// memory that nobody has touched before. Taken for the usual, it makes every verify step look
// cheap.
constexpr std::int64_t kFewestOffSteps = 2;
// Drafts that are better by so much need no second measurement.
constexpr double kClearlyBetter = 1.5;
// Probes may lose this share of all time; the budget that it fills holds at most so many steps.
constexpr double kProbeShare = 0.005;
constexpr double kLargestBudgetSteps = 16;
// Of the time that was expected, once it is known: what disturbs a probe is not its fault.
constexpr double kMostCharged = 1.5;
// Nor is anything tried whose time is so uncertain, in steps without drafts: first few rows, then
// more. Where the first drafts were right, more: of one sequence with drafts that are ready, which
// have been judged by then, and on a GPU, where only a jump can be so uncertain. Where those of one
// sequence were wrong, one row at most, until more have been judged.
constexpr double kLargestDoubtSteps = 0.7;
constexpr double kLargestDoubtStepsRight = 1.0;
constexpr double kLargestDoubtStepsWrong = 0.4;
constexpr std::int64_t kStepsToJudge = 8;
// A step that was measured on so few occasions may have been disturbed, with what probability, by
// at least this share of it. In a batch one draft each is tried again for that where so many are
// right: it costs little, and what looks worse than it is would never be seen again.
constexpr double kTokensWorthALook = 1.25;                    // of a sequence
constexpr std::array<double, 4> kDisturbed{0, 0.1, 0.05, 0};  // by occasions
constexpr int kMostDisturbed = 3;
constexpr double kDisturbedShare = 0.3;
// Steps' worth of time that a probe must promise over the horizon.
constexpr double kWorthLearning = 0.25;
// And so many weighings' worth: a trial's own and that of the step after it.
constexpr double kWeighingsOfProbe = 2;
// Trials whose weighing the budget does not pay: so many are needed to know anything.
constexpr std::int64_t kFreeProbes = 6;
// By how much the last weighing counts in the mean of what they take.
constexpr double kNewWeighing = 0.2;
// A kernel's cost is taken to change once in so many steps.
constexpr double kChangeSteps = 2000;
constexpr int kMostWaitingSteps = 128;
// Over so many steps a better choice would pay: as many as there have been, which is all that is
// known of the future.
constexpr double kShortestHorizon = 32;
constexpr double kLongestHorizon = 512;

}  // namespace

Controller::Controller(ControllerOptions options) : options_(options), costs_(options.rows) {
  CHECK(0 <= options.max_draft && options.max_draft <= kMaxDraft);
}

/// How much the time saved by `choice` against `best`, per step, is uncertain in what only trying
/// it would tell.
double Controller::unknown_us(const std::vector<Member>& members, const Choice& choice,
                              const Choice& best) const {
  double unknown_tokens = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    // Drafts that are ready are judged in any case, and so are the first ones of a longer draft.
    const Source& source = members[i].source(choice.drafts[i]);
    if (source.offer.ready) continue;
    const int known = choice.drafts[i].source == best.drafts[i].source ? best.drafts[i].draft : 0;
    unknown_tokens += source.tokens_error(choice.drafts[i].draft, known);
  }
  return std::hypot(costs_.learnable_us(choice.step, best.step), unknown_tokens / best.rate());
}

/// Mean of max(0, x) for x normal with mean -loss.
double expected_gain(double loss, double deviation) {
  if (!(deviation > 0)) return std::max(0.0, -loss);
  const double z = loss / deviation;
  const double density = std::exp(-0.5 * z * z) * 0.3989422804014327;
  return deviation * density - loss * 0.5 * std::erfc(z * 0.7071067811865476);
}

double Controller::most_doubt_steps(const std::vector<Member>& members,
                                    const Choice& choice) const {
  const bool alone = members.size() == 1;
  double right = 0;  // of the first drafts
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Source& source = members[i].source(choice.drafts[i]);
    if (!source.offer.ready) return kLargestDoubtSteps;
    right += source.curve[0].mean / static_cast<double>(members.size());
  }
  if (right > 0.5 && (alone || options_.rows.tiles)) return kLargestDoubtStepsRight;
  return alone && steps_ < kStepsToJudge ? kLargestDoubtStepsWrong : kLargestDoubtSteps;
}

/// In a batch on a CPU a row may cost what a sequence does, and what is found out about many by
/// trying them costs several steps: one draft each first, then at most twice as many rows as have
/// been measured.
bool Controller::too_many_rows(const std::vector<Choice>& choices, const Choice& choice) const {
  if (options_.rows.tiles || choice.drafts.size() == 1 || choice.shape.extra_rows() == 0)
    return false;
  const int measured = costs_.most_rows() - choice.shape.batch;
  return choice.shape.extra_rows() > std::max(choices[1].shape.extra_rows(), 2 * measured);
}

/// The choice that is most worth trying although `best` is expected to be faster: what trying it
/// may bring over the horizon (expected improvement: Mockus 1975) exceeds what it costs, and the
/// budget allows it.
const Controller::Choice* Controller::worthwhile_probe(const std::vector<Member>& members,
                                                       const std::vector<Choice>& choices,
                                                       const Choice& best) const {
  const double horizon = std::clamp(static_cast<double>(steps_), kShortestHorizon, kLongestHorizon);
  const Choice* probe = nullptr;
  double most = 0;
  for (const Choice& choice : choices) {
    if (choice.drafts == best.drafts) continue;
    const double loss_us = choice.us - choice.tokens / best.rate();
    const double doubt_us = CostModel::difference_error_us(choice.step, choices[0].step);
    if (doubt_us > most_doubt_steps(members, choice) * choices[0].us) continue;
    const double spent_us = loss_us + (probes_ < kFreeProbes ? 0 : weighing_us_);
    if (spent_us > 0 && spent_us > budget_steps_ * choices[0].us) continue;
    if (too_many_rows(choices, choice)) continue;
    const double unknown = unknown_us(members, choice, best);
    // Where `best` itself tells more, there is nothing to gain.
    double gain_us =
        unknown < costs_.learnable_us(best.step, choice.step) ? 0 : expected_gain(loss_us, unknown);
    if (members.size() > 1 && &choice == &choices[1] &&
        choice.tokens > kTokensWorthALook * choice.shape.batch) {
      const int times = std::min(costs_.occasions(choice.shape), kMostDisturbed);
      gain_us = std::max(gain_us, kDisturbed[static_cast<std::size_t>(times)] *
                                      (kDisturbedShare * choice.step.us - loss_us));
    }
    if (choice.shape.extra_rows() > 0 && best.shape.extra_rows() == 0) {
      // Has the kernel become cheaper since it was last seen?
      const double draft_us = choice.us - choice.step.us;
      const double cheap_us = costs_.hoped_us(choice.shape) + draft_us;
      const double changed = 1 - std::exp(-static_cast<double>(steps_since_verify_) / kChangeSteps);
      gain_us = std::max(gain_us, changed * (choice.tokens / best.rate() - cheap_us));
    }
    const double worth_us = gain_us * horizon - loss_us;
    const double least_us = kWorthLearning * choice.us + kWeighingsOfProbe * weighing_us_;
    if (gain_us * horizon > least_us && worth_us > most) {
      most = worth_us;
      probe = &choice;
    }
  }
  return probe;
}

/// Better than no drafts by more than what is not known about it, and known well enough.
bool Controller::proven(const std::vector<Member>& members, const Choice& choice,
                        const Choice& off) const {
  if (choice.shape.extra_rows() == 0) return true;
  double tokens = choice.tokens;
  for (std::size_t i = 0; i < members.size(); ++i)
    tokens -= members[i].source(choice.drafts[i]).tokens_error(choice.drafts[i].draft, 0);
  const double error_us = CostModel::difference_error_us(choice.step, off.step);
  if (error_us > kLargestDoubtSteps * off.us) return false;
  return tokens / (choice.us + error_us) > off.rate();
}

std::size_t Controller::best_proven(const std::vector<Member>& members,
                                    const std::vector<Choice>& choices) const {
  std::size_t best = 0;
  for (std::size_t i = 1; i < choices.size(); ++i) {
    if (choices[i].rate() > choices[best].rate() && proven(members, choices[i], choices[0]))
      best = i;
  }
  // The last choice stays unless another is better by more than is known.
  const std::size_t last = choices.size() - 1;
  const double error_us = CostModel::difference_error_us(choices[best].step, choices[last].step);
  const double doubt = std::min(0.02, 0.5 * error_us / choices[best].us);
  const bool stay = choices[best].rate() < choices[last].rate() * (1 + doubt) &&
                    proven(members, choices[last], choices[0]);
  return stay ? last : best;
}

/// Is every choice with drafts slower than none even where it is better by all that is not known?
bool Controller::hopeless(const std::vector<Member>& members,
                          const std::vector<Choice>& choices) const {
  const Choice& off = choices[0];
  return std::ranges::all_of(choices, [&](const Choice& choice) {
    if (choice.shape.extra_rows() == 0) return true;
    double tokens = choice.tokens;
    for (std::size_t i = 0; i < members.size(); ++i)
      tokens += members[i].source(choice.drafts[i]).tokens_error(choice.drafts[i].draft, 0);
    const double error_us = CostModel::difference_error_us(choice.step, off.step);
    return tokens < off.rate() * (choice.us - error_us);
  });
}

void Controller::decide(std::span<const DraftOffer> offers, std::span<Decision> decisions) {
  CHECK(decisions.size() == offers.size());
  // Nobody could measure the step of the last probe: it is not tried again at once, and ever later.
  if (probing_) probe_pause_ = ++lost_probes_;
  probing_ = weighed_ = false;
  probe_tokens_ = 0;
  probe_draft_us_ = 0;
  std::ranges::fill(decisions, Decision{});
  if (offers.empty()) return;
  if (rests(offers)) {
    std::ranges::copy(rested_decisions_, decisions.begin());
    return;
  }
  digest();
  ++weighings_;
  weighed_ = true;
  hopeless_ = false;
  const std::vector<Member> members = members_of(offers);
  Choice chosen;
  bool probe = false;
  if (!costs_.measured()) {
    // The first step of all drafts nothing: it is what all else is compared with, and it judges the
    // drafts that are ready.
    chosen = evaluate(members, std::vector<Pick>(members.size()));
  } else {
    std::vector<Choice> choices = choices_for(members);
    std::vector<Pick> previous;
    previous.reserve(members.size());
    for (const Member& member : members) previous.push_back(member.previous);
    choices.push_back(evaluate(members, std::move(previous)));
    const Choice& best = choices[best_proven(members, choices)];
    const Choice* better = probe_pause_ > 0 ? nullptr : worthwhile_probe(members, choices, best);
    if (probe_pause_ > 0) --probe_pause_;
    if (verify_steps_ > 0 && baseline_steps_ < kFewestOffSteps && best.shape.extra_rows() > 0 &&
        (best.rate() < kClearlyBetter * choices[0].rate() || costs_.first_step_doubtful())) {
      better = &choices[0];
    }
    probe = better != nullptr;
    if (probe) probe_token_us_ = 1 / best.rate();
    chosen = probe ? *better : best;
    hopeless_ = !probe && chosen.shape.extra_rows() == 0 && hopeless(members, choices);
    last_choices_ = std::move(choices);
  }
  probing_ = last_was_probe_ = probe;
  std::size_t offer = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Pick pick = chosen.drafts[i];
    for (int s = 0; s < members[i].count; ++s, ++offer)
      decisions[offer] = {s == pick.source ? pick.draft : 0, probe};
    if (probe) continue;
    const DraftOffer& picked = members[i].source(pick).offer;
    Sequence& sequence = sequences_[picked.sequence];
    sequence.last_draft = pick.draft;
    if (pick.draft > 0) sequence.last_kind = picked.kind;
  }
  // In a batch, where weighing takes longest, a trial between two decisions that are alike has
  // changed nothing.
  const bool same = chosen.drafts == (members.size() > 1 ? settled_ : last_chosen_.drafts);
  last_chosen_ = std::move(chosen);
  if (probe) return;
  settled_ = last_chosen_.drafts;
  plan_rest(members, offers, decisions, same);
}

void Controller::observe_weighing(double us) {
  if (!weighed_ || !(us > 0) || !std::isfinite(us)) return;
  weighed_ = false;
  weighing_us_ += (weighing_us_ > 0 ? kNewWeighing : 1) * (us - weighing_us_);
}

void Controller::observe_draft(std::int64_t sequence, DraftSource source,
                               std::span<const std::int32_t> tokens) {
  if (waits_) {
    if (last_chosen_.shape.extra_rows() == 0 && !tokens.empty())
      watch_.draft(sequence, tokens.front());
    return waiting_.add_draft(sequence, source, tokens);
  }
  sequences_[sequence].acceptance.draft(source, tokens);
}

void Controller::observe_tokens(std::int64_t sequence, std::span<const std::int32_t> tokens) {
  if (waits_) {
    watch_.tokens(sequence, tokens);
    return waiting_.add_tokens(sequence, tokens);
  }
  sequences_[sequence].acceptance.commit(tokens, shared_);
  if (probing_) probe_tokens_ += static_cast<std::int64_t>(tokens.size());
}

void Controller::observe_step(std::span<const StepRows> rows, double us) {
  if (!(us > 0) || !std::isfinite(us) || rows.empty()) return;
  if (!waits_) return learn_step(rows, us);
  watch_.step(us);
  waiting_.add_step(rows, us);
  if (waiting_.steps() > kMostWaitingSteps) digest();  // nobody has decided for long
}

/// `times`: steps like it, of which `us` is the median.
void Controller::learn_step(std::span<const StepRows> rows, double us, int times) {
  const StepShape shape = shape_of(rows);
  const bool verify = shape.extra_rows() > 0;
  const std::int64_t changes = costs_.changes();
  costs_.observe_step(shape, us, times);
  steps_ += times;
  steps_since_verify_ = verify ? 0 : steps_since_verify_ + times;
  (verify ? verify_steps_ : off_steps_) += times;
  if (!verify) {
    baseline_steps_ += times;
  } else if (costs_.changes() != changes) {
    // Nothing tells what a step without drafts takes now.
    baseline_steps_ = std::min(baseline_steps_, kFewestOffSteps - 1);
  }
  const double alone_us =
      costs_.step_us({.batch = shape.batch, .rows = shape.batch, .depth = shape.depth});
  budget_steps_ =
      std::min(budget_steps_ + times * kProbeShare * us / alone_us, kLargestBudgetSteps);
  if (probing_) {
    const double weighing_us = probes_++ < kFreeProbes ? 0 : weighing_us_;
    lost_probes_ = 0;
    charge(std::min(us, kMostCharged * costs_.step_us(shape)) + probe_draft_us_ + weighing_us -
               static_cast<double>(probe_tokens_) * probe_token_us_,
           alone_us);
  }
  probing_ = false;
}

/// A probe loses the time that it took, less the time in which its tokens would have come anyway.
void Controller::charge(double loss_us, double alone_us) {
  budget_steps_ -= loss_us / alone_us;
  probe_loss_us_ += loss_us;
}

void Controller::observe_draft_time(const DraftWork& work, double us) {
  if (waits_) return waiting_.add_draft_time(work, us);
  costs_.observe_draft(work, us);
  if (probing_ && us > 0) probe_draft_us_ += us;
}

void Controller::forget(std::int64_t sequence) {
  digest();
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  shared_.archive(found->second.acceptance.counts());
  sequences_.erase(found);
}

}  // namespace segue::speculate
