// SPDX-License-Identifier: Apache-2.0
// Student's t quantiles come from a short table: beyond 30 degrees of freedom the normal's is
// within 2 %. Bounds of a median are the sign test's (Conover, Practical Nonparametric Statistics).
#include "lab/stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "core/check.h"

namespace segue::lab {
namespace {

double t_quantile_975(std::size_t freedom) {
  constexpr std::array kTable{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                              2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                              2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                              2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  return freedom <= kTable.size() ? kTable[freedom - 1] : 1.96 + 2.5 / static_cast<double>(freedom);
}

/// The largest r with P(at most r - 1 of n samples lie below the median) <= 2.5 %: the r-th
/// smallest and the r-th largest sample bound it. 0: none do.
std::size_t median_bound_rank(std::size_t n) {
  const auto count = static_cast<double>(n);
  double log_term = -count * std::log(2.0);  // of 0 of n
  double sum = 0;
  for (std::size_t r = 0; 2 * r < n; ++r) {
    sum += std::exp(log_term);
    if (sum > 0.025) return r;
    log_term += std::log((count - static_cast<double>(r)) / static_cast<double>(r + 1));
  }
  return 0;
}

}  // namespace

double percentile(std::span<const double> samples, double p) {
  if (samples.empty()) return 0;
  std::vector<double> sorted(samples.begin(), samples.end());
  std::ranges::sort(sorted);
  const double place = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

double median(std::span<const double> samples) { return percentile(samples, 50); }

Ratio paired_ratio(std::span<const double> a, std::span<const double> b) {
  CHECK(a.size() == b.size());
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  std::ranges::sort(ratios);
  const std::size_t rank = median_bound_rank(ratios.size());
  Ratio ratio{median(ratios), 0, std::numeric_limits<double>::infinity()};
  if (ratios.empty()) ratio.median = 1;
  if (rank == 0) return ratio;
  ratio.low95 = ratios[rank - 1];
  ratio.high95 = ratios[ratios.size() - rank];
  return ratio;
}

Ratio rate_ratio(const Turns& a, const Turns& b) {
  const std::size_t n = a.us.size();
  CHECK(n == b.us.size() && n == a.work.size() && n == b.work.size() && n > 0);
  const auto sum = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  const double a_us = sum(a.us), a_work = sum(a.work), b_us = sum(b.us), b_work = sum(b.work);
  const double log_ratio = std::log(a_work / a_us) - std::log(b_work / b_us);
  if (n < 2) return {std::exp(log_ratio), 0, std::numeric_limits<double>::infinity()};
  double squares = 0;  // of the terms of the ratio's linearisation; they sum to zero
  for (std::size_t i = 0; i < n; ++i) {
    const double share = a.work[i] / a_work - a.us[i] / a_us - b.work[i] / b_work + b.us[i] / b_us;
    squares += share * share;
  }
  const double half = t_quantile_975(n - 1) *
                      std::sqrt(squares * static_cast<double>(n) / static_cast<double>(n - 1));
  return {std::exp(log_ratio), std::exp(log_ratio - half), std::exp(log_ratio + half)};
}

core::Json samples_json(std::span<const double> samples) {
  core::Json json = core::Json::object();
  return json.set("median", median(samples))
      .set("samples", std::vector<double>(samples.begin(), samples.end()));
}

core::Json ratio_json(const Ratio& ratio) {
  core::Json json = core::Json::object();
  json.set("median", ratio.median);
  if (std::isinf(ratio.high95)) return json.set("low95", {}).set("high95", {});
  return json.set("low95", ratio.low95).set("high95", ratio.high95);
}

std::string ratio_text(const core::Json& ratio, int digits) {
  const std::string middle = fmt::format("{:.{}f}", number(ratio, "median"), digits);
  if (ratio.find("high95")->is_null()) return middle + " [no bounds]";
  return fmt::format("{} [{:.{}f} {:.{}f}]", middle, number(ratio, "low95"), digits,
                     number(ratio, "high95"), digits);
}

double number(const core::Json& json, std::string_view key) {
  double value = 0;
  const core::Json* member = json.find(key);
  return member != nullptr && member->as_double(value) ? value : 0;
}

}  // namespace segue::lab
