// SPDX-License-Identifier: Apache-2.0
// LanguageModel on a GPU. A build without CUDA has the same function, and it says so.
#pragma once

#include <memory>

#include "device/device.h"
#include "model/lm.h"

namespace segue::ops::cuda {
class Matrix;
}

namespace segue::model {

/// LanguageModel::load with options.device kCuda. kNoMemory, before weights are read, when they do
/// not fit.
Result<std::unique_ptr<LanguageModel>> load_gpu_model(const Config& config, TensorSource& source,
                                                      core::ThreadPool& pool,
                                                      const LoadOptions& options);

/// What an assistant beside a model on a GPU has of it; CUDA builds only.
struct GpuTarget {
  const ops::cuda::Matrix* embedding = nullptr;
  const device::Stream* stream = nullptr;  // all work on the model's K and V is in it
};

/// Of a model that load_gpu_model made (CHECK). Valid as long as the model.
GpuTarget gpu_target(const LanguageModel& model);

}  // namespace segue::model
