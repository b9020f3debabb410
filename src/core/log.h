// SPDX-License-Identifier: Apache-2.0
// Log lines on stderr. Only the cli, the server and the engine's one start line use it; libraries
// report by value.
#pragma once

#include <string_view>

namespace segue::core {

enum class LogLevel { kQuiet, kInfo, kDebug };

/// Called once by the program; the default is kInfo.
void set_log_level(LogLevel level);

void log_info(std::string_view line);
void log_debug(std::string_view line);

}  // namespace segue::core
