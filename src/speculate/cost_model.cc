// SPDX-License-Identifier: Apache-2.0
#include "speculate/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"

namespace segue::speculate {
namespace {

// Shares of the first measured step. What is known beforehand: most of a step is weights and a
// little is cache; more rows cost a few percent each. How a device really behaves is left to the
// measurements: the deviations are wide.
struct Prior {
  double mean;
  double deviation;
};
enum Coefficient {
  kBase,
  kBatch,
  kDepth,
  kAnyVerify,
  kExtraRow,
  kVerifiedDepth,
  kExtraRowDepth,
  kFirstRowCount
};
constexpr Prior kExtraRowDepthPrior{0.005, 0.03};
std::array<Prior, kFirstRowCount> priors(const RowPrior& rows) {
  return {{
      {0.85, 0.5},                  // base
      {0.05, 0.2},                  // each sequence after the first
      {0.15, 0.3},                  // one row over one depth unit
      {0.03, 0.15},                 // a step with any verify rows
      {rows.mean, rows.deviation},  // each extra row
      {0.02, 0.25},                 // a second row over one depth unit: the published collapse
      kExtraRowDepthPrior,          // each extra row over one depth unit
  }};
}
// The extra row of one sequence is a share of a step that reads all weights for few rows. In a
// batch the step is shared by more rows, and a row's part of a sequence's part grows towards all of
// it: b s / (1 + (b - 1) s), as if a step were a base and rows. At most so much.
constexpr double kMostRowDeviation = 0.5;
double in_batch(double share, int batch) { return batch * share / (1 + (batch - 1) * share); }
// From one row count to the next a step may leave the common line: tiles that fill up, kernels that
// change (RowPrior::wander). Of one sequence; in a batch, where there are more rows, divided by the
// root of it. The row counts are a random walk, so what is learnt about 4 and 9 rows bounds what 5
// to 8 may cost.
// Of each extra row where verify steps take another path: they hardly matter beside that.
constexpr double kCheapRowDeviation = 0.05;
// Verify steps take at most so many times as long as as many steps as they have rows.
constexpr double kMostSlowPath = 3;
constexpr double kMostDisturbed = 3.3;      // steps with one row each, for one draft each
constexpr double kMostLoneRowShare = 0.75;  // of a step, of a row beside one sequence
constexpr double kMostRowShare = 1.5;  // of what a sequence of a batch costs, believed of a row
constexpr double kFar = 4.0;  // standard deviations from what was expected: disturbed, or a change
constexpr int kDisturbedInARow = 12;
constexpr int kDisturbedBeforeKnown = 2;  // where nothing has been measured
constexpr double kShorter = 1.5;          // standard deviations
constexpr int kFewOccasions = 2;
constexpr double kFirstTooLong = 0.7;  // a second step that takes this share of the first, or less
constexpr double kDrift = 0.003;       // of the prior deviations, per observation
constexpr double kDepthUnit = 4096;

double square(double x) { return x * x; }

int row_count_bin(int rows, bool tiles) {
  if (rows <= 16) return rows - 2;  // -1: one row
  // A full tile of 32 or 64 rows belongs to those before it.
  const double quarter = 4.0 * std::log2((tiles ? rows - 1.0 : rows) / 16.0);
  return std::min(CostModel::kRowCounts - 1, 15 + static_cast<int>(quarter));
}

static_assert(kFirstRowCount + CostModel::kRowCounts <= static_cast<int>(DriftingFit::kMost));

DriftingFit::Prediction step_features(const StepShape& shape, double depth_unit, bool tiles) {
  DriftingFit::Prediction f;
  f.put(kBase, 1);
  f.put(kBatch, shape.batch - 1);
  f.put(kDepth, shape.depth / depth_unit);
  if (shape.rows > 1) f.put(kFirstRowCount + row_count_bin(shape.rows, tiles), 1);
  if (shape.extra_rows() == 0) return f;
  f.put(kAnyVerify, 1);
  f.put(kExtraRow, shape.extra_rows());
  f.put(kVerifiedDepth, shape.verified_depth / depth_unit);
  f.put(kExtraRowDepth, shape.extra_row_depth / depth_unit);
  return f;
}

DriftingFit::Prediction draft_features(const DraftWork& work) {
  DriftingFit::Prediction f;
  f.put(0, 1);
  f.put(1, work.tokens);
  f.put(2, work.tokens * static_cast<double>(work.depth) / kDepthUnit);
  f.put(3, work.behind);
  return f;
}

std::size_t kind_index(int kind) {
  return static_cast<std::size_t>(std::clamp(kind, 0, kDraftKinds - 1));
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

void DriftingFit::start(std::vector<double> mean, std::vector<double> prior) {
  CHECK(prior.size() == mean.size() * mean.size());
  mean_ = std::move(mean);
  prior_ = std::move(prior);
  covariance_ = prior_;
}

double DriftingFit::Prediction::covariance(const Prediction& other) const {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += features[i].value * other.projection[static_cast<std::size_t>(features[i].index)];
  }
  return sum;
}

double DriftingFit::Prediction::error_us() const {
  return std::sqrt(std::max(0.0, covariance(*this)));
}

double DriftingFit::mean(const Prediction& features) const {
  double us = 0;
  for (std::size_t i = 0; i < features.count; ++i) {
    us += mean_[static_cast<std::size_t>(features.features[i].index)] * features.features[i].value;
  }
  return us;
}

void DriftingFit::complete(Prediction& prediction) const {
  const std::size_t n = mean_.size();
  prediction.us = mean(prediction);
  prediction.projection.fill(0);
  for (std::size_t i = 0; i < prediction.count; ++i) {
    const Feature f = prediction.features[i];
    const double* row = covariance_.data() + static_cast<std::size_t>(f.index) * n;
    for (std::size_t j = 0; j < n; ++j) prediction.projection[j] += row[j] * f.value;
  }
}

void DriftingFit::assume(int index, double mean, double deviation) {
  const std::size_t n = mean_.size();
  const auto i = static_cast<std::size_t>(index);
  mean_[i] = mean;
  for (std::size_t j = 0; j < n; ++j) covariance_[i * n + j] = covariance_[j * n + i] = 0;
  covariance_[i * n + i] = prior_[i * n + i] = square(deviation);
}

double DriftingFit::surprise(Prediction features, double us) const {
  complete(features);
  return (us - features.us) / std::hypot(noise_ * features.us, features.error_us());
}

void DriftingFit::doubt(Prediction features, double us, const Walk& walk) {
  complete(features);
  const std::size_t n = mean_.size();
  const double start = walk.starts_known ? prior_[(walk.first - 1) * n + walk.first - 1] : 0;
  const double share = square(us - features.us) / (prior_[walk.at * n + walk.at] - start);
  for (std::size_t i = walk.first; i < walk.end; ++i) {
    for (std::size_t j = walk.first; j < walk.end; ++j)
      covariance_[i * n + j] += share * (prior_[i * n + j] - start);
  }
}

void DriftingFit::expect_jump(const Walk& walk) {
  if (walk.first == walk.end) return;
  const std::size_t n = mean_.size();
  const auto share = [&](std::size_t i) {
    return static_cast<double>(i - walk.first + 1) / static_cast<double>(walk.end - walk.first + 1);
  };
  const auto bridge = [&](std::size_t i, std::size_t j) {
    return std::min(share(i), share(j)) - share(i) * share(j);
  };
  Prediction off_line;  // from the line between both
  if (walk.starts_known) off_line.put(static_cast<int>(walk.first) - 1, share(walk.at) - 1);
  off_line.put(static_cast<int>(walk.at), 1);
  off_line.put(static_cast<int>(walk.end), -share(walk.at));
  complete(off_line);
  const double jump = mean_[walk.end] - (walk.starts_known ? mean_[walk.first - 1] : 0);
  const double missing = square(jump) - off_line.covariance(off_line) / bridge(walk.at, walk.at);
  if (missing <= 0) return;
  for (std::size_t i = walk.first; i < walk.end; ++i) {
    for (std::size_t j = walk.first; j < walk.end; ++j)
      covariance_[i * n + j] += missing * bridge(i, j);
  }
}

/// What was known is in doubt: of the observed features, or of all.
void DriftingFit::widen(const Prediction& observed, bool all) {
  ++changes_;
  const std::size_t n = mean_.size();
  std::array<bool, kMost> touched{};
  for (std::size_t i = 0; i < observed.count; ++i)
    touched[static_cast<std::size_t>(observed.features[i].index)] = true;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      if (all || (touched[i] && touched[j])) covariance_[i * n + j] += prior_[i * n + j];
    }
  }
}

void DriftingFit::observe(Prediction expected, double us, int kind, int times) {
  const std::size_t n = mean_.size();
  std::array<double, kMost> drifts{};  // what is as uncertain as at first drifts no further
  for (std::size_t i = 0; i < n; ++i) drifts[i] = covariance_[i * n + i] < prior_[i * n + i];
  for (std::size_t i = 0; i < n; ++i) {
    const double share = times * kDrift * kDrift * drifts[i];
    for (std::size_t j = 0; j < n; ++j)
      covariance_[i * n + j] += share * drifts[j] * prior_[i * n + j];
  }
  complete(expected);
  const double expected_error_us = expected.error_us();
  const double scale = std::clamp(expected.us, 0.1 * us, us);
  const double repeated = std::sqrt(static_cast<double>(times));
  double noise_us = noise_ * scale;
  const double surprise = (us - expected.us) / std::hypot(noise_us, expected_error_us);
  bool widened = false;
  int& suspicious = suspicious_[static_cast<std::size_t>(kind)];
  if (surprise > kFar) {
    // Others slow the machine down for ten steps at a time; more in a row are a change.
    rejected_ += times;
    if ((suspicious += times) < kDisturbedInARow) {
      noise_us *= surprise * surprise;
    } else {
      widen(expected, kind == 1);
      widened = true;
      suspicious = 0;
    }
  } else {
    suspicious = 0;
    if (surprise < -kFar) {
      widen(expected, kind == 1);
      widened = true;
    }
    const double relative = std::min(std::abs(us - expected.us), 3 * noise_us) / scale;
    const double keep = std::pow(0.95, times);
    if (expected_error_us < noise_us)
      noise_ = std::clamp(keep * noise_ + (1 - keep) * 1.2533 * relative * repeated, 0.005, 0.3);
  }

  if (widened) complete(expected);
  noise_us /= repeated;
  const auto& gain = expected.projection;
  const double variance = noise_us * noise_us + expected.covariance(expected);
  const double error = us - expected.us;
  for (std::size_t i = 0; i < n; ++i) {
    const double share = gain[i] / variance;
    mean_[i] += share * error;
    for (std::size_t j = 0; j < n; ++j) covariance_[i * n + j] -= share * gain[j];
    covariance_[i * n + i] = std::max(covariance_[i * n + i], 1e-9 * prior_[i * n + i]);
  }
}

double CostModel::step_us(const StepShape& shape) const {
  if (!measured()) return 0;
  const double least = step_.mean(step_features(one_row_each(shape), depth_unit_, rows_.tiles));
  const double us =
      shape.extra_rows() > 0 ? step_.mean(step_features(shape, depth_unit_, rows_.tiles)) : least;
  return std::max({us, least, 0.05 * scale_us_});
}

CostModel::Prediction CostModel::predict(const StepShape& shape) const {
  Prediction prediction = step_features(shape, depth_unit_, rows_.tiles);
  prediction.projection.fill(0);
  if (measured()) step_.complete(prediction);
  prediction.us = step_us(shape);
  return prediction;
}

double CostModel::difference_error_us(const Prediction& a, const Prediction& b) {
  return std::sqrt(std::max(0.0, a.covariance(a) + b.covariance(b) - 2 * a.covariance(b)));
}

double CostModel::learnable_us(const Prediction& a, const Prediction& b) const {
  const double own = a.covariance(a);
  const double noise_us = noise() * a.us;
  return std::abs(own - a.covariance(b)) / std::sqrt(own + noise_us * noise_us);
}

std::int64_t CostModel::rejected() const {
  std::int64_t sum = step_.rejected();
  for (const DriftingFit& draft : draft_) sum += draft.rejected();
  return sum;
}

bool CostModel::draft_measured(int kind) const { return draft_[kind_index(kind)].started(); }

double CostModel::draft_us(const DraftWork& work) const {
  const DriftingFit& draft = draft_[kind_index(work.kind)];
  if (work.tokens == 0 || !draft.started()) return 0;
  return std::max(0.0, draft.mean(draft_features(work)));
}

int CostModel::occasions(const StepShape& shape) const {
  return row_counts_[static_cast<std::size_t>(row_count_bin(shape.rows, rows_.tiles))].occasions;
}

double CostModel::hoped_us(const StepShape& shape) const {
  const double share = rows_.mean + kExtraRowDepthPrior.mean;
  return step_us(one_row_each(shape)) * (1 + share * shape.extra_rows() / std::max(1, shape.batch));
}

void CostModel::observe_step(const StepShape& shape, double us, int times) {
  if (!(us > 0) || !std::isfinite(us) || shape.batch == 0) return;
  // The first step may have paid for memory that nobody had touched: then forget what rests on it.
  const std::int64_t off_before = off_steps_;
  if (shape.extra_rows() == 0) off_steps_ += times;
  if (shape.extra_rows() == 0 && off_before == 1 && shape.batch >= first_batch_ &&
      us < kFirstTooLong * scale_us_) {
    step_ = {};
    verify_measured_ = false;
    row_counts_ = {};
    most_rows_ = 0;
  }
  if (!measured()) {
    first_batch_ = shape.batch;
    const double per_sequence = 1.0 / shape.batch;
    scale_us_ = us;
    depth_unit_ = std::max(kDepthUnit, shape.depth * per_sequence);
    constexpr std::size_t kCount = kFirstRowCount + kRowCounts;
    std::vector<double> mean(kCount, 0.0);
    std::vector<double> prior(kCount * kCount, 0.0);
    const std::array<Prior, kFirstRowCount> shares = priors(rows_);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double share = i == kBase || i == kAnyVerify ? 1 : per_sequence;
      Prior known = shares[i];
      if (i == kExtraRow) {
        known.mean = in_batch(known.mean, shape.batch);
        known.deviation = std::max(
            known.deviation, std::min(kMostRowDeviation, in_batch(known.deviation, shape.batch)));
      }
      mean[i] = known.mean * us * share;
      prior[i * kCount + i] = square(known.deviation * us * share);
    }
    for (std::size_t i = kFirstRowCount; i < kCount; ++i) {
      for (std::size_t j = kFirstRowCount; j < kCount; ++j) {
        const auto common = static_cast<double>(1 + std::min(i, j) - kFirstRowCount);
        prior[i * kCount + j] = common * per_sequence * square(rows_.wander * us);
      }
    }
    step_.start(std::move(mean), std::move(prior));
  }
  if (shape.extra_rows() > 0 && !verify_measured_) {
    const double alone_us = step_us(one_row_each(shape));
    const bool another_path = seems_another_path(shape, us - alone_us);
    // Not even rows that cost a step each on a path that is slow: believed if it happens again. In
    // a batch on a CPU nor is another path that is not much slower than that: rows that look cheap
    // by mistake are dear to try.
    const bool doubtful =
        another_path && shape.batch > 1 && !rows_.tiles && us < kMostDisturbed * alone_us;
    if (!disturbed_verify_ &&
        (doubtful || us > kMostSlowPath * alone_us * shape.rows / shape.batch)) {
      disturbed_verify_ = true;
      return;
    }
    verify_measured_ = true;
    faster_than_off_ = us < kFirstTooLong * scale_us_;
    if (another_path) assume_another_path(shape, us - alone_us);
  }
  DriftingFit::Prediction features = step_features(shape, depth_unit_, rows_.tiles);
  if (shape.extra_rows() > 0) {
    // What is far too long where nobody has measured is a disturbance once; twice in a row, rows
    // cost more than was thought. Otherwise the same costly step would be tried a dozen times.
    const auto bin = static_cast<std::size_t>(row_count_bin(shape.rows, rows_.tiles));
    RowCount& rows = row_counts_[bin];
    if (!rows.known && step_.surprise(features, us) > kFar) {
      if (++rows.far_too_long == kDisturbedBeforeKnown)
        step_.doubt(features, us, unknown_around(bin));
    } else {
      rows.known = true;
      // Much shorter than before: what was measured before had been disturbed.
      if (rows.occasions > 0 && rows.occasions <= kFewOccasions &&
          step_.surprise(features, us) < -kShorter)
        step_.doubt(features, us, unknown_around(bin));
    }
    ++rows.occasions;
    most_rows_ = std::max(most_rows_, shape.rows);
  }
  step_.observe(features, us, shape.extra_rows() > 0 ? 1 : 0, times);
  if (rows_.tiles && shape.extra_rows() > 0) expect_jumps(shape);
}

/// Between two neighbours that are known the step may jump at any row count.
void CostModel::expect_jumps(const StepShape& shape) {
  // The first bin after a step without drafts; of one sequence that is where the walk starts.
  auto first = static_cast<std::size_t>(row_count_bin(shape.batch, rows_.tiles) + 1);
  for (std::size_t bin = first; bin < row_counts_.size(); ++bin) {
    if (!row_counts_[bin].known) continue;
    const std::size_t start = kFirstRowCount + first;
    const std::size_t end = kFirstRowCount + bin;
    step_.expect_jump({start, end, (start + end - 1) / 2, first > 0});
    first = bin + 1;
  }
}

/// The row counts between those that are known, around `bin`.
DriftingFit::Walk CostModel::unknown_around(std::size_t bin) const {
  std::size_t first = bin;
  std::size_t end = bin + 1;
  while (first > 0 && !row_counts_[first - 1].known) --first;
  while (end < row_counts_.size() && !row_counts_[end].known) ++end;
  const std::size_t offset = kFirstRowCount;
  return {offset + first, offset + end, offset + bin, first > 0};
}

/// In the first verify step more rows than one took `extra_us`. A row costs at most what a sequence
/// does, and hardly more than was thought of it; if it seems to cost more, verify steps take
/// another path.
bool CostModel::seems_another_path(const StepShape& shape, double extra_us) const {
  const double row_us = step_us(one_row_each(shape)) / shape.batch;
  // In a batch a row may well cost what a sequence does, and both are measured with noise.
  const double most =
      std::min(shape.batch > 1 ? kMostRowShare : kMostLoneRowShare,
               in_batch(rows_.mean, shape.batch) + kFar * in_batch(rows_.deviation, shape.batch));
  return extra_us >= most * row_us * shape.extra_rows();
}

/// The path is what costs, not rows.
void CostModel::assume_another_path(const StepShape& shape, double extra_us) {
  const double row_us = step_us(one_row_each(shape)) / shape.batch;
  const double half = 0.5 * extra_us;  // per step, or per key
  step_.assume(kAnyVerify, half, half);
  const double units = std::max(1.0, shape.verified_depth) / depth_unit_;
  step_.assume(kVerifiedDepth, half / units, half / units);
  step_.assume(kExtraRow, rows_.mean * row_us, kCheapRowDeviation * row_us);
}

void CostModel::observe_draft(const DraftWork& work, double us) {
  if (!(us > 0) || !std::isfinite(us) || work.tokens <= 0) return;
  DriftingFit& draft = draft_[kind_index(work.kind)];
  if (!draft.started()) {
    // Tokens to read share a pass and cost less than those that are drafted one by one.
    const double each = us / (work.tokens + 0.5 + 0.1 * work.behind);
    constexpr std::array<Prior, 4> kDraftPriors{{{0.5, 1}, {0.8, 0.5}, {0.2, 0.5}, {0.1, 0.1}}};
    std::vector<double> mean;
    std::vector<double> prior(kDraftPriors.size() * kDraftPriors.size(), 0.0);
    for (const Prior& one : kDraftPriors) {
      prior[mean.size() * (kDraftPriors.size() + 1)] = square(one.deviation * each);
      mean.push_back(one.mean * each);
    }
    draft.start(std::move(mean), std::move(prior));
  }
  draft.observe(draft_features(work), us, 0);
}

}  // namespace segue::speculate
