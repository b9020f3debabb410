// SPDX-License-Identifier: Apache-2.0
// Synthetic acceptance for the lab: replays the target's own tokens, right with given probabilities
// and wrong otherwise, so that a ladder means something on any weights. Not a drafter for users.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "speculate/drafter.h"

namespace segue::speculate {

/// Probability that the draft at `draft_position` (0: first) is right, given that the ones before
/// it are, when the context has `context_tokens` tokens.
using AcceptanceProfile = std::function<double(int draft_position, std::int64_t context_tokens)>;

/// probabilities[i] for position i; the last one holds for all later positions. Empty: never right.
AcceptanceProfile fixed_acceptance(std::vector<double> probabilities);

class OracleDrafter final : public Drafter {
 public:
  /// `paid`: a real drafter that drafts too, for nothing but its time; may be null. It must outlive
  /// this and hears of sequences by itself. `vocabulary` >= 2.
  OracleDrafter(AcceptanceProfile profile, std::int32_t vocabulary, Drafter* paid = nullptr);

  /// `tokens`: the sequence's prompt and everything that the target generates without speculation.
  /// Whether a draft is right depends on (seed, context length, draft position) only.
  void record(std::int64_t sequence, std::vector<std::int32_t> tokens, std::uint64_t seed);

  std::string_view name() const override { return "oracle"; }
  bool ready() const override { return paid_ == nullptr || paid_->ready(); }
  bool wants_hidden() const override { return paid_ != nullptr && paid_->wants_hidden(); }

  std::int64_t behind(std::int64_t sequence, std::span<const std::int32_t> context) const override {
    return paid_ == nullptr ? 0 : paid_->behind(sequence, context);
  }

  /// Drafts at most to the end of the recorded sequence, nothing for others.
  void draft(std::span<DraftJob> jobs) override;
  void forget(std::int64_t sequence) override { records_.erase(sequence); }

 private:
  struct Record {
    std::vector<std::int32_t> tokens;
    std::uint64_t seed;
  };

  int replay(const Record& record, std::span<const std::int32_t> context,
             std::span<std::int32_t> out) const;

  AcceptanceProfile profile_;
  std::int32_t vocabulary_;
  Drafter* paid_;
  std::unordered_map<std::int64_t, Record> records_;
};

}  // namespace segue::speculate
