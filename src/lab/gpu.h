// SPDX-License-Identifier: Apache-2.0
// The sweep and the exactness check on a GPU, behind the same options and documents as on the CPU
// (sweep.h, exactness.h call them); and GPUs by name, whose facts are data, so that a step can be
// planned for one that is not here. A build without CUDA has the same functions, and they say so.
#pragma once

#include <string_view>
#include <vector>

#include "core/json.h"
#include "device/device.h"
#include "lab/exactness.h"
#include "lab/sweep.h"
#include "segue/error.h"

namespace segue::lab {

/// As run_sweep(), whose checks have passed. Cells are checked against the reference in double on
/// the GPU, KV buffers rotate so that a round reads more than 400 MB (cold), calls are replayed
/// from a graph, cells of one depth take turns. Besides the CPU's members a cell has batch,
/// page_size, unit, floor_us (its bytes at the read ceiling), launch_floor_us (one launch that
/// reads as many, or null), prefill, tflops, plan_us, update_us (planning and sending) and
/// relative_error.
Result<core::Json> run_gpu_sweep(const SweepOptions& options);

/// As run_exactness(); `equal` has repeats, rows, batch, segments, policies and replays (of a graph
/// captured at another length).
Result<core::Json> run_gpu_exactness(const ExactnessOptions& options);

/// {gpu, multiprocessors, driver, cuda_runtime} for documents.
core::Json gpu_json(const device::GpuFacts& gpu);

/// "h200": bench/cases/gpus.json. kUsage; the message lists the names.
Result<device::GpuFacts> parse_gpu(std::string_view name);

}  // namespace segue::lab
