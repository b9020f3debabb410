// SPDX-License-Identifier: Apache-2.0
// Synthetic acceptance for the lab: replays the target's own tokens, right with given probabilities
// and wrong otherwise, so that a ladder means something on any weights. Not a drafter for users.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
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
  /// `sequence`: prompt and everything that the target generates without speculation. `vocabulary`
  /// >= 2.
  OracleDrafter(std::vector<std::int32_t> sequence, AcceptanceProfile profile,
                std::int32_t vocabulary, std::uint64_t seed);

  std::string_view name() const override { return "oracle"; }

  /// Drafts at most to the end of the recorded sequence. Whether a draft is right depends on (seed,
  /// context length, draft position) only.
  Draft draft(std::span<const std::int32_t> context, std::span<std::int32_t> out) override;

 private:
  std::vector<std::int32_t> sequence_;
  AcceptanceProfile profile_;
  std::int32_t vocabulary_;
  std::uint64_t seed_;
};

}  // namespace segue::speculate
