// SPDX-License-Identifier: Apache-2.0
// Selection by rank: an expert is chosen when fewer than `used` others are better.
#include "ops/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace segue::ops {

void choose_experts(std::span<const float> scores, std::span<const float> scale,
                    std::span<std::int32_t> chosen, std::span<float> weights) {
  CHECK(scale.size() == scores.size() && weights.size() == chosen.size());
  CHECK(chosen.size() <= scores.size());
  const auto score = [&](std::size_t e) {
    return std::isnan(scores[e]) ? -std::numeric_limits<float>::infinity() : scores[e];
  };
  std::size_t count = 0;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t e = 0; e < scores.size() && count < chosen.size(); ++e) {
    std::size_t better = 0;
    for (std::size_t other = 0; other < scores.size() && better < chosen.size(); ++other) {
      if (score(other) > score(e) || (score(other) == score(e) && other < e)) ++better;
    }
    if (better >= chosen.size()) continue;
    chosen[count++] = static_cast<std::int32_t>(e);
    largest = std::max(largest, score(e));
  }
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    weights[i] = std::exp(score(static_cast<std::size_t>(chosen[i])) - largest);
    sum += weights[i];
  }
  for (std::size_t i = 0; i < count; ++i)
    weights[i] = weights[i] / sum * scale[static_cast<std::size_t>(chosen[i])];
}

}  // namespace segue::ops
