// SPDX-License-Identifier: Apache-2.0
// accept(): which drafts stay. A draft is accepted exactly when it equals the token that the target
// samples in its place, so the output is the output without speculation. Stop conditions are the
// engine's.
#pragma once

#include <cstdint>
#include <span>

namespace segue::speculate {

struct Accepted {
  int drafts = 0;         // accepted prefix length, 0 to k
  std::int32_t next = 0;  // the token after the prefix, sampled by the target
};

/// sampled[i] is the target's token for row i (after i drafts). It need only reach the first
/// mismatch: 1 to k + 1 entries, the last of which differs from its draft or has none. Emitted are
/// drafts[0, accepted) and `next`.
Accepted accept(std::span<const std::int32_t> drafts, std::span<const std::int32_t> sampled);

}  // namespace segue::speculate
