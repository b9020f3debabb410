// SPDX-License-Identifier: Apache-2.0
// Cost model: the time of a step as a function of every sequence's rows and depth, and the time of
// drafting, fitted online to measured times. A linear model with uncertain, slowly drifting
// coefficients (a Kalman filter); times that are far too long are discounted as outliers until they
// repeat, times that are far too short are believed at once, since nothing makes a step faster by
// accident.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "speculate/acceptance.h"

namespace segue::speculate {

/// One sequence's part of a step.
struct StepRows {
  std::int64_t depth = 0;  // keys in the cache before the step
  int rows = 1;            // 1 + k
};

/// Sums over the sequences of a step: all that the cost model knows about it.
struct StepShape {
  int batch = 0;
  int rows = 0;                // of all sequences
  double depth = 0;            // of all sequences
  double verified_depth = 0;   // of the sequences with more than one row
  double extra_row_depth = 0;  // sum of depth * (rows - 1)

  void add(const StepRows& sequence);
  int extra_rows() const { return rows - batch; }
};

/// One call of a drafter.
struct DraftWork {
  int kind = 0;            // of the drafter (acceptance.h)
  int tokens = 0;          // k drafted
  std::int64_t depth = 0;  // keys in the target's cache
  int behind = 0;          // committed tokens that the drafter had to read first
};

StepShape shape_of(std::span<const StepRows> sequences);

/// What is known of rows before any is measured, in shares of a step that reads all weights for
/// one row.
struct RowPrior {
  double mean = 0.02;  // each extra row
  double deviation = 0.3;
  double wander = 0.15;  // deviation from one row count to the next, from the common line
  bool tiles = false;    // what lies off the line is one jump, where a tile of rows is full
  double own_share = 0;  // of a step, more where the sequences of a batch have k of their own
};
/// On a CPU a row may cost anything up to half a step, and every row count its own.
inline constexpr RowPrior kCpuRows{};
/// On a GPU rows share the reading of the weights: 1 to 5 % of a step were measured (H200). A batch
/// in which every sequence has its own k has other row counts all the time, and each is recorded
/// first, which takes as long as one or two steps (docs/kernels/cuda-ops.md).
inline constexpr RowPrior kGpuRows{
    .mean = 0.03, .deviation = 0.04, .wander = 0.05, .tiles = true, .own_share = 0.05};

/// Least squares with forgetting for few features: mean and covariance of the coefficients.
class DriftingFit {
 public:
  static constexpr std::size_t kMost = 32;     // coefficients
  static constexpr std::size_t kFeatures = 8;  // of one observation
  struct Feature {
    int index;
    double value;
  };
  /// The features that are not zero, and what the fit makes of them.
  struct Prediction {
    std::array<Feature, kFeatures> features;
    std::size_t count = 0;
    double us = 0;
    std::array<double, kMost> projection;  // covariance of every coefficient with `us`

    void put(int index, double value) { features[count++] = {index, value}; }
    double covariance(const Prediction& other) const;
    double error_us() const;
  };

  /// Starts over. `prior`: covariance of the coefficients, [coefficients, coefficients].
  void start(std::vector<double> mean, std::vector<double> prior);
  bool started() const { return !mean_.empty(); }

  double mean(const Prediction& features) const;
  void complete(Prediction& prediction) const;  // from its features
  /// `kind` 0 or 1: what is far too long for one kind of observation says nothing about the other.
  /// A change that kind 0 shows concerns its features only, one that kind 1 shows concerns all.
  /// `times`: observations alike, of which `us` is the median.
  void observe(Prediction features, double us, int kind, int times = 1);
  double surprise(Prediction features, double us) const;  // in standard deviations
  /// Coefficients [first, end) of which the prior is a random walk, from the one before `first`
  /// where that is known, or from 0.
  struct Walk {
    std::size_t first;
    std::size_t end;
    std::size_t at;
    bool starts_known;
  };
  /// They become so uncertain that the features, of which `walk.at` is one, may well take `us`.
  void doubt(Prediction features, double us, const Walk& walk);
  /// What is before the walk and coefficient `walk.end` are known. If one jump at a place of which
  /// nothing is known makes up their difference, what lies at share t of the way has t (1 - t) of
  /// its square as variance: at least that it gets.
  void expect_jump(const Walk& walk);
  /// What is known of one coefficient from here on, whatever is known of the others.
  void assume(int index, double mean, double deviation);
  double noise() const { return noise_; }  // relative, of one observation
  std::int64_t rejected() const { return rejected_; }
  std::int64_t changes() const {
    return changes_;
  }  // times at which old and new measurements contradicted each other

 private:
  void widen(const Prediction& observed, bool all);
  std::vector<double> mean_;        // [coefficients]
  std::vector<double> prior_;       // [coefficients, coefficients]
  std::vector<double> covariance_;  // [coefficients, coefficients]
  double noise_ = 0.05;
  std::array<int, 2> suspicious_{};  // by kind: observations in a row that were far too long
  std::int64_t rejected_ = 0;
  std::int64_t changes_ = 0;
};

class CostModel {
 public:
  // Of a step: 2 .. 16, then a bin per quarter of a doubling up to 80, then one.
  static constexpr int kRowCounts = 24;

  explicit CostModel(const RowPrior& rows = kCpuRows) : rows_(rows) {}

  bool measured() const { return step_.started(); }
  double noise() const { return step_.noise(); }
  std::int64_t rejected() const;
  std::int64_t changes() const { return step_.changes(); }

  /// Time of a step. Zero until measured. A verify step is never predicted to be cheaper than the
  /// same step with one row each.
  double step_us(const StepShape& shape) const;

  /// step_us with what it depends on, to be compared with others. Valid until the next observation.
  using Prediction = DriftingFit::Prediction;
  Prediction predict(const StepShape& shape) const;

  /// Error of a.us - b.us: what both share does not count.
  static double difference_error_us(const Prediction& a, const Prediction& b);

  /// By how much measuring one step like `a` is expected to move the estimate of a.us - b.us: its
  /// standard deviation.
  double learnable_us(const Prediction& a, const Prediction& b) const;

  /// Drafting for one sequence. Zero when there is nothing to draft, and for a kind that was never
  /// measured.
  double draft_us(const DraftWork& work) const;
  bool draft_measured(int kind) const;

  /// Has a verify step been so much faster than the only step without drafts that this one must
  /// have been disturbed?
  bool first_step_doubtful() const { return off_steps_ == 1 && faster_than_off_; }

  /// On how many occasions a verify step of about as many rows was measured. 0: on none.
  int occasions(const StepShape& shape) const;
  /// Rows of the largest verify step that was measured. 0: none was.
  int most_rows() const { return most_rows_; }

  /// What a verify step would cost if its rows shared the reading of the cache: the hope that a
  /// probe rests on.
  double hoped_us(const StepShape& shape) const;

  /// `times`: steps alike, of which `us` is the median.
  void observe_step(const StepShape& shape, double us, int times = 1);
  void observe_draft(const DraftWork& work, double us);

 private:
  DriftingFit::Walk unknown_around(std::size_t bin) const;
  void expect_jumps(const StepShape& shape);
  bool seems_another_path(const StepShape& shape, double extra_us) const;
  void assume_another_path(const StepShape& shape, double extra_us);

  RowPrior rows_;
  DriftingFit step_;
  std::array<DriftingFit, kDraftKinds> draft_;
  double scale_us_ = 0;  // the first measured step
  int first_batch_ = 0;  // its sequences
  std::int64_t off_steps_ = 0;
  double depth_unit_ = 1;
  bool verify_measured_ = false;
  bool faster_than_off_ = false;   // a verify step, than the first step
  bool disturbed_verify_ = false;  // the first was so long that it was not believed
  struct RowCount {
    bool known = false;    // measured, and no surprise
    int far_too_long = 0;  // times, until then
    int occasions = 0;     // on which it was measured
  };
  std::array<RowCount, kRowCounts> row_counts_{};  // of verify steps
  int most_rows_ = 0;                              // of one
};

}  // namespace segue::speculate
