// SPDX-License-Identifier: Apache-2.0
// Statistics of measurements: medians with spread, and bounds on the ratio of two alternatives that
// took turns. A verdict such as "not slower" is a bound from here, never a point.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace segue::lab {

double median(std::span<const double> samples);  // 0 when empty
double percentile(std::span<const double> samples,
                  double p);  // p in [0, 100], linear between samples

struct Ratio {
  double median = 1;  // of rate_ratio: the ratio itself
  double low95 = 1;   // two-sided 95 % interval of `median`, which lies in it
  double high95 = 1;
};

/// Ratio a / b from pairs measured next to each other in time: the median of a_i / b_i, and the two
/// order statistics around it that bound the true one by the sign test, whatever the distribution
/// (one preempted slice is not evidence). Fewer than six pairs bound nothing: [0, infinity).
Ratio paired_ratio(std::span<const double> a, std::span<const double> b);

/// What one alternative did in its turns, one entry a turn.
struct Turns {
  std::vector<double> us;
  std::vector<double> work;  // in any unit: tokens, bytes
};

/// Rate of `a` over rate of `b`: total work by total time, from turns taken next to each other. The
/// interval is Student's t on the turns' shares in the logarithm of the ratio. Fewer than two
/// turns: an interval of [0, infinity).
Ratio rate_ratio(const Turns& a, const Turns& b);

/// {median, samples}.
core::Json samples_json(std::span<const double> samples);
/// {median, low95, high95}; both bounds are null where nothing bounds it.
core::Json ratio_json(const Ratio& ratio);
/// As the tables print it: "1.02 [0.98 1.05]", "1.02 [no bounds]".
std::string ratio_text(const core::Json& ratio, int digits);

/// A member as the tables print it: 0 when absent or no number.
double number(const core::Json& json, std::string_view key);

}  // namespace segue::lab
