// SPDX-License-Identifier: Apache-2.0
// The exactness check: fixed attention problems on which a kernel must give the same bytes however
// the work is arranged, and an error that rounding explains.
#pragma once

#include <functional>
#include <string>

#include "attention/shape.h"
#include "core/json.h"
#include "segue/error.h"
#include "segue/types.h"

namespace segue::lab {

struct ExactnessOptions {
  KvType kv = KvType::kBF16;
  int threads = 0;     // most threads tried; 0: all CPUs of the process, at least 2
  std::string kernel;  // empty: the first of the table
  attention::DeviceKind device = attention::DeviceKind::kCpu;
  std::function<void(double fraction)> progress;
  std::function<bool()> cancelled;  // asked between cases
};

/// {kernel, bits_class, ok, interrupted, cases: [{shape, depth, rows, window, ok, hash, equal
/// {repeats, rows, batch, segments, threads, policies}, worst_error_over_bound, largest_error,
/// largest_error_plain, ulps_to_plain {largest, mean}}]}. `equal` has the number of comparisons
/// made and of those that differed. Ulps are of bf16 (f16, f32): the KV type, the type in which a
/// model would keep the output. Interrupted: `ok` is of the cases that finished. On a GPU:
/// lab/gpu.h.
Result<core::Json> run_exactness(const ExactnessOptions& options);

std::string exactness_table(const core::Json& exactness);

}  // namespace segue::lab
