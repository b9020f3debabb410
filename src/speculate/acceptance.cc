// SPDX-License-Identifier: Apache-2.0
#include "speculate/acceptance.h"

#include <algorithm>
#include <cmath>

namespace segue::speculate {
namespace {

constexpr double kFirstGuess = 0.5;          // acceptance of a drafter that nobody has tried
constexpr double kFirstWeight = 2;           // trials that the guess is worth
constexpr double kSharedWeight = 6;          // trials that other sequences' experience is worth at most
constexpr double kFinishedMemory = 500;      // trials that are kept of finished sequences
constexpr double kSlowMemory = 400;          // trials, and tokens without a trial
constexpr double kFastMemory = 12;           // trials
constexpr double kContradiction = 3.0;       // standard deviations between fast and slow
constexpr double kInheritance = 1.0;         // of a sequence's deviation, carried over to the next position

double logit(double p) { return std::log(p / (1 - p)); }
double clamp_probability(double p) { return std::clamp(p, 0.002, 0.998); }

std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace

void SharedAcceptance::replace(const CountTable& before, const CountTable& after) {
  for (std::size_t g = 0; g < kDraftGrades; ++g) {
    for (std::size_t i = 0; i < kMaxDraft; ++i) {
      living_[g][i].trials += after[g][i].trials - before[g][i].trials;
      living_[g][i].hits += after[g][i].hits - before[g][i].hits;
    }
  }
}

void SharedAcceptance::archive(const CountTable& counts) {
  replace(counts, CountTable{});
  for (std::size_t g = 0; g < kDraftGrades; ++g) {
    for (std::size_t i = 0; i < kMaxDraft; ++i) {
      FadingCounts& kept = finished_[g][i];
      kept.trials += counts[g][i].trials;
      kept.hits += counts[g][i].hits;
      if (kept.trials > kFinishedMemory) kept.fade(kFinishedMemory / kept.trials);
    }
  }
}

std::array<SharedAcceptance::Common, kMaxDraft> SharedAcceptance::all_but(const CountTable& own, int grade) const {
  std::array<Common, kMaxDraft> common;
  double mean = kFirstGuess;   // of all grades
  for (std::size_t i = 0; i < kMaxDraft; ++i) {
    FadingCounts all;
    FadingCounts graded;
    for (std::size_t g = 0; g < kDraftGrades; ++g) {
      const double trials = std::max(0.0, finished_[g][i].trials + living_[g][i].trials - own[g][i].trials);
      const double hits = std::clamp(finished_[g][i].hits + living_[g][i].hits - own[g][i].hits, 0.0, trials);
      all.trials += trials;
      all.hits += hits;
      if (g == index(grade)) graded = {trials, hits};
    }
    mean = (all.hits + kFirstWeight * mean) / (all.trials + kFirstWeight);
    common[i] = {(graded.hits + kFirstWeight * mean) / (graded.trials + kFirstWeight), all.trials};
  }
  return common;
}

void SequenceAcceptance::judge(int grade, int position, bool hit) {
  FadingCounts& fast = fast_[index(grade)][index(position)];
  FadingCounts& slow = slow_[index(grade)][index(position)];
  fast.fade(1 - 1 / kFastMemory);
  fast.add(hit);
  slow.fade(1 - 1 / kSlowMemory);
  slow.add(hit);
  if (fast.trials < 0.5 * kFastMemory || slow.trials < 2 * kFastMemory) return;
  const double p = clamp_probability((slow.hits + 0.5) / (slow.trials + 1));
  const double deviation = std::sqrt(p * (1 - p) / fast.trials);
  if (std::abs(fast.hits / fast.trials - p) > kContradiction * deviation) slow = fast;
}

void SequenceAcceptance::draft(int grade, std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return;
  Pending pending{};
  pending.size = static_cast<int>(std::min<std::size_t>(kMaxDraft, tokens.size()));
  pending.grade = std::clamp(grade, 0, kDraftGrades - 1);
  std::copy_n(tokens.begin(), pending.size, pending.tokens.begin());
  pending_.push_back(pending);
}

void SequenceAcceptance::commit(std::span<const std::int32_t> tokens, SharedAcceptance& shared) {
  const CountTable before = slow_;
  for (const std::int32_t token : tokens) {
    for (std::int64_t& since : tokens_since_trial_) ++since;
    for (auto& grade : slow_) {
      for (FadingCounts& counts : grade) counts.fade(1 - 1 / kSlowMemory);
    }
    for (Pending& pending : pending_) {
      const bool hit = pending.tokens[index(pending.judged)] == token;
      judge(pending.grade, pending.judged, hit);
      tokens_since_trial_[index(pending.grade)] = 0;
      pending.judged = hit ? pending.judged + 1 : pending.size;
    }
    std::erase_if(pending_, [](const Pending& pending) { return pending.judged == pending.size; });
  }
  shared.replace(before, slow_);
}

AcceptanceCurve SequenceAcceptance::curve(int grade, const SharedAcceptance& shared) const {
  const auto common = shared.all_but(slow_, grade);
  AcceptanceCurve curve;
  double shift = 0;   // of this sequence against the others, as a difference of logits
  for (std::size_t i = 0; i < kMaxDraft; ++i) {
    const double mean = clamp_probability(common[i].mean);
    const double prior = 1 / (1 + std::exp(-(logit(mean) + kInheritance * shift)));
    const double weight = std::min(kSharedWeight, kFirstWeight + 0.1 * common[i].trials);
    const FadingCounts& own = slow_[index(grade)][i];
    const double p = clamp_probability((own.hits + weight * prior) / (own.trials + weight));
    curve[i] = {p, std::sqrt(p * (1 - p) / (own.trials + weight + 1))};
    shift = logit(p) - logit(mean);
  }
  return curve;
}

std::array<double, kMaxDraft + 1> expected_tokens(const AcceptanceCurve& curve, double deviations) {
  std::array<double, kMaxDraft + 1> tokens;
  tokens[0] = 1;
  double product = 1;
  for (std::size_t i = 0; i < kMaxDraft; ++i) {
    product *= std::clamp(curve[i].mean + deviations * curve[i].error, 0.0, 1.0);
    tokens[i + 1] = tokens[i] + product;
  }
  return tokens;
}

}  // namespace segue::speculate
