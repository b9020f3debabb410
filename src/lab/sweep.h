// SPDX-License-Identifier: Apache-2.0
// The sweep: attention called directly, rows x depths x shapes x policies, no model. Every cell is
// checked against the reference before it is timed, and set against the read bandwidth and the
// arithmetic peak of the same threads in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attention/policy.h"
#include "core/json.h"
#include "lab/shapes.h"
#include "segue/error.h"

namespace segue::lab {

/// Cold: every call reads another copy of the cache, more in all than the last-level cache holds.
/// Warm: the same one.
enum class CacheState { kCold, kWarm };

struct SweepOptions {
  std::vector<NamedShape> shapes;
  std::vector<std::int64_t> depths;  // kv_len: keys that the last row sees
  std::vector<int> rows;
  std::vector<attention::Policy> policies;
  CacheState cache = CacheState::kCold;
  KvType kv = KvType::kBF16;
  int page_size = 16;
  int threads = 0;     // 0: all CPUs of the process
  int rounds = 7;      // samples of a cell; policies and rows take turns within a round
  std::string kernel;  // empty: the first of the table that supports the shape
  attention::DeviceKind device = attention::DeviceKind::kCpu;
  std::vector<int> batches{1};       // sequences alike; the CPU's sweep has 1
  std::optional<kv::Layout> layout;  // empty: the device's fastest
  bool prefill = false;              // GPU: the rows are prompt rows
  bool mixed = false;                // GPU: the steps of gpu_mixed.h instead of cells
  bool early_reads = false;          // GPU: read KV before the stream's previous kernel ends
  std::function<void(double fraction)> progress;
  std::function<bool()> cancelled;  // asked between samples
};

/// {read_gbps, peak_gflops, threads, cache, interrupted, cells: [{shape, depth, rows, policy,
/// kernel, layout, path, workgroups, us {median, samples}, bytes, gbps, percent_of_read,
/// ratio_to_one_row, operations, bound_us, ratio_to_bound, worst_error_over_bound, clause}]}.
/// bytes: K and V read once. ratio_to_one_row: null without a 1-row cell of the same shape, depth
/// and policy. bound_us: max(bytes / read bandwidth, operations / peak), both measured again right
/// before every sample and compared with it; with warm caches on a buffer of the cell's size.
/// clause: the one that sent the step to the whole path, or "". Interrupted: the cells have the
/// samples that were taken, those without any are missing. kUnsupported for an unknown kernel or
/// shape and where the device is missing; a cell that fails its check fails the sweep. On a GPU:
/// lab/gpu.h.
Result<core::Json> run_sweep(const SweepOptions& options);

/// The cells as a table for people.
std::string sweep_table(const core::Json& sweep);

}  // namespace segue::lab
