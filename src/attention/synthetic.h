// SPDX-License-Identifier: Apache-2.0
// A made-up attention problem: a cache with random contents, page tables, queries and guarded
// outputs. Unit tests, `segue sweep` and `segue exactness` run kernels on it. Everything that a
// kernel must not read is poisoned with NaN, everything that it must not write is guarded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/kernel.h"

namespace segue::attention {

struct SyntheticOptions {
  Shape shape;
  std::vector<SequenceRows> sequences;
  /// What the sequences hold: row p of content c is one function of (c, p), whatever the batch,
  /// pages or layout. Empty: sequence i holds content i.
  std::vector<std::uint64_t> contents;
  float spread = 1.0f;  // standard deviation of the scaled scores
  float softcap = 0.0f;
  bool sinks = false;
  bool interleaved = false;           // natural layouts: K and V rows side by side in one pool
  bool scattered = true;              // pages in random order, with unused ones between
  std::function<bool()> cancelled{};  // asked while the cache is filled; true: the rest stays NaN
  int nan_from = -1;  // >= 0: K and V of row nan_from and later rows of every sequence are NaN
};

/// K, V, queries, sinks and page tables; fixed after construction.
/// Slots of no visible key hold NaN; table entries that no visible key needs hold absurd page
/// numbers.
class Synthetic {
 public:
  explicit Synthetic(SyntheticOptions options);
  Synthetic(Synthetic&&) noexcept;
  Synthetic& operator=(Synthetic&&) noexcept;
  ~Synthetic();

  const SyntheticOptions& options() const;
  std::int64_t rows() const;

  /// Params with everything but plan, outputs and partials.
  Params params() const;

  /// Empty when no byte around or in the cache was changed by a launch.
  std::string check_untouched() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a launch wrote.
struct LaunchResult {
  std::vector<float> out;  // [rows, q_heads, head_dim]
  std::vector<float> lse;  // [rows, q_heads]
  std::string overrun;     // not empty: a guard around an output was overwritten
};

/// Runs plan.kernel (or `kernel`) once on outputs that hold NaN before, between guards.
LaunchResult launch(const Synthetic& problem, const Plan& plan, core::ThreadPool& pool,
                    const Kernel* kernel = nullptr);

}  // namespace segue::attention
