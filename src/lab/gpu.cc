// SPDX-License-Identifier: Apache-2.0
// GPUs by name; and what the two runs say in a build without CUDA.
#include "lab/gpu.h"

#include <fmt/format.h>

#include "core/check.h"
#include "lab/shapes_data.h"

namespace segue::lab {

Result<device::GpuFacts> parse_gpu(std::string_view name) {
  const Result<core::Json> json = core::Json::parse(kGpusJson);
  CHECK(json.ok());
  const core::Json* const list = json->find("gpus");
  CHECK(list != nullptr && list->as_array() != nullptr);
  std::string names;
  for (const core::Json& entry : *list->as_array()) {
    const std::string& known = *entry.find("name")->as_string();
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
    if (known != name) continue;
    device::GpuFacts gpu;
    gpu.name = *entry.find("model")->as_string();
    gpu.major = static_cast<int>(*entry.find("major")->as_int());
    gpu.minor = static_cast<int>(*entry.find("minor")->as_int());
    gpu.multiprocessors = static_cast<int>(*entry.find("multiprocessors")->as_int());
    gpu.l2_bytes = *entry.find("l2_bytes")->as_int();
    return gpu;
  }
  return Error{ErrorCode::kUsage, fmt::format("no GPU '{}' is known; allowed are {}", name, names)};
}

core::Json gpu_json(const device::GpuFacts& gpu) {
  core::Json json = core::Json::object();
  return json.set("gpu", gpu.name)
      .set("multiprocessors", gpu.multiprocessors)
      .set("driver", gpu.driver)
      .set("cuda_runtime", gpu.runtime);
}

#ifndef SEGUE_CUDA
Result<core::Json> run_gpu_sweep(const SweepOptions& /*options*/) {
  return device::gpu_facts().error();
}
Result<core::Json> run_gpu_exactness(const ExactnessOptions& /*options*/) {
  return device::gpu_facts().error();
}
#endif

}  // namespace segue::lab
