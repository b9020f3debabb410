// SPDX-License-Identifier: Apache-2.0
// How every command of the lab that runs on a GPU opens it: which GPU, whether its kernels are for
// it, which of them is forced, and a DeviceError on the way as a Result.
#pragma once

#include <functional>
#include <string>

#include "attention/kernel.h"
#include "core/json.h"
#include "device/device.h"
#include "segue/error.h"

namespace segue::lab {

/// `run` on the current GPU with the kernel of that name (null for an empty one). kUnsupported and
/// kUsage where GPU or kernel is none of ours, kDevice for what the machine causes.
Result<core::Json> on_gpu(const std::string& kernel,
                          const std::function<Result<core::Json>(const device::GpuFacts&,
                                                                 const attention::Kernel*)>& run);

}  // namespace segue::lab
