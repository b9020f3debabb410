// SPDX-License-Identifier: Apache-2.0
// How much memory the system could still give to this process: asked before much is filled, so that
// what does not fit is refused with the numbers.
#pragma once

#include <cstdint>
#include <string>

namespace segue::core {

/// The least of what /proc/meminfo calls available and what is left of the limits of this process's
/// control groups (version 2). The largest number there is where neither can be read.
std::int64_t available_memory_bytes();

/// The same for the files below `root`: tests.
std::int64_t available_memory_bytes(const std::string& root);

}  // namespace segue::core
