// SPDX-License-Identifier: Apache-2.0
// Watch: does what happens while a decision stands agree with what it rests on? Sums of surprises
// that start over at zero (Page 1954), a few operations a step. It says when to weigh again, not
// what is true: what is observed is learnt from later.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace segue::speculate {

class Watch {
 public:
  /// Of one step that the decision stands for.
  struct Expected {
    double tokens = 1;           // of all sequences
    double tokens_variance = 0;  // of one step
    double us = 0;               // 0: the time does not matter
    double noise = 0;            // relative, of `us`
    double first_right = 0;      // probability that the first token of an unverified draft is right
  };
  void start(const Expected& expected) {
    *this = {};
    expected_ = expected;
    const double p = std::clamp(expected.first_right, 0.02, 0.98);
    right_ = std::log(0.5 * (1 + p) / p);
  }

  /// A draft of the sequence that will not be verified begins with `token`.
  void draft(std::int64_t sequence, std::int32_t token) {
    unverified_.push_back({sequence, token});
  }

  void tokens(std::int64_t sequence, std::span<const std::int32_t> tokens) {
    tokens_ += static_cast<double>(tokens.size());
    std::erase_if(unverified_, [&](const First& draft) {
      if (draft.sequence != sequence || tokens.empty()) return false;
      // Are twice as few wrong as was thought?
      better_ = std::max(0.0, better_ + (draft.token == tokens.front() ? right_ : std::log(0.5)));
      return true;
    });
  }

  void step(double us) {
    if (!(expected_.us > 0)) return;
    const double surprise = std::clamp((us / expected_.us - 1) / expected_.noise, -3.0, 3.0);
    slower_ = std::max(0.0, slower_ + surprise - 1);
    faster_ = std::max(0.0, faster_ - surprise - 1);
  }

  /// The step is over.
  void next() {
    const double error = std::sqrt(expected_.tokens_variance);
    worse_ = std::max(0.0, worse_ + expected_.tokens - tokens_ - 0.5 * error);
    more_ = std::max(0.0, more_ + tokens_ - expected_.tokens - 0.5 * error);
    tokens_ = 0;
  }

  bool surprised() const {
    return better_ > kOdds || std::max(slower_, faster_) > kTimes ||
           square(std::max(worse_, more_)) > square(kTokens) * expected_.tokens_variance;
  }

 private:
  static constexpr double kOdds = 4;    // logarithm
  static constexpr double kTokens = 4;  // standard deviations
  static constexpr double kTimes = 8;   // of the noise
  static double square(double x) { return x * x; }
  struct First {
    std::int64_t sequence;
    std::int32_t token;
  };
  Expected expected_;
  double right_ = 0;  // what a right draft adds to better_
  std::vector<First> unverified_;
  double tokens_ = 0;  // of this step
  double better_ = 0, worse_ = 0, more_ = 0, slower_ = 0, faster_ = 0;
};

}  // namespace segue::speculate
