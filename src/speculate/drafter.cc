// SPDX-License-Identifier: Apache-2.0
#include "speculate/drafter.h"

namespace segue::speculate {

void Drafter::observe(std::span<const std::int32_t>, int) {}

}  // namespace segue::speculate
