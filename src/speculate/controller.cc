// SPDX-License-Identifier: Apache-2.0
#include "speculate/controller.h"

#include <cmath>
#include <utility>

#include "core/check.h"

namespace segue::speculate {
namespace {

constexpr double kProbeShare = 0.006;      // of all time may be lost to probes
constexpr double kLargestBudgetSteps = 16;
constexpr double kWorthLearning = 0.02;    // a probe must promise a rate higher by this share
constexpr double kChangeSteps = 2000;      // a kernel's cost is taken to change once in so many steps
constexpr double kHorizonSteps = 256;      // over which a better choice would pay
constexpr double kStaleTokens = 200;       // acceptance that is not observed is taken to change within so many

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
        1 - std::exp(-static_cast<double>(sequence.acceptance.tokens_since_trial(grade)) / kStaleTokens);
  }
  return members;
}

double Controller::Member::hoped_tokens(int k, int known) const {
  if (offer.ready) known = k;   // judged in any case
  double sum = 1;
  double product = 1;
  for (int i = 0; i < k; ++i) {
    const AcceptanceEstimate& p = curve[static_cast<std::size_t>(i)];
    product *= i < known ? p.mean : std::min(1.0, p.mean + p.error + 0.5 * stale * (1 - p.mean));
    sum += product;
  }
  return sum;
}

Controller::Choice Controller::evaluate(const std::vector<Member>& members, std::vector<int> drafts) const {
  Choice choice;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto k = static_cast<std::size_t>(drafts[i]);
    const DraftOffer& offer = members[i].offer;
    choice.shape.add({offer.depth, 1 + drafts[i]});
    choice.tokens += members[i].tokens[k];
    if (!offer.ready) choice.us += costs_.draft(drafts[i], offer.depth).us;
  }
  choice.us += costs_.step(choice.shape).us;
  choice.drafts = std::move(drafts);
  return choice;
}

/// For each member the k that is worth its own time when a token is worth 1 / rate.
std::vector<int> Controller::best_per_member(const std::vector<Member>& members, double rate) const {
  std::vector<int> drafts(members.size(), 0);
  StepShape alone;
  for (const Member& member : members) alone.add({member.offer.depth, 1});
  const double base_us = costs_.step(alone).us;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    double best = member.tokens[0];
    for (int k = 1; k <= member.limit; ++k) {
      StepShape shape = alone;
      shape.rows += k;
      shape.verified_depth += static_cast<double>(member.offer.depth);
      shape.extra_row_depth += static_cast<double>(member.offer.depth) * k;
      double us = costs_.step(shape).us - base_us;
      if (!member.offer.ready) us += costs_.draft(k, member.offer.depth).us;
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

/// The rate of `choice` if all that only it could tell turned out well by one standard deviation.
double Controller::hoped_rate(const std::vector<Member>& members, const Choice& choice, const Choice& best) const {
  double tokens = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    tokens += members[i].hoped_tokens(choice.drafts[i], best.drafts[i]);
  }
  const double error_us = costs_.difference(choice.shape, best.shape).error_us;
  return tokens / std::max(choice.us - error_us, 0.3 * choice.us);
}

const Controller::Choice* Controller::worthwhile_probe(const std::vector<Member>& members,
                                                       const std::vector<Choice>& choices, const Choice& best) const {
  const Choice* probe = nullptr;
  double promise = best.rate() * (1 + kWorthLearning);
  const double alone_us = choices[0].us;
  for (const Choice& choice : choices) {
    if (choice.drafts == best.drafts) continue;
    const double loss_us = choice.us - choice.tokens / best.rate();
    if (loss_us > budget_steps_ * alone_us) continue;
    double rate = hoped_rate(members, choice, best);
    if (choice.shape.extra_rows() > 0 && best.shape.extra_rows() == 0) {
      // Has the kernel become cheaper since it was last seen?
      const double draft_us = choice.us - costs_.step(choice.shape).us;
      const double cheap_rate = choice.tokens / (costs_.hoped_us(choice.shape) + draft_us);
      const double gain_us = best.us * (cheap_rate / best.rate() - 1);
      const double changed = 1 - std::exp(-static_cast<double>(steps_since_verify_) / kChangeSteps);
      if (changed * gain_us * kHorizonSteps > loss_us) rate = std::max(rate, cheap_rate);
    }
    if (rate > promise) {
      promise = rate;
      probe = &choice;
    }
  }
  return probe;
}

void Controller::decide(std::span<const DraftOffer> offers, std::span<Decision> decisions) {
  CHECK(decisions.size() == offers.size());
  probing_ = false;
  if (offers.empty()) return;
  const std::vector<Member> members = members_of(offers);
  Choice chosen;
  if (!costs_.measured()) {
    // The first step of all measures what everything is compared with.
    chosen = evaluate(members, std::vector<int>(members.size(), 0));
  } else {
    std::vector<Choice> choices = choices_for(members);
    std::size_t best = 0;
    for (std::size_t i = 1; i < choices.size(); ++i) {
      if (choices[i].rate() > choices[best].rate()) best = i;
    }
    // Stay with the last choice unless the better one is better by more than is known.
    std::vector<int> previous;
    for (const Member& member : members) previous.push_back(member.previous);
    choices.push_back(evaluate(members, std::move(previous)));
    const double error_us = costs_.difference(choices[best].shape, choices.back().shape).error_us;
    const double doubt = std::min(0.02, 0.5 * error_us / choices[best].us);
    if (choices[best].rate() < choices.back().rate() * (1 + doubt)) best = choices.size() - 1;
    const Choice* probe = worthwhile_probe(members, choices, choices[best]);
    probing_ = probe != nullptr;
    if (probe != nullptr) decided_value_us_ = probe->tokens / choices[best].rate();
    chosen = probe != nullptr ? *probe : choices[best];
  }
  for (std::size_t i = 0; i < offers.size(); ++i) {
    decisions[i] = {chosen.drafts[i], probing_};
    if (!probing_) sequences_[offers[i].sequence].last_draft = chosen.drafts[i];
  }
}

void Controller::observe_draft(std::int64_t sequence, int grade, std::span<const std::int32_t> tokens) {
  sequences_[sequence].acceptance.draft(grade, tokens);
}

void Controller::observe_tokens(std::int64_t sequence, std::span<const std::int32_t> tokens) {
  sequences_[sequence].acceptance.commit(tokens, shared_);
}

void Controller::observe_step(std::span<const StepRows> rows, double us) {
  if (!(us > 0) || !std::isfinite(us)) return;
  const StepShape shape = shape_of(rows);
  costs_.observe_step(shape, us);
  ++steps_;
  steps_since_verify_ = shape.extra_rows() > 0 ? 0 : steps_since_verify_ + 1;
  total_us_ += us;
  const double alone_us = costs_.step({.batch = shape.batch, .rows = shape.batch, .depth = shape.depth}).us;
  budget_steps_ = std::min(budget_steps_ + kProbeShare * us / alone_us, kLargestBudgetSteps);
  if (probing_) {
    const double loss_us = std::max(0.0, us - decided_value_us_);
    budget_steps_ -= loss_us / alone_us;
    probe_loss_us_ += loss_us;
    ++probes_;
    probing_ = false;
  }
}

void Controller::observe_draft_time(int tokens, std::int64_t depth, double us) {
  costs_.observe_draft(tokens, depth, us);
}

void Controller::forget(std::int64_t sequence) { sequences_.erase(sequence); }

std::optional<double> Controller::break_even_acceptance(int k, std::int64_t depth, int batch) const {
  CHECK(1 <= k && k <= kMaxDraft && batch >= 1);
  if (!costs_.measured()) return std::nullopt;
  StepShape verify;
  StepShape one_row;
  for (int i = 0; i < batch; ++i) {
    verify.add({depth, 1 + k});
    one_row.add({depth, 1});
  }
  const double ratio =
      (costs_.step(verify).us + batch * costs_.draft(k, depth).us) / costs_.step(one_row).us;
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

core::Json Controller::explain() const { return core::Json::object(); }

}  // namespace segue::speculate
