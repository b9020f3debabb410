// SPDX-License-Identifier: Apache-2.0
// Angles of rotary embeddings. Double sine and cosine, one call per angle at every instruction
// level.
#include <cmath>

#include "ops/cpu/elementwise.h"

namespace segue::ops {

void rope_table(const std::int32_t* positions, std::int64_t rows, const float* inv_freq, int half,
                float magnitude, float* cos_sin) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* cosine = cos_sin + row * 2 * half;
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[row]) * static_cast<double>(inv_freq[i]);
      cosine[i] = static_cast<float>(std::cos(angle)) * magnitude;
      cosine[half + i] = static_cast<float>(std::sin(angle)) * magnitude;
    }
  }
}

}  // namespace segue::ops
