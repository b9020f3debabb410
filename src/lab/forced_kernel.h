// SPDX-License-Identifier: Apache-2.0
// The kernel that a command forces by name.
#pragma once

#include <string>

#include "attention/kernel.h"
#include "segue/error.h"

namespace segue::lab {

/// Null for an empty name. kUsage for an unknown one and for another device's.
Result<const attention::Kernel*> forced_kernel(const std::string& name,
                                               attention::DeviceKind device);

}  // namespace segue::lab
