// SPDX-License-Identifier: Apache-2.0
#include "speculate/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace segue::speculate {
namespace {

// Shares of the first measured step. What is known beforehand: most of a step is weights and a little is cache; more
// rows cost a few percent each. How a device really behaves is left to the measurements: the deviations are wide.
struct Prior {
  double mean;
  double deviation;
};
enum Coefficient { kBase, kBatch, kDepth, kAnyVerify, kExtraRow, kVerifiedDepth, kExtraRowDepth, kFirstRowCount };
constexpr std::array<Prior, kFirstRowCount> kPriors{{
    {0.85, 0.5},    // base
    {0.05, 0.2},    // each sequence after the first
    {0.15, 0.3},    // one row over one depth unit
    {0.03, 0.15},   // a step with any verify rows
    {0.02, 0.1},    // each extra row
    {0.02, 0.25},   // a second row over one depth unit: in the published collapse the costliest by far
    {0.005, 0.03},  // each extra row over one depth unit
}};
// Of the step from one row count to the next, from the common line: tiles that fill up, kernels that change. What is
// learnt about 4 and 9 rows so bounds what 5 to 8 may cost.
constexpr double kRowCountDeviation = 0.05;
constexpr double kDrift = 0.003;              // of a coefficient's prior deviation, per observation
constexpr int kRowCounts = 24;                // 2 .. 16, then a bin per quarter of a doubling up to 80, then one
constexpr double kDepthUnit = 4096;

int row_count_bin(int rows) {
  if (rows <= 16) return rows - 2;   // -1: one row
  const double quarter = 4.0 * std::log2(static_cast<double>(rows) / 16.0);
  return std::min(kRowCounts - 1, 15 + static_cast<int>(quarter));
}

struct StepFeatures {
  std::array<DriftingFit::Feature, kFirstRowCount + kRowCounts> list;
  std::size_t count = 0;
  StepFeatures(const StepShape& shape, double depth_unit) {
    put(kBase, 1);
    put(kBatch, shape.batch - 1);
    put(kDepth, shape.depth / depth_unit);
    for (int bin = 0; bin <= row_count_bin(shape.rows); ++bin) put(kFirstRowCount + bin, 1);
    if (shape.extra_rows() == 0) return;
    put(kAnyVerify, 1);
    put(kExtraRow, shape.extra_rows());
    put(kVerifiedDepth, shape.verified_depth / depth_unit);
    put(kExtraRowDepth, shape.extra_row_depth / depth_unit);
  }
  void put(int index, double value) { list[count++] = {index, value}; }
  std::span<const DriftingFit::Feature> span() const { return {list.data(), count}; }
};

std::array<DriftingFit::Feature, 3> draft_features(int tokens, std::int64_t depth) {
  const double n = tokens;
  return {{{0, 1}, {1, n}, {2, n * static_cast<double>(depth) / kDepthUnit}}};
}

StepShape one_row_each(const StepShape& shape) {
  return {.batch = shape.batch, .rows = shape.batch, .depth = shape.depth};
}

}  // namespace

void StepShape::add(const StepRows& sequence) {
  const auto keys = static_cast<double>(sequence.depth);
  ++batch;
  rows += sequence.rows;
  depth += keys;
  if (sequence.rows > 1) verified_depth += keys;
  extra_row_depth += keys * (sequence.rows - 1);
}

StepShape shape_of(std::span<const StepRows> sequences) {
  StepShape shape;
  for (const StepRows& sequence : sequences) shape.add(sequence);
  return shape;
}

void DriftingFit::start(std::vector<double> mean, std::vector<double> deviation, std::vector<double> drift) {
  const std::size_t n = mean.size();
  mean_ = std::move(mean);
  prior_variance_.assign(n, 0);
  drift_variance_.assign(n, 0);
  covariance_.assign(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    prior_variance_[i] = deviation[i] * deviation[i];
    drift_variance_[i] = drift[i] * drift[i];
    covariance_[i * n + i] = prior_variance_[i];
  }
}

Estimate DriftingFit::predict(std::span<const Feature> features) const {
  double us = 0;
  for (const Feature& f : features) us += mean_[static_cast<std::size_t>(f.index)] * f.value;
  return {us, std::sqrt(std::max(0.0, covariance(features, features)))};
}

double DriftingFit::covariance(std::span<const Feature> a, std::span<const Feature> b) const {
  const std::size_t n = mean_.size();
  double sum = 0;
  for (const Feature& left : a) {
    const double* row = covariance_.data() + static_cast<std::size_t>(left.index) * n;
    double product = 0;
    for (const Feature& right : b) product += row[right.index] * right.value;
    sum += left.value * product;
  }
  return sum;
}

void DriftingFit::widen() {
  const std::size_t n = mean_.size();
  for (std::size_t i = 0; i < n; ++i) covariance_[i * n + i] += prior_variance_[i];
}

void DriftingFit::observe(std::span<const Feature> features, double us) {
  const std::size_t n = mean_.size();
  for (std::size_t i = 0; i < n; ++i) {
    if (covariance_[i * n + i] < prior_variance_[i]) covariance_[i * n + i] += drift_variance_[i];
  }
  Estimate expected = predict(features);
  const double scale = std::clamp(expected.us, 0.1 * us, us);
  double noise_us = noise_ * scale;
  const double surprise = (us - expected.us) / std::hypot(noise_us, expected.error_us);
  constexpr double kFar = 4.0;
  if (surprise > kFar) {
    // One in twenty steps may be disturbed; three disturbed in a row are a change.
    ++rejected_;
    if (++suspicious_ < 3) {
      noise_us *= surprise * surprise;
    } else {
      widen();
      suspicious_ = 0;
    }
  } else {
    suspicious_ = 0;
    if (surprise < -kFar) widen();
    const double relative = std::min(std::abs(us - expected.us), 3 * noise_us) / scale;
    if (expected.error_us < noise_us) noise_ = std::clamp(0.95 * noise_ + 0.05 * 1.2533 * relative, 0.005, 0.3);
  }

  std::vector<double> gain(n, 0.0);   // covariance * features, then divided by the variance of the surprise
  for (std::size_t i = 0; i < n; ++i) {
    for (const Feature& f : features) gain[i] += covariance_[i * n + static_cast<std::size_t>(f.index)] * f.value;
  }
  double variance = noise_us * noise_us;
  for (const Feature& f : features) variance += gain[static_cast<std::size_t>(f.index)] * f.value;
  const double error = us - expected.us;
  for (std::size_t i = 0; i < n; ++i) mean_[i] += gain[i] * error / variance;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) covariance_[i * n + j] -= gain[i] * gain[j] / variance;
    covariance_[i * n + i] = std::max(covariance_[i * n + i], 1e-9 * prior_variance_[i]);
  }
}

Estimate CostModel::step(const StepShape& shape) const {
  if (!measured()) return {};
  const auto raw = [&](const StepShape& s) {
    Estimate estimate = step_.predict(StepFeatures(s, depth_unit_).span());
    estimate.us = std::max(estimate.us, 0.5 * estimate.error_us);
    return estimate;
  };
  Estimate estimate = raw(shape);
  if (shape.extra_rows() > 0) estimate.us = std::max(estimate.us, raw(one_row_each(shape)).us);
  return estimate;
}

Estimate CostModel::difference(const StepShape& a, const StepShape& b) const {
  if (!measured()) return {};
  const StepFeatures left(a, depth_unit_);
  const StepFeatures right(b, depth_unit_);
  const double variance = step_.covariance(left.span(), left.span()) + step_.covariance(right.span(), right.span()) -
                          2 * step_.covariance(left.span(), right.span());
  return {step(a).us - step(b).us, std::sqrt(std::max(0.0, variance))};
}

double CostModel::learnable_us(const StepShape& a, const StepShape& b) const {
  if (!measured()) return 0;
  const StepFeatures left(a, depth_unit_);
  const StepFeatures right(b, depth_unit_);
  const double own = step_.covariance(left.span(), left.span());
  const double noise_us = noise() * step(a).us;
  return std::abs(own - step_.covariance(left.span(), right.span())) / std::sqrt(own + noise_us * noise_us);
}

Estimate CostModel::draft(int tokens, std::int64_t depth) const {
  if (tokens == 0 || !draft_.started()) return {};
  Estimate estimate = draft_.predict(draft_features(tokens, depth));
  estimate.us = std::max(estimate.us, 0.0);
  return estimate;
}

double CostModel::hoped_us(const StepShape& shape) const {
  const double share = kPriors[kExtraRow].mean + kPriors[kExtraRowDepth].mean;
  return step(one_row_each(shape)).us * (1 + share * shape.extra_rows() / std::max(1, shape.batch));
}

void CostModel::observe_step(const StepShape& shape, double us) {
  if (!(us > 0) || !std::isfinite(us) || shape.batch == 0) return;
  if (!measured()) {
    const double per_sequence = 1.0 / shape.batch;
    depth_unit_ = std::max(kDepthUnit, shape.depth * per_sequence);
    std::vector<double> mean(kFirstRowCount + kRowCounts, 0.0);
    std::vector<double> deviation(mean.size(), kRowCountDeviation * us);
    for (std::size_t i = 0; i < kPriors.size(); ++i) {
      const double share = i == kBase || i == kAnyVerify ? 1 : per_sequence;
      mean[i] = kPriors[i].mean * us * share;
      deviation[i] = kPriors[i].deviation * us * share;
    }
    std::vector<double> drift = deviation;
    for (double& d : drift) d *= kDrift;
    step_.start(std::move(mean), std::move(deviation), std::move(drift));
  }
  step_.observe(StepFeatures(shape, depth_unit_).span(), us);
}

void CostModel::observe_draft(int tokens, std::int64_t depth, double us) {
  if (!(us > 0) || !std::isfinite(us) || tokens <= 0) return;
  if (!draft_.started()) {
    const double each = us / (tokens + 0.5);
    draft_.start({0.5 * each, 0.8 * each, 0.2 * each}, {each, 0.5 * each, 0.5 * each},
                 {kDrift * each, kDrift * each, kDrift * each});
  }
  const auto features = draft_features(tokens, depth);
  draft_.observe(features, us);
}

}  // namespace segue::speculate
