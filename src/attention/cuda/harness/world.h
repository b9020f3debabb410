// SPDX-License-Identifier: Apache-2.0
// A synthetic world for checking and timing attention on a GPU: sequences whose keys, values and
// queries are a hash of (seed, sequence, position, head, dim), scattered over a pool that is NaN
// everywhere else, and a reference in double that regenerates the numbers and so never looks at the
// pool, its layout or its page tables.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/cuda/launch.h"
#include "attention/plan.h"
#include "core/tolerance.h"
#include "device/device.h"

namespace segue::attention::cuda {

struct WorldOptions {
  std::uint64_t seed = 1;
  float score_spread = 1.0f;  // standard deviation of scaled scores
  float softcap = 0.0f;
  bool sinks = false;
  int copies = 1;         // of the pool, each with its own numbers
  bool scattered = true;  // pages in random order
};

struct RunOptions {
  Policy policy = Policy::kSegue;
  const Kernel* kernel = nullptr;  // forced, or null
  int force_segments = 0;
  int copy = 0;
  bool lse = false;
};

/// Raw output of one launch: [rows, q_heads, head_dim] of the KV type, and lse [rows, q_heads] if
/// asked for.
struct Output {
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
};

class World {
 public:
  /// Sequence i has lengths[i] keys in the pool.
  World(const Shape& shape, std::span<const std::int64_t> lengths, const WorldOptions& options);

  const Shape& shape() const { return shape_; }
  DeviceFacts& facts() { return facts_; }  // may be changed for experiments before planning
  device::Stream& stream() { return stream_; }

  /// The plan of `rows` (rows[i] belongs to sequence i; depth + rows <= its length).
  Plan plan_of(std::span<const SequenceRows> rows, const RunOptions& options) const;
  /// Page tables in which every entry that these rows do not need is absurd.
  std::vector<kv::PageTable> tables_for(std::span<const SequenceRows> rows);

  /// Fills the query buffer for these rows; the launch parameters for a copy of the pool.
  void make_queries(std::span<const SequenceRows> rows);
  DeviceParams params(const DevicePlan& plan, const RunOptions& options);
  void launch(const Plan& plan, const DeviceParams& params);

  /// Plans, uploads, launches into poisoned output, reads back.
  Output run(std::span<const SequenceRows> rows, const RunOptions& options = {});
  /// Output of what was launched last with these rows (poison_output first).
  void poison_output();
  Output read_output(std::int64_t rows, bool lse);

  /// Grade B of an output of these rows against the reference; lse too when present.
  core::Verdict check(std::span<const SequenceRows> rows, const Output& output, int copy = 0);
  /// Norm of the error over norm of the reference, of the last check.
  double relative_error() const {
    return reference_square_ > 0 ? std::sqrt(error_square_ / reference_square_) : 0;
  }

 private:
  kv::View pool_view(int copy) const;
  void fill_pool(int copy);

  Shape shape_;
  WorldOptions options_;
  DeviceFacts facts_;
  device::Stream stream_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int32_t> first_entry_;  // [sequences + 1] into pages_
  std::vector<std::int32_t> pages_;        // the true page tables, one after another
  std::vector<std::int32_t> run_pages_;    // the same with absurd entries
  std::int64_t pool_pages_ = 0;
  std::int64_t pool_bytes_ = 0;  // K of one copy; V as much
  device::Buffer pool_;          // [copies][K, V]
  device::Buffer queries_, output_, lse_, sinks_;
  std::int64_t row_capacity_ = 0;
  double error_square_ = 0, reference_square_ = 0;
};

/// GB/s (10^9) of a kernel that only reads, on `bytes` of memory; the median of several graph
/// replays.
double read_ceiling(device::Stream& stream, std::int64_t bytes);

/// Microseconds of one launch that reads `bytes` cold bytes, graph-timed over a round of more than
/// 400 MB.
double read_floor(device::Stream& stream, std::int64_t bytes);

/// Samples of microseconds per call: a graph of `calls` launches (call i is enqueue(i)), replayed.
template <class Enqueue>
std::vector<double> time_calls(device::Stream& stream, int calls, int replays, Enqueue&& enqueue) {
  device::Graph graph(stream, [&] {
    for (int i = 0; i < calls; ++i) enqueue(i);
  });
  graph.replay(stream);
  graph.replay(stream);
  std::vector<double> samples;
  for (int i = 0; i < replays; ++i) {
    device::Event start;
    device::Event end;
    start.record(stream);
    graph.replay(stream);
    end.record(stream);
    end.synchronize();
    samples.push_back(end.us_since(start) / calls);
  }
  return samples;
}

}  // namespace segue::attention::cuda
