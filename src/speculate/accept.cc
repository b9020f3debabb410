// SPDX-License-Identifier: Apache-2.0
#include "speculate/accept.h"

#include "core/check.h"

namespace segue::speculate {

Accepted accept(std::span<const std::int32_t> drafts, std::span<const std::int32_t> sampled) {
  CHECK(!sampled.empty());
  std::size_t count = 0;
  while (count < drafts.size() && sampled[count] == drafts[count]) {
    ++count;
    CHECK(count < sampled.size());
  }
  return {static_cast<int>(count), sampled[count]};
}

}  // namespace segue::speculate
