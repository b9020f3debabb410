// SPDX-License-Identifier: Apache-2.0
// LanguageModel on a GPU. A build without CUDA has the same function, and it says so.
#pragma once

#include <memory>

#include "model/lm.h"

namespace segue::model {

/// LanguageModel::load with options.device kCuda. kNoMemory, before weights are read, when they do
/// not fit.
Result<std::unique_ptr<LanguageModel>> load_gpu_model(const Config& config, TensorSource& source,
                                                      core::ThreadPool& pool,
                                                      const LoadOptions& options);

}  // namespace segue::model
