// SPDX-License-Identifier: Apache-2.0
#include "speculate/statistics.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace segue::speculate {
namespace {

constexpr std::int64_t kFirstDepthLimit = 256;

void count(const StepRecord& step, PositionCounts& counts) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(step.drafted); ++i) ++counts.drafted[i];
  for (std::size_t i = 0; i < static_cast<std::size_t>(step.accepted); ++i) ++counts.accepted[i];
}

void add(const PositionCounts& from, PositionCounts& to) {
  for (std::size_t i = 0; i < kMaxDraft; ++i) {
    to.drafted[i] += from.drafted[i];
    to.accepted[i] += from.accepted[i];
  }
}

std::int64_t sum(const std::array<std::int64_t, kMaxDraft>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

void set_positions(const PositionCounts& counts, core::Json& json) {
  std::size_t last = kMaxDraft;
  while (last > 0 && counts.drafted[last - 1] == 0) --last;
  const auto end = static_cast<std::ptrdiff_t>(last);
  json.set("drafted_per_position",
           std::vector<std::int64_t>(counts.drafted.begin(), counts.drafted.begin() + end));
  json.set("accepted_per_position",
           std::vector<std::int64_t>(counts.accepted.begin(), counts.accepted.begin() + end));
}

}  // namespace

void Statistics::record(const StepRecord& step) {
  CHECK(0 <= step.accepted && step.accepted <= step.drafted && step.drafted <= kMaxDraft &&
        step.depth >= 0);
  ++steps_;
  ++k_histogram_[static_cast<std::size_t>(step.drafted)];
  count(step, positions_);
  const auto doubled = static_cast<std::uint64_t>(step.depth / kFirstDepthLimit);
  Bucket& bucket = by_depth_[std::min<std::size_t>(
      kDepthBuckets - 1, static_cast<std::size_t>(std::bit_width(doubled)))];
  ++bucket.steps;
  count(step, bucket.positions);
  draft_us_ += step.draft_us;
  verify_us_ += step.verify_us;
  other_us_ += step.other_us;
}

void Statistics::merge(const Statistics& other) {
  steps_ += other.steps_;
  add(other.positions_, positions_);
  for (std::size_t k = 0; k < k_histogram_.size(); ++k) k_histogram_[k] += other.k_histogram_[k];
  for (std::size_t b = 0; b < by_depth_.size(); ++b) {
    by_depth_[b].steps += other.by_depth_[b].steps;
    add(other.by_depth_[b].positions, by_depth_[b].positions);
  }
  draft_us_ += other.draft_us_;
  verify_us_ += other.verify_us_;
  other_us_ += other.other_us_;
}

std::int64_t Statistics::drafted() const { return sum(positions_.drafted); }

std::int64_t Statistics::accepted() const { return sum(positions_.accepted); }

double Statistics::mean_tokens_per_step() const {
  if (steps_ == 0) return 0.0;
  return 1.0 + static_cast<double>(accepted()) / static_cast<double>(steps_);
}

double Statistics::mean_acceptance_length() const {
  const std::int64_t verify_steps = positions_.drafted[0];
  if (verify_steps == 0) return 1.0;
  return 1.0 + static_cast<double>(accepted()) / static_cast<double>(verify_steps);
}

std::vector<DepthCounts> Statistics::by_depth() const {
  std::vector<DepthCounts> depths;
  for (std::size_t b = 0; b < by_depth_.size(); ++b) {
    if (by_depth_[b].steps == 0) continue;
    depths.push_back({.depth_from = b == 0 ? 0 : kFirstDepthLimit << (b - 1),
                      .depth_to = b + 1 == by_depth_.size() ? 0 : kFirstDepthLimit << b,
                      .steps = by_depth_[b].steps,
                      .positions = by_depth_[b].positions});
  }
  return depths;
}

core::Json Statistics::to_json() const {
  core::Json json = core::Json::object();
  json.set("steps", steps_);
  json.set("drafted", drafted());
  json.set("accepted", accepted());
  set_positions(positions_, json);
  json.set("mean_acceptance_length", mean_acceptance_length());
  json.set("k_histogram", std::vector<std::int64_t>(k_histogram_.begin(), k_histogram_.end()));
  core::Json time = core::Json::object();
  time.set("draft", draft_us_ * 1e-6);
  time.set("verify", verify_us_ * 1e-6);
  time.set("other", other_us_ * 1e-6);
  json.set("time_s", std::move(time));
  core::Json depths = core::Json::array();
  for (const DepthCounts& depth : by_depth()) {
    core::Json bucket = core::Json::object();
    bucket.set("depth_from", depth.depth_from);
    bucket.set("depth_to", depth.depth_to == 0 ? core::Json() : core::Json(depth.depth_to));
    bucket.set("steps", depth.steps);
    set_positions(depth.positions, bucket);
    depths.push(std::move(bucket));
  }
  json.set("by_depth", std::move(depths));
  return json;
}

}  // namespace segue::speculate
