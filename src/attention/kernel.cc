// SPDX-License-Identifier: Apache-2.0
// Joins the backends' rows into the table of this machine.
#include "attention/kernel.h"

#include <fmt/format.h>

namespace segue::attention {

std::span<const Kernel* const> kernels() {
  static const std::vector<const Kernel*> table = [] {
    std::vector<const Kernel*> rows;
    for (const Kernel& kernel : cpu_kernels()) {
      if (core::isa_available(kernel.isa)) rows.push_back(&kernel);
    }
#ifdef SEGUE_CUDA
    for (const Kernel& kernel : cuda_kernels()) rows.push_back(&kernel);
#endif
    rows.push_back(&kReference);
    return rows;
  }();
  return table;
}

Result<const Kernel*> find_kernel(std::string_view name) {
  std::string names;
  for (const Kernel* kernel : kernels()) {
    if (kernel->name == name) return kernel;
    if (!names.empty()) names += ", ";
    names += kernel->name;
  }
  return Error{ErrorCode::kUsage,
               fmt::format("unknown kernel '{}'; this machine has {}", name, names)};
}

}  // namespace segue::attention
