// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "lab/gpu_run.h"

#include "attention/gpu.h"
#include "lab/forced_kernel.h"

namespace segue::lab {

Result<core::Json> on_gpu(const std::string& kernel,
                          const std::function<Result<core::Json>(const device::GpuFacts&,
                                                                 const attention::Kernel*)>& run) {
  const Result<device::GpuFacts> gpu = device::current_gpu_facts();
  if (!gpu.ok()) return gpu.error();
  const Result<const attention::Kernel*> forced =
      forced_kernel(kernel, attention::DeviceKind::kCuda);
  if (!forced.ok()) return forced.error();
  if (Status status = attention::check_gpu(*gpu, *forced); !status.ok()) return status.error();
  try {
    return run(*gpu, *forced);
  } catch (const device::DeviceError& error) {
    return Error{ErrorCode::kDevice, error.what()};
  }
}

}  // namespace segue::lab
#endif
