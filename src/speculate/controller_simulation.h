// SPDX-License-Identifier: Apache-2.0
// A simulated engine for the controller's tests: published or invented step costs, synthetic
// acceptance, noisy clocks. Acceptance is a function of (seed, position), so runs with different k
// meet the same drafts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "speculate/controller.h"

namespace segue::speculate::simulation {

/// Milliseconds of the target's step at `depth` with `rows` rows of one sequence.
using StepCost = std::function<double(int rows, double depth, std::int64_t token)>;
/// Probability that draft position j is right (those before it are), at `depth`, after `token`
/// generated tokens.
using Acceptance = std::function<double(int j, double depth, std::int64_t token)>;

inline double interpolate(const std::vector<std::pair<double, double>>& points, double x) {
  std::size_t i = 1;
  while (i + 1 < points.size() && x > points[i].first) ++i;
  const auto [x0, y0] = points[i - 1];
  const auto [x1, y1] = points[i];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

// The ladder published for gemma-4-31B with its MTP assistant, k = 1, on two Radeon 7900 XT
// (bench/cases): rates without speculation and with it on the whole-sequence path; acceptance
// lengths at both ends.
inline double published_off_ms(double depth) {
  static const std::vector<std::pair<double, double>> points{
      {1024, 1000 / 43.42}, {8192, 1000 / 37.97}, {16384, 1000 / 35.28}, {32768, 1000 / 30.31}};
  return interpolate(points, depth);
}
inline double published_acceptance_length(double depth) {
  return interpolate({{1024, 1.46}, {32768, 1.12}}, depth);
}
inline double published_stock_ms_per_token(double depth) {
  static const std::vector<std::pair<double, double>> points{
      {1024, 1000 / 59.43}, {8192, 1000 / 32.64}, {16384, 1000 / 23.86}, {32768, 1000 / 8.85}};
  return interpolate(points, depth);
}

/// Draft time included; rows beyond the second cost `kRowShare` of a decode step each.
inline constexpr double kRowShare = 0.01;
inline double stock_cost(int rows, double depth, std::int64_t) {
  if (rows == 1) return published_off_ms(depth);
  return published_stock_ms_per_token(depth) * published_acceptance_length(depth) +
         kRowShare * (rows - 2) * published_off_ms(depth);
}
inline double segmented_cost(int rows, double depth, std::int64_t) {
  if (rows == 1) return published_off_ms(depth);
  const double second = interpolate({{1024, 1.46 / 59.43}, {32768, 1.12 / 32.42}}, depth) * 1000;
  return second + kRowShare * (rows - 2) * published_off_ms(depth);
}

struct Settings {
  double depth = 1024;  // at the first generated token
  std::int64_t tokens = 256;
  double noise = 0.05;        // relative standard deviation of a measured step
  double spikes = 0.0;        // share of steps that are measured too long
  double spike = 5.0;         // so many times
  double first = 0;           // decode steps that a first step with drafts takes longer: new memory
  bool ready = true;          // drafts exist before the decision and cost nothing; otherwise:
  double draft_share = 0.03;  // of a decode step, per drafted token
  std::uint64_t seed = 1;
  int max_draft = 8;
  int fixed = -1;  // k of every step instead of a controller
};

struct Outcome {
  double ms = 0;
  std::int64_t tokens = 0;
  int steps = 0;
  int switches = 0;  // changes of k between steps that were not probes
  int probes = 0;
  std::int64_t drafted_tokens = 0;  // of steps with drafts
  std::vector<int> drafts;          // [steps]
  double rate() const { return static_cast<double>(tokens) / ms; }
};

inline double uniform(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  std::uint64_t z =
      seed * 0x9e3779b97f4a7c15ull + a * 0xd1342543de82ef95ull + b * 0x2545f4914f6cdd1dull;
  for (int i = 0; i < 2; ++i) z = (z ^ (z >> 31)) * 0xbf58476d1ce4e5b9ull;
  return static_cast<double>((z ^ (z >> 30)) >> 11) * 0x1p-53;
}

/// Bell-shaped, mean 0, standard deviation 1.
inline double bell(std::uint64_t seed, std::uint64_t step) {
  double sum = -6;
  for (std::uint64_t i = 0; i < 12; ++i) sum += uniform(seed ^ 0x5bd1e995u, step, 100 + i);
  return sum;
}

/// One sequence alone, `controller` untouched when settings.fixed >= 0.
inline Outcome run(Controller& controller, std::int64_t sequence, const StepCost& cost,
                   const Acceptance& acceptance, const Settings& s) {
  Outcome out;
  int last = -1;
  while (out.tokens < s.tokens) {
    const double depth = s.depth + static_cast<double>(out.tokens);
    const auto keys = static_cast<std::int64_t>(depth);
    // Token n of the sequence is n; a wrong draft is -1.
    std::vector<std::int32_t> drafts;
    for (int j = 0; j < s.max_draft; ++j) {
      const bool right = uniform(s.seed, static_cast<std::uint64_t>(out.tokens),
                                 static_cast<std::uint64_t>(j)) < acceptance(j, depth, out.tokens);
      drafts.push_back(right ? static_cast<std::int32_t>(out.tokens) + j : -1);
    }
    Decision decision{std::max(0, s.fixed), false};
    if (s.fixed < 0) {
      if (s.ready) controller.observe_draft(sequence, {}, drafts);
      const DraftOffer offer{
          .sequence = sequence, .depth = keys, .available = s.max_draft, .ready = s.ready};
      controller.decide({&offer, 1}, {&decision, 1});
    }
    const int k = decision.draft;
    double draft_ms = s.ready ? 0 : s.draft_share * k * cost(1, depth, out.tokens);
    double ms = cost(1 + k, depth, out.tokens);
    if (s.fixed < 0) {
      ms *= 1 + s.noise * bell(s.seed, static_cast<std::uint64_t>(out.steps));
      draft_ms *= 1 + s.noise * bell(s.seed + 77, static_cast<std::uint64_t>(out.steps));
    }
    if (k > 0 && out.drafted_tokens == 0) ms += s.first * cost(1, depth, out.tokens);
    double measured = ms;
    if (uniform(s.seed, static_cast<std::uint64_t>(out.steps), 999) < s.spikes) measured *= s.spike;
    int accepted = 0;
    while (accepted < k && drafts[static_cast<std::size_t>(accepted)] >= 0) ++accepted;
    if (s.fixed < 0) {
      if (!s.ready && k > 0) {
        controller.observe_draft(sequence, {},
                                 std::span(drafts).first(static_cast<std::size_t>(k)));
        controller.observe_draft_time({.tokens = k, .depth = keys}, draft_ms * 1000);
      }
      std::vector<std::int32_t> committed;
      for (int i = 0; i <= accepted; ++i)
        committed.push_back(static_cast<std::int32_t>(out.tokens) + i);
      controller.observe_tokens(sequence, committed);
      const StepRows rows{keys, 1 + k};
      controller.observe_step({&rows, 1}, measured * 1000);
    }
    out.ms += ms + draft_ms;
    out.tokens += accepted + 1;
    if (k > 0) out.drafted_tokens += accepted + 1;
    ++out.steps;
    out.drafts.push_back(k);
    if (decision.probe) {
      ++out.probes;
    } else {
      if (last >= 0 && k != last) ++out.switches;
      last = k;
    }
  }
  return out;
}

/// One sequence of a batch; `acceptance` at every position.
struct Member {
  double depth = 1024;
  double acceptance = 0.5;
};

struct BatchOutcome {
  double ms = 0;
  double tokens = 0;
  std::vector<double> mean_draft;  // [members] over the second half of the steps
};

/// `cost` is of the whole step, in milliseconds. Ready drafts. `fixed` >= 0: that k for all.
inline BatchOutcome run_batch(Controller& controller, const std::vector<Member>& members,
                              const std::function<double(const std::vector<StepRows>&)>& cost,
                              int steps, std::uint64_t seed, int fixed = -1) {
  BatchOutcome out;
  out.mean_draft.assign(members.size(), 0.0);
  std::vector<std::int64_t> tokens(members.size(), 0);
  for (int step = 0; step < steps; ++step) {
    std::vector<DraftOffer> offers;
    std::vector<std::vector<std::int32_t>> drafts(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      for (int j = 0; j < 8; ++j) {
        const bool right = uniform(seed + i, static_cast<std::uint64_t>(tokens[i]),
                                   static_cast<std::uint64_t>(j)) < members[i].acceptance;
        drafts[i].push_back(right ? static_cast<std::int32_t>(tokens[i]) + j : -1);
      }
      const auto id = static_cast<std::int64_t>(i);
      offers.push_back({.sequence = id,
                        .depth = static_cast<std::int64_t>(members[i].depth) + tokens[i],
                        .available = 8});
      if (fixed < 0) controller.observe_draft(id, {}, drafts[i]);
    }
    std::vector<Decision> decisions(members.size(), Decision{std::max(0, fixed), false});
    if (fixed < 0) controller.decide(offers, decisions);
    std::vector<StepRows> rows;
    for (std::size_t i = 0; i < members.size(); ++i)
      rows.push_back({offers[i].depth, 1 + decisions[i].draft});
    const double ms = cost(rows);
    out.ms += ms;
    for (std::size_t i = 0; i < members.size(); ++i) {
      int accepted = 0;
      while (accepted < decisions[i].draft && drafts[i][static_cast<std::size_t>(accepted)] >= 0)
        ++accepted;
      std::vector<std::int32_t> committed;
      for (int j = 0; j <= accepted; ++j)
        committed.push_back(static_cast<std::int32_t>(tokens[i]) + j);
      if (fixed < 0) controller.observe_tokens(static_cast<std::int64_t>(i), committed);
      tokens[i] += accepted + 1;
      out.tokens += accepted + 1;
      if (2 * step >= steps) out.mean_draft[i] += decisions[i].draft * 2.0 / steps;
    }
    if (fixed < 0)
      controller.observe_step(
          rows, 1000 * ms * (1 + 0.05 * bell(seed, static_cast<std::uint64_t>(step))));
  }
  return out;
}

}  // namespace segue::speculate::simulation
