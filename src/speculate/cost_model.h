// SPDX-License-Identifier: Apache-2.0
// Cost model: step time as a function of every sequence's rows and depth, fitted online to measured
// steps.
#pragma once

#include <cstdint>

namespace segue::speculate {

/// One sequence's part of a step.
struct StepRows {
  std::int64_t depth = 0;  // keys in the cache before the step
  int rows = 1;            // 1 + k
};

}  // namespace segue::speculate
