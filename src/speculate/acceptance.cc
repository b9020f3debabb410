// SPDX-License-Identifier: Apache-2.0
#include "speculate/acceptance.h"

#include <algorithm>
#include <cmath>

namespace segue::speculate {
namespace {

constexpr double kFirstGuess = 0.5;          // acceptance of a drafter that nobody has tried
constexpr double kSharedWeight = 1.0;        // trials that the first guess is worth
constexpr double kSequenceWeight = 4.0;      // trials that the shared estimate is worth at most
constexpr double kSharedMemory = 1000;       // trials
constexpr double kSlowMemory = 400;          // trials, and tokens without a trial
constexpr double kFastMemory = 12;           // trials
constexpr double kContradiction = 3.0;       // standard deviations between fast and slow
constexpr double kDepthOfInheritance = 0.7;  // how much of a sequence's deviation carries over to the next position

double logit(double p) { return std::log(p / (1 - p)); }
double clamp_probability(double p) { return std::clamp(p, 0.002, 0.998); }

std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace

void SharedAcceptance::observe(int grade, int position, bool hit) {
  for (FadingCounts* counts : {&all_[index(position)], &by_grade_[index(grade)][index(position)]}) {
    counts->fade(1 - 1 / kSharedMemory);
    counts->add(hit);
  }
}

double SharedAcceptance::mean(int grade, int position) const {
  // A position starts from the one before it, a grade from all grades.
  double all = kFirstGuess;
  for (int i = 0; i <= position; ++i) {
    const FadingCounts& counts = all_[index(i)];
    all = (counts.hits + kSharedWeight * all) / (counts.trials + kSharedWeight);
  }
  const FadingCounts& own = by_grade_[index(grade)][index(position)];
  return (own.hits + kSharedWeight * all) / (own.trials + kSharedWeight);
}

void SequenceAcceptance::Memory::add(bool hit) {
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
  for (const std::int32_t token : tokens) {
    for (std::int64_t& since : tokens_since_trial_) ++since;
    for (auto& grade : memory_) {
      for (Memory& memory : grade) memory.slow.fade(1 - 1 / kSlowMemory);
    }
    for (Pending& pending : pending_) {
      const bool hit = pending.tokens[index(pending.judged)] == token;
      memory_[index(pending.grade)][index(pending.judged)].add(hit);
      tokens_since_trial_[index(pending.grade)] = 0;
      shared.observe(pending.grade, pending.judged, hit);
      pending.judged = hit ? pending.judged + 1 : pending.size;
    }
    std::erase_if(pending_, [](const Pending& pending) { return pending.judged == pending.size; });
  }
}

AcceptanceCurve SequenceAcceptance::curve(int grade, const SharedAcceptance& shared) const {
  AcceptanceCurve curve;
  double shift = 0;   // of this sequence against all, as a difference of logits
  for (int i = 0; i < kMaxDraft; ++i) {
    const double common = clamp_probability(shared.mean(grade, i));
    const double prior = 1 / (1 + std::exp(-(logit(common) + kDepthOfInheritance * shift)));
    const FadingCounts& own = memory_[index(grade)][index(i)].slow;
    const double trials = own.trials + kSequenceWeight;
    const double mean = clamp_probability((own.hits + kSequenceWeight * prior) / trials);
    curve[index(i)] = {mean, std::sqrt(mean * (1 - mean) / (trials + 1))};
    shift = logit(mean) - logit(common);
  }
  return curve;
}

double SequenceAcceptance::trials(int grade, int position) const {
  return memory_[index(grade)][index(position)].slow.trials;
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
