// SPDX-License-Identifier: Apache-2.0
#include "speculate/acceptance.h"

#include <algorithm>
#include <cmath>

namespace segue::speculate {
namespace {

constexpr double kFirstGuess = 0.5;      // acceptance of a drafter that nobody has tried
constexpr double kFirstWeight = 2;       // trials that the guess is worth
constexpr double kSharedWeight = 6;      // trials that other sequences' experience is worth at most
constexpr double kFinishedMemory = 500;  // trials that are kept of finished sequences
constexpr double kMemory = 400;          // trials, and tokens without a trial
constexpr int kRecentTrials = 24;        // among which a change is looked for
constexpr double kTrialsPerChange = 200;  // how rare a change is taken to be

double logit(double p) { return std::log(p / (1 - p)); }
double clamp_probability(double p) { return std::clamp(p, 0.002, 0.998); }

double log_factorial(double n) {  // n <= kRecentTrials + 1
  static const auto table = [] {
    std::array<double, kRecentTrials + 2> sums{};
    for (std::size_t i = 1; i < sums.size(); ++i)
      sums[i] = sums[i - 1] + std::log(static_cast<double>(i));
    return sums;
  }();
  return table[static_cast<std::size_t>(n)];
}

std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace

std::size_t DraftSource::slot() const {
  return index(std::clamp(kind, 0, kDraftKinds - 1) * kDraftGrades +
               std::clamp(grade, 0, kDraftGrades - 1));
}

void SharedAcceptance::replace(std::size_t slot, const SlotCounts& before,
                               const SlotCounts& after) {
  for (std::size_t i = 0; i < kMaxDraft; ++i) {
    living_[slot][i].trials += after[i].trials - before[i].trials;
    living_[slot][i].hits += after[i].hits - before[i].hits;
  }
}

void SharedAcceptance::archive(const CountTable& counts) {
  for (std::size_t g = 0; g < kDraftSlots; ++g) {
    replace(g, counts[g], SlotCounts{});
    for (std::size_t i = 0; i < kMaxDraft; ++i) {
      FadingCounts& kept = finished_[g][i];
      kept.trials += counts[g][i].trials;
      kept.hits += counts[g][i].hits;
      if (kept.trials > kFinishedMemory) kept.fade(kFinishedMemory / kept.trials);
    }
  }
}

bool SharedAcceptance::tried(DraftSource source) const {
  return living_[source.slot()][0].trials + finished_[source.slot()][0].trials > 0.5;
}

std::array<SharedAcceptance::Common, kMaxDraft> SharedAcceptance::all_but(const CountTable& own,
                                                                          DraftSource source,
                                                                          int positions) const {
  const std::size_t first = DraftSource{source.kind, 0}.slot();
  std::array<Common, kMaxDraft> common{};
  double mean = kFirstGuess;  // of all grades
  for (std::size_t i = 0; i < index(positions); ++i) {
    FadingCounts all;
    FadingCounts graded;
    for (std::size_t g = first; g < first + kDraftGrades; ++g) {
      const double trials =
          std::max(0.0, finished_[g][i].trials + living_[g][i].trials - own[g][i].trials);
      const double hits =
          std::clamp(finished_[g][i].hits + living_[g][i].hits - own[g][i].hits, 0.0, trials);
      all.trials += trials;
      all.hits += hits;
      if (g == source.slot()) graded = {trials, hits};
    }
    mean = (all.hits + kFirstWeight * mean) / (all.trials + kFirstWeight);
    common[i] = {(graded.hits + kFirstWeight * mean) / (graded.trials + kFirstWeight), all.trials};
  }
  return common;
}

/// Has the probability changed within the last trials? Compares, for every number of last trials, a
/// fresh unknown probability for them with the one that the older trials show (a small form of
/// Bayesian change detection: Adams and MacKay 2007). If a change is more likely than not, only the
/// trials after it are kept.
void SequenceAcceptance::judge(std::size_t slot, int position, bool hit) {
  FadingCounts& counts = counts_[slot][index(position)];
  Recent& recent = recent_[slot][index(position)];
  counts.fade(1 - 1 / kMemory);
  counts.add(hit);
  recent.hits = (recent.hits << 1) | (hit ? 1u : 0u);
  recent.trials = std::min(recent.trials + 1, kRecentTrials);
  const double likely = (counts.hits + 1) / (counts.trials + 2);
  if ((hit ? likely : 1 - likely) > 0.5) return;  // nothing unexpected
  double best_ratio = std::log(kTrialsPerChange);
  FadingCounts after_change;
  FadingCounts last;
  for (int n = 1; n <= recent.trials && n + 4 <= counts.trials; ++n) {
    last.add((recent.hits >> (n - 1) & 1u) != 0);
    const double misses = last.trials - last.hits;
    // Of these hits and misses in this order, all probabilities being alike: h! m! / (n + 1)!
    const double log_fresh =
        log_factorial(last.hits) + log_factorial(misses) - log_factorial(last.trials + 1);
    const double p = (counts.hits - last.hits + 1) / (counts.trials - last.trials + 2);
    if (!(p > 0 && p < 1)) continue;
    const double ratio = log_fresh - last.hits * std::log(p) - misses * std::log(1 - p);
    if (ratio > best_ratio) {
      best_ratio = ratio;
      after_change = last;
    }
  }
  if (after_change.trials > 0) {
    counts = after_change;
    recent.trials = static_cast<int>(after_change.trials);
  }
}

void SequenceAcceptance::draft(DraftSource source, std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return;
  Pending pending{};
  pending.size = static_cast<int>(std::min<std::size_t>(kMaxDraft, tokens.size()));
  pending.slot = source.slot();
  std::copy_n(tokens.begin(), pending.size, pending.tokens.begin());
  if (pending_.size() == std::size_t{kMaxDraft} * kDraftKinds)
    pending_.erase(pending_.begin());  // drafts without commits between
  pending_.push_back(pending);
  used_[pending.slot] = true;
}

void SequenceAcceptance::commit(std::span<const std::int32_t> tokens, SharedAcceptance& shared) {
  for (std::size_t slot = 0; slot < kDraftSlots; ++slot) {
    if (!used_[slot]) continue;
    const SlotCounts before = counts_[slot];
    std::int64_t now = tokens_;
    for (const std::int32_t token : tokens) {
      ++now;
      for (FadingCounts& counts : counts_[slot]) counts.fade(1 - 1 / kMemory);
      for (Pending& pending : pending_) {
        if (pending.slot != slot || pending.judged == pending.size) continue;
        const bool hit = pending.tokens[index(pending.judged)] == token;
        judge(slot, pending.judged, hit);
        last_trial_[slot] = now;
        pending.judged = hit ? pending.judged + 1 : pending.size;
      }
    }
    shared.replace(slot, before, counts_[slot]);
  }
  tokens_ += static_cast<std::int64_t>(tokens.size());
  std::erase_if(pending_, [](const Pending& pending) { return pending.judged == pending.size; });
}

AcceptanceCurve SequenceAcceptance::curve(DraftSource source, const SharedAcceptance& shared,
                                          int positions) const {
  const auto common = shared.all_but(counts_, source, positions);
  AcceptanceCurve curve{};
  double shift = 0;  // of this sequence against the others, as a difference of logits
  for (std::size_t i = 0; i < index(positions); ++i) {
    const double mean = clamp_probability(common[i].mean);
    const double prior = 1 / (1 + std::exp(-(logit(mean) + shift)));
    // Positions are alike: the better the one before is known, the more its estimate is worth here.
    const double before = i > 0 ? counts_[source.slot()][i - 1].trials : 0;
    const double weight = std::min(kSharedWeight, kFirstWeight + 0.1 * (common[i].trials + before));
    const FadingCounts& own = counts_[source.slot()][i];
    const double p = clamp_probability((own.hits + weight * prior) / (own.trials + weight));
    curve[i] = {p, std::sqrt(p * (1 - p) / (own.trials + weight + 1))};
    shift = logit(p) - logit(mean);
  }
  return curve;
}

std::array<double, kMaxDraft + 1> expected_tokens(const AcceptanceCurve& curve) {
  std::array<double, kMaxDraft + 1> tokens;
  tokens[0] = 1;
  double product = 1;
  for (std::size_t i = 0; i < kMaxDraft; ++i) {
    product *= curve[i].mean;
    tokens[i + 1] = tokens[i] + product;
  }
  return tokens;
}

}  // namespace segue::speculate
