// SPDX-License-Identifier: Apache-2.0
// Counts of speculation, per request and in total: drafted and accepted per position and per depth,
// k over steps, time in draft, verify and other. Only counts and sums, so totals merge exactly; an
// average is made when printed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/json.h"
#include "speculate/drafter.h"

namespace segue::speculate {

/// One step of one sequence.
struct StepRecord {
  std::int64_t depth = 0;  // keys in the cache before the step
  int drafted = 0;         // k: drafts that were verified
  int accepted = 0;        // 0 to k
  double draft_us = 0;     // this sequence's share of the step's times
  double verify_us = 0;    // the target's forward pass, with or without drafts
  double other_us = 0;     // sampling, bookkeeping
};

struct PositionCounts {
  std::array<std::int64_t, kMaxDraft> drafted{};   // steps that verified a draft at this position
  std::array<std::int64_t, kMaxDraft> accepted{};  // of those, accepted
};

/// What was counted in the steps with depth_from to depth_to - 1 keys in the cache before them.
struct DepthCounts {
  std::int64_t depth_from = 0;
  std::int64_t depth_to = 0;  // 0: no end
  std::int64_t steps = 0;
  PositionCounts positions;
};

class Statistics {
 public:
  void record(const StepRecord& step);
  void merge(const Statistics& other);

  std::int64_t steps() const { return steps_; }
  std::int64_t drafted() const;
  std::int64_t accepted() const;
  const PositionCounts& positions() const { return positions_; }
  const std::array<std::int64_t, kMaxDraft + 1>& k_histogram() const {
    return k_histogram_;
  }  // steps by k

  double draft_us() const { return draft_us_; }
  double verify_us() const { return verify_us_; }
  double other_us() const { return other_us_; }

  /// By ascending depth, those with steps.
  std::vector<DepthCounts> by_depth() const;

  /// 1 + accepted drafts, the mean over all steps; 0 when there was none.
  double mean_tokens_per_step() const;
  /// Tokens emitted per step that verified at least one draft; 1 when there was none.
  double mean_acceptance_length() const;

  /// steps, drafted, accepted, drafted_per_position, accepted_per_position, mean_acceptance_length,
  /// k_histogram, time_s {draft, verify, other}, by_depth [{depth_from, depth_to, steps,
  /// drafted_per_position, accepted_per_position}]. Per-position arrays end at the last position
  /// ever drafted.
  core::Json to_json() const;

 private:
  static constexpr int kDepthBuckets =
      24;  // bucket b holds depths [256 * 2^(b-1), 256 * 2^b), bucket 0 from 0
  struct Bucket {
    std::int64_t steps = 0;
    PositionCounts positions;
  };

  std::int64_t steps_ = 0;
  PositionCounts positions_;
  std::array<std::int64_t, kMaxDraft + 1> k_histogram_{};
  std::array<Bucket, kDepthBuckets> by_depth_{};
  double draft_us_ = 0;
  double verify_us_ = 0;
  double other_us_ = 0;
};

}  // namespace segue::speculate
