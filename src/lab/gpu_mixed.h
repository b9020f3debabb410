// SPDX-License-Identifier: Apache-2.0
// Steps of unlike sequences on a GPU: does a request get slower by its neighbours than by the bytes
// that they add?
#pragma once

#include "attention/kernel.h"
#include "core/json.h"
#include "device/device.h"
#include "lab/sweep.h"
#include "segue/error.h"

namespace segue::lab {

/// {interrupted, steps: [{step, shape, us {median, samples}, parts_alone_us, parts_alone_sum_us,
/// floor_us, kv_bytes, worst_error_over_bound}]}, two steps a shape: 32 sequences of 200 to 220,000
/// keys with 4 rows each, and a prompt chunk of 2,048 rows beside seven verify blocks of 8 at
/// 50,000 keys. The parts are the same sequences in steps of their own. Checked before it is timed;
/// throws DeviceError.
Result<core::Json> run_mixed_steps(const SweepOptions& options, const device::GpuFacts& gpu,
                                   const attention::Kernel* kernel, double read_gbps);

}  // namespace segue::lab
