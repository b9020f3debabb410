// SPDX-License-Identifier: Apache-2.0
// The one function that every CUDA call goes through. Only CUDA builds include it.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

#include "device/device.h"

namespace segue::device {

/// Throws DeviceError with the call's place and CUDA's name for what went wrong.
inline void cuda_check(cudaError_t result,
                       std::source_location place = std::source_location::current()) {
  if (result == cudaSuccess) return;
  throw DeviceError(std::string(place.file_name()) + ":" + std::to_string(place.line()) + ": " +
                    cudaGetErrorName(result) + ": " + cudaGetErrorString(result));
}

inline cudaStream_t cuda_stream(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

}  // namespace segue::device
