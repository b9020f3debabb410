// SPDX-License-Identifier: Apache-2.0
#include "lab/forced_kernel.h"

#include <fmt/format.h>

namespace segue::lab {

Result<const attention::Kernel*> forced_kernel(const std::string& name,
                                               attention::DeviceKind device) {
  if (name.empty()) return nullptr;
  const Result<const attention::Kernel*> found = attention::find_kernel(name);
  if (!found.ok() || (*found)->device == device) return found;
  return Error{ErrorCode::kUsage,
               fmt::format("kernel '{}' is one of --device {}; this command runs on {}", name,
                           device_name((*found)->device), device_name(device))};
}

}  // namespace segue::lab
