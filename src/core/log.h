// SPDX-License-Identifier: Apache-2.0
// Log lines on stderr. Only the program uses it; libraries report by value.
#pragma once

#include <string_view>

namespace segue::core {

enum class LogLevel { kQuiet, kInfo };

/// Called once by the program; the default is kInfo.
void set_log_level(LogLevel level);

/// One line, whole even when threads log at once.
void log_info(std::string_view line);

}  // namespace segue::core
