// SPDX-License-Identifier: Apache-2.0
// What the controller chooses from: combinations of k and drafter over the sequences of a step,
// each with the tokens and the time that it promises.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "speculate/controller.h"

namespace segue::speculate {
namespace {

// Acceptance that nobody sees is taken to change once in so many tokens.
constexpr double kStaleTokens = 200;

}  // namespace

int Controller::Member::limit() const {
  int most = 0;
  for (int s = 0; s < count; ++s) most = std::max(most, sources[static_cast<std::size_t>(s)].limit);
  return most;
}

/// Offers of one sequence stand next to each other.
std::vector<Controller::Member> Controller::members_of(std::span<const DraftOffer> offers) {
  std::vector<Member> members;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    const DraftOffer& offer = offers[i];
    const Sequence& sequence = sequences_[offer.sequence];
    const bool same = i > 0 && offers[i - 1].sequence == offer.sequence;
    if (!same) {
      members.emplace_back();
      members.back().depth = offer.depth;
    }
    Member& member = members.back();
    CHECK(member.count < kDraftKinds);
    CHECK(0 <= offer.kind && offer.kind < kDraftKinds);
    Source& source = member.sources[static_cast<std::size_t>(member.count)];
    source.offer = offer;
    source.limit = std::clamp(offer.available, 0, options_.max_draft);
    source.curve = sequence.acceptance.curve(offer.source(), shared_, source.limit);
    source.tokens = expected_tokens(source.curve);
    source.stale =
        1 - std::exp(-static_cast<double>(sequence.acceptance.tokens_since_trial(offer.source())) /
                     kStaleTokens);
    if (sequence.last_kind == offer.kind && source.limit > 0 && sequence.last_draft > 0)
      member.previous = {std::min(sequence.last_draft, source.limit), member.count};
    ++member.count;
  }
  return members;
}

/// Errors of the positions from `known` on, carried to the tokens of k drafts.
double Controller::Source::tokens_error(int k, int known) const {
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

double Controller::Source::tokens_variance(int k) const {
  double mean = 0;
  double square = 0;
  for (int i = 1; i <= k; ++i) {
    const double all_right =
        tokens[static_cast<std::size_t>(i)] - tokens[static_cast<std::size_t>(i) - 1];
    mean += all_right;
    square += (2 * i - 1) * all_right;
  }
  return std::max(0.0, square - mean * mean);
}

double Controller::draft_us(const Member& member, Pick pick) const {
  const DraftOffer& offer = member.source(pick).offer;
  if (offer.ready || pick.draft == 0) return 0;
  return costs_.draft_us({offer.kind, pick.draft, offer.depth, offer.behind});
}

Controller::Choice Controller::evaluate(const std::vector<Member>& members,
                                        std::vector<Pick> drafts) const {
  Choice choice;
  for (std::size_t i = 0; i < members.size(); ++i) {
    choice.shape.add({members[i].depth, 1 + drafts[i].draft});
    choice.tokens += members[i].tokens(drafts[i]);
    choice.us += draft_us(members[i], drafts[i]);
  }
  choice.step = costs_.predict(choice.shape);
  choice.us += choice.step.us;
  choice.drafts = std::move(drafts);
  return choice;
}

/// The drafter that gives most for its time at k = `cap` (or as many as it offers) when a token is
/// worth 1 / rate.
Controller::Pick Controller::best_source(const Member& member, int cap, double rate) const {
  Pick best;
  double most = -1;
  for (int s = 0; s < member.count; ++s) {
    const int k = std::min(cap, member.sources[static_cast<std::size_t>(s)].limit);
    const Pick pick{k, k > 0 ? s : 0};
    const double value = member.tokens(pick) - rate * draft_us(member, pick);
    if (k > 0 && (best.draft == 0 || value > most)) {
      best = pick;
      most = value;
    }
  }
  return best;
}

/// For each member the pick that is worth its own time when a token is worth 1 / rate.
std::vector<Controller::Pick> Controller::best_per_member(const std::vector<Member>& members,
                                                          double rate) const {
  std::vector<Pick> drafts(members.size());
  StepShape alone;
  for (const Member& member : members) alone.add({member.depth, 1});
  const double base_us = costs_.step_us(alone);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    const auto depth = static_cast<double>(member.depth);
    double best = 1;
    for (int k = 1; k <= member.limit(); ++k) {
      const Pick pick = best_source(member, k, rate);
      StepShape shape = alone;
      shape.rows += pick.draft;
      shape.verified_depth += depth;
      shape.extra_row_depth += depth * pick.draft;
      const double us = costs_.step_us(shape) - base_us + draft_us(member, pick);
      const double value = member.tokens(pick) - rate * us;
      if (value > best) {
        best = value;
        drafts[i] = pick;
      }
    }
  }
  return drafts;
}

std::vector<Controller::Choice> Controller::choices_for(const std::vector<Member>& members) const {
  int limit = 0;
  std::array<bool, kDraftKinds> kinds{};
  for (const Member& member : members) {
    limit = std::max(limit, member.limit());
    for (int s = 0; s < member.count; ++s) {
      const Source& source = member.sources[static_cast<std::size_t>(s)];
      if (source.limit > 0) kinds[static_cast<std::size_t>(source.offer.kind)] = true;
    }
  }
  std::vector<Choice> choices;
  choices.reserve(static_cast<std::size_t>((kDraftKinds + 2) * limit + 5));
  std::vector<Pick> drafts(members.size());
  choices.push_back(evaluate(members, drafts));
  const double rate = choices[0].rate();
  const auto add_uniform = [&](auto&& pick_for) {
    for (int cap = 1; cap <= limit; ++cap) {
      bool any = false;
      for (std::size_t i = 0; i < members.size(); ++i) {
        drafts[i] = pick_for(members[i], cap);
        any |= drafts[i].draft > 0;
      }
      if (any) choices.push_back(evaluate(members, drafts));
    }
  };
  add_uniform([&](const Member& member, int cap) { return best_source(member, cap, rate); });
  // One kind for all that have it: what is worth trying is not what looks best.
  const bool several = std::count(kinds.begin(), kinds.end(), true) > 1;
  for (int kind = 0; several && kind < kDraftKinds; ++kind) {
    if (!kinds[static_cast<std::size_t>(kind)]) continue;
    add_uniform([&](const Member& member, int cap) {
      for (int s = 0; s < member.count; ++s) {
        const Source& source = member.sources[static_cast<std::size_t>(s)];
        if (source.offer.kind == kind && source.limit > 0)
          return Pick{std::min(cap, source.limit), s};
      }
      return best_source(member, cap, rate);
    });
  }
  if (members.size() > 1 && limit > 0) {
    // Without drafts for what is clearly deeper than the mean: whether depth or rows make a step
    // slow is seen only where the two differ.
    const double mean_depth = choices[0].shape.depth / choices[0].shape.batch;
    const auto deep = [mean_depth](const Member& member) {
      return static_cast<double>(member.depth) > 1.25 * mean_depth;
    };
    if (std::any_of(members.begin(), members.end(),
                    [&](const Member& member) { return deep(member) && member.limit() > 0; })) {
      add_uniform([&](const Member& member, int cap) {
        return deep(member) ? Pick{} : best_source(member, cap, rate);
      });
    }
    double best_rate = 0;
    for (const Choice& choice : choices) best_rate = std::max(best_rate, choice.rate());
    for (int round = 0; round < 3; ++round) {
      Choice own = evaluate(members, best_per_member(members, best_rate));
      own.us *= 1 + options_.rows.own_share;
      best_rate = std::max(best_rate, own.rate());
      choices.push_back(std::move(own));
    }
  }
  return choices;
}

}  // namespace segue::speculate
