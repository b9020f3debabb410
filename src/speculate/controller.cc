// SPDX-License-Identifier: Apache-2.0
#include "speculate/controller.h"

#include <cmath>
#include <utility>

#include "core/check.h"

namespace segue::speculate {
namespace {

// Probes may lose this share of all time; the budget that it fills holds at most so many steps.
constexpr double kProbeShare = 0.005;
constexpr double kLargestBudgetSteps = 16;
// Before a step without drafts is measured, a verify step is taken to last at most so many times as
// long as one; above so many rows, where arithmetic may be the limit, in proportion to the rows.
constexpr double kLargestCollapse = 3.0;
constexpr double kFreeRows = 16.0;
// Share of all time that may go into measuring a step without drafts when drafts clearly win.
constexpr double kBaselineShare = 0.02;
// Steps' worth of time that a probe must promise over the horizon.
constexpr double kWorthLearning = 0.25;
// A kernel's cost is taken to change once in so many steps, acceptance that nobody sees once in so
// many tokens.
constexpr double kChangeSteps = 2000;
constexpr double kStaleTokens = 200;
// Over so many steps a better choice would pay: as many as there have been, which is all that is
// known of the future.
constexpr double kShortestHorizon = 32;
constexpr double kLongestHorizon = 512;
constexpr std::size_t kShown = 16;  // sequences in explain()

}  // namespace

Controller::Controller(ControllerOptions options) : options_(options) {
  CHECK(0 <= options.max_draft && options.max_draft <= kMaxDraft);
}

std::vector<Controller::Member> Controller::members_of(std::span<const DraftOffer> offers) {
  std::vector<Member> members(offers.size());
  for (std::size_t i = 0; i < offers.size(); ++i) {
    Member& member = members[i];
    member.offer = offers[i];
    member.limit = std::clamp(offers[i].available, 0, options_.max_draft);
    const Sequence& sequence = sequences_[offers[i].sequence];
    member.previous = std::min(sequence.last_draft, member.limit);
    const int grade = std::clamp(offers[i].grade, 0, kDraftGrades - 1);
    member.curve = sequence.acceptance.curve(grade, shared_);
    member.tokens = expected_tokens(member.curve);
    member.stale =
        1 - std::exp(-static_cast<double>(sequence.acceptance.tokens_since_trial(grade)) /
                     kStaleTokens);
  }
  return members;
}

/// Errors of the positions from `known` on, carried to the tokens of k drafts.
double Controller::Member::tokens_error(int k, int known) const {
  double variance = 0;
  for (int i = known; i < k; ++i) {
    const AcceptanceEstimate& p = curve[static_cast<std::size_t>(i)];
    const double change =
        (tokens[static_cast<std::size_t>(k)] - tokens[static_cast<std::size_t>(i)]) / p.mean;
    const double error = p.error + 0.5 * stale * (1 - p.mean);
    variance += change * change * error * error;
  }
  return std::sqrt(variance);
}

Controller::Choice Controller::evaluate(const std::vector<Member>& members,
                                        std::vector<int> drafts) const {
  Choice choice;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto k = static_cast<std::size_t>(drafts[i]);
    const DraftOffer& offer = members[i].offer;
    choice.shape.add({offer.depth, 1 + drafts[i]});
    choice.tokens += members[i].tokens[k];
    if (!offer.ready) choice.us += costs_.draft_us(drafts[i], offer.depth);
  }
  choice.step = costs_.predict(choice.shape);
  choice.us += choice.step.us;
  choice.drafts = std::move(drafts);
  return choice;
}

/// For each member the k that is worth its own time when a token is worth 1 / rate.
std::vector<int> Controller::best_per_member(const std::vector<Member>& members,
                                             double rate) const {
  std::vector<int> drafts(members.size(), 0);
  StepShape alone;
  for (const Member& member : members) alone.add({member.offer.depth, 1});
  const double base_us = costs_.step_us(alone);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    double best = member.tokens[0];
    for (int k = 1; k <= member.limit; ++k) {
      StepShape shape = alone;
      shape.rows += k;
      shape.verified_depth += static_cast<double>(member.offer.depth);
      shape.extra_row_depth += static_cast<double>(member.offer.depth) * k;
      double us = costs_.step_us(shape) - base_us;
      if (!member.offer.ready) us += costs_.draft_us(k, member.offer.depth);
      const double value = member.tokens[static_cast<std::size_t>(k)] - rate * us;
      if (value > best) {
        best = value;
        drafts[i] = k;
      }
    }
  }
  return drafts;
}

std::vector<Controller::Choice> Controller::choices_for(const std::vector<Member>& members) const {
  int limit = 0;
  for (const Member& member : members) limit = std::max(limit, member.limit);
  std::vector<Choice> choices;
  std::vector<int> drafts(members.size());
  for (int cap = 0; cap <= limit; ++cap) {
    for (std::size_t i = 0; i < members.size(); ++i) drafts[i] = std::min(cap, members[i].limit);
    choices.push_back(evaluate(members, drafts));
  }
  // Without drafts for what is clearly deeper than the mean: whether depth or rows make a step slow
  // is seen only where the two differ.
  const double mean_depth = choices[0].shape.depth / choices[0].shape.batch;
  for (int cap = 1; cap <= limit && members.size() > 1; ++cap) {
    bool differs = false;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const bool deep = static_cast<double>(members[i].offer.depth) > 1.25 * mean_depth;
      drafts[i] = deep ? 0 : std::min(cap, members[i].limit);
      differs |= deep && members[i].limit > 0;
    }
    if (differs) choices.push_back(evaluate(members, drafts));
  }
  if (members.size() > 1 && limit > 0) {
    double rate = 0;
    for (const Choice& choice : choices) rate = std::max(rate, choice.rate());
    for (int round = 0; round < 3; ++round) {
      choices.push_back(evaluate(members, best_per_member(members, rate)));
      rate = std::max(rate, choices.back().rate());
    }
  }
  return choices;
}

/// How much the time saved by `choice` against `best`, per step, is uncertain in what only trying
/// it would tell.
double Controller::unknown_us(const std::vector<Member>& members, const Choice& choice,
                              const Choice& best) const {
  double unknown_tokens = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    // Drafts that are ready are judged in any case, and so are the first ones of a longer draft.
    if (!members[i].offer.ready)
      unknown_tokens += members[i].tokens_error(choice.drafts[i], best.drafts[i]);
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

/// The choice that is most worth trying although `best` is expected to be faster: what trying it
/// may bring over the horizon (expected improvement: Mockus 1975) exceeds what it costs, and the
/// budget allows it.
const Controller::Choice* Controller::worthwhile_probe(const std::vector<Member>& members,
                                                       const std::vector<Choice>& choices,
                                                       const Choice& best) const {
  if (!baseline_measured_) {
    if (best.shape.extra_rows() == 0) return nullptr;  // nothing else is worth knowing before that
    if (choices[0].us < kBaselineShare * total_us_) return &choices[0];
  }
  const double horizon = std::clamp(static_cast<double>(steps_), kShortestHorizon, kLongestHorizon);
  const Choice* probe = nullptr;
  double most = 0;
  for (const Choice& choice : choices) {
    if (choice.drafts == best.drafts || (!baseline_measured_ && choice.shape.extra_rows() == 0))
      continue;
    const double loss_us = choice.us - choice.tokens / best.rate();
    if (std::max(loss_us, 0.0) > budget_steps_ * choices[0].us) continue;
    const double unknown = unknown_us(members, choice, best);
    if (unknown < costs_.learnable_us(best.step, choice.step))
      continue;  // `best` itself tells more
    double gain_us = expected_gain(loss_us, unknown);
    if (choice.shape.extra_rows() > 0 && best.shape.extra_rows() == 0) {
      // Has the kernel become cheaper since it was last seen?
      const double draft_us = choice.us - choice.step.us;
      const double cheap_us = costs_.hoped_us(choice.shape) + draft_us;
      const double changed = 1 - std::exp(-static_cast<double>(steps_since_verify_) / kChangeSteps);
      gain_us = std::max(gain_us, changed * (choice.tokens / best.rate() - cheap_us));
    }
    const double worth_us = gain_us * horizon - loss_us;
    if (gain_us * horizon > kWorthLearning * choice.us && worth_us > most) {
      most = worth_us;
      probe = &choice;
    }
  }
  return probe;
}

/// Better than no drafts by more than what is not known about it.
bool Controller::proven(const std::vector<Member>& members, const Choice& choice,
                        const Choice& off) const {
  if (choice.shape.extra_rows() == 0) return true;
  // Before a step without drafts was measured: do drafts win however expensive they are?
  if (!baseline_measured_) {
    const double crowd = std::max(1.0, choice.shape.rows / kFreeRows);
    return choice.tokens > kLargestCollapse * crowd * off.tokens;
  }
  double tokens = choice.tokens;
  for (std::size_t i = 0; i < members.size(); ++i)
    tokens -= members[i].tokens_error(choice.drafts[i], 0);
  const double error_us = CostModel::difference_error_us(choice.step, off.step);
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

void Controller::decide(std::span<const DraftOffer> offers, std::span<Decision> decisions) {
  CHECK(decisions.size() == offers.size());
  probing_ = false;
  probe_tokens_ = 0;
  probe_draft_us_ = 0;
  if (offers.empty()) return;
  const std::vector<Member> members = members_of(offers);
  Choice chosen;
  bool probe = false;
  if (!costs_.measured()) {
    // The first step of all: one step with many drafts tells most, about costs and about
    // acceptance.
    std::vector<int> drafts;
    drafts.reserve(members.size());
    const int cap = std::max(1, options_.max_draft / static_cast<int>(members.size()));
    for (const Member& member : members) drafts.push_back(std::min(cap, member.limit));
    chosen = evaluate(members, std::move(drafts));
    probe = chosen.shape.extra_rows() > 0;
  } else {
    std::vector<Choice> choices = choices_for(members);
    std::vector<int> previous;
    previous.reserve(members.size());
    for (const Member& member : members) previous.push_back(member.previous);
    choices.push_back(evaluate(members, std::move(previous)));
    const Choice& best = choices[best_proven(members, choices)];
    const Choice* better = worthwhile_probe(members, choices, best);
    probe = better != nullptr;
    if (probe) probe_token_us_ = 1 / best.rate();
    chosen = probe ? *better : best;
    last_choices_ = std::move(choices);
  }
  probing_ = last_was_probe_ = probe;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    decisions[i] = {chosen.drafts[i], probe};
    if (!probe) sequences_[offers[i].sequence].last_draft = chosen.drafts[i];
  }
  last_chosen_ = std::move(chosen);
}

void Controller::observe_draft(std::int64_t sequence, int grade,
                               std::span<const std::int32_t> tokens) {
  sequences_[sequence].acceptance.draft(grade, tokens);
}

void Controller::observe_tokens(std::int64_t sequence, std::span<const std::int32_t> tokens) {
  sequences_[sequence].acceptance.commit(tokens, shared_);
  if (probing_) probe_tokens_ += static_cast<std::int64_t>(tokens.size());
}

void Controller::observe_step(std::span<const StepRows> rows, double us) {
  if (!(us > 0) || !std::isfinite(us) || rows.empty()) return;
  const StepShape shape = shape_of(rows);
  const bool verify = shape.extra_rows() > 0;
  const std::int64_t changes = costs_.changes();
  costs_.observe_step(shape, us);
  ++steps_;
  total_us_ += us;
  steps_since_verify_ = verify ? 0 : steps_since_verify_ + 1;
  // After a change of verify steps alone nothing tells what a step without drafts takes now.
  if (!verify) baseline_measured_ = true;
  if (verify && costs_.changes() != changes) baseline_measured_ = false;
  const double alone_us =
      costs_.step_us({.batch = shape.batch, .rows = shape.batch, .depth = shape.depth});
  budget_steps_ = std::min(budget_steps_ + kProbeShare * us / alone_us, kLargestBudgetSteps);
  if (probing_) {
    ++probes_;
    const auto tokens = static_cast<double>(probe_tokens_);
    if (probe_token_us_ > 0) {
      charge(us + probe_draft_us_ - tokens * probe_token_us_, alone_us);
    } else {
      first_us_ = us + probe_draft_us_;  // what its tokens were worth is known with the first step
                                         // without drafts
      first_tokens_ = tokens / shape.batch;
    }
  }
  if (!verify && first_us_ > 0) {
    charge(first_us_ - first_tokens_ * alone_us, alone_us);
    first_us_ = 0;
  }
  probing_ = false;
}

/// A probe loses the time that it took, less the time in which its tokens would have come anyway.
void Controller::charge(double loss_us, double alone_us) {
  budget_steps_ -= loss_us / alone_us;
  probe_loss_us_ += loss_us;
}

void Controller::observe_draft_time(int tokens, std::int64_t depth, double us) {
  costs_.observe_draft(tokens, depth, us);
  if (probing_ && us > 0) probe_draft_us_ += us;
}

void Controller::forget(std::int64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  shared_.archive(found->second.acceptance.counts());
  sequences_.erase(found);
}

std::optional<double> Controller::break_even_acceptance(int k, std::int64_t depth,
                                                        int batch) const {
  CHECK(1 <= k && k <= kMaxDraft && batch >= 1);
  if (!costs_.measured()) return std::nullopt;
  StepShape verify;
  StepShape one_row;
  for (int i = 0; i < batch; ++i) {
    verify.add({depth, 1 + k});
    one_row.add({depth, 1});
  }
  const double ratio =
      (costs_.step_us(verify) + batch * costs_.draft_us(k, depth)) / costs_.step_us(one_row);
  const auto tokens = [k](double p) {
    double sum = 1, product = 1;
    for (int i = 0; i < k; ++i) sum += product *= p;
    return sum;
  };
  if (!(tokens(1.0) >= ratio)) return std::nullopt;
  double low = 0, high = 1;
  for (int i = 0; i < 50; ++i) {
    const double middle = 0.5 * (low + high);
    (tokens(middle) < ratio ? low : high) = middle;
  }
  return high;
}

core::Json Controller::describe(const Choice& choice) const {
  core::Json json = core::Json::object();
  const auto end =
      choice.drafts.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, choice.drafts.size()));
  json.set("k", std::vector<int>(choice.drafts.begin(), end));
  json.set("expected_tokens", choice.tokens);
  json.set("expected_us", choice.us);
  json.set("error_us", choice.step.error_us());
  json.set("tokens_per_s", 1e6 * choice.rate());
  return json;
}

core::Json Controller::explain() const {
  core::Json json = core::Json::object();
  json.set("steps", steps_);
  json.set("measured", costs_.measured());
  json.set("step_noise", costs_.noise());
  json.set("rejected_times", costs_.rejected());
  json.set("probes", probes_);
  json.set("probe_loss_s", probe_loss_us_ * 1e-6);
  json.set("probe_budget_steps", budget_steps_);
  const StepShape& last = last_chosen_.shape;
  const std::int64_t depth =
      last.batch > 0 ? static_cast<std::int64_t>(last.depth / last.batch) : 0;
  json.set("depth", depth);
  core::Json costs = core::Json::array();
  for (int k = 0; costs_.measured() && k <= options_.max_draft; ++k) {
    StepShape shape;
    shape.add({depth, 1 + k});
    const CostModel::Prediction step = costs_.predict(shape);
    core::Json cost = core::Json::object();
    cost.set("k", k);
    cost.set("step_us", step.us);
    cost.set("error_us", step.error_us());
    cost.set("draft_us", costs_.draft_us(k, depth));
    const auto even = k > 0 ? break_even_acceptance(k, depth) : std::nullopt;
    cost.set("break_even_acceptance", even ? core::Json(*even) : core::Json());
    costs.push(std::move(cost));
  }
  json.set("costs", std::move(costs));
  core::Json acceptance = core::Json::array();
  for (int grade = 0; grade < kDraftGrades; ++grade) {
    std::vector<double> mean;
    std::vector<double> error;
    for (const AcceptanceEstimate& p : SequenceAcceptance().curve(grade, shared_)) {
      if (mean.size() == static_cast<std::size_t>(options_.max_draft)) break;
      mean.push_back(p.mean);
      error.push_back(p.error);
    }
    core::Json estimate = core::Json::object();
    estimate.set("grade", grade);
    estimate.set("mean_per_position", mean);
    estimate.set("error_per_position", error);
    acceptance.push(std::move(estimate));
  }
  json.set("acceptance", std::move(acceptance));
  core::Json decision = core::Json::object();
  decision.set("probe", last_was_probe_);
  decision.set("chosen", describe(last_chosen_));
  core::Json choices = core::Json::array();
  for (const Choice& choice : last_choices_) choices.push(describe(choice));
  decision.set("choices", std::move(choices));
  json.set("last_decision", std::move(decision));
  return json;
}

}  // namespace segue::speculate
