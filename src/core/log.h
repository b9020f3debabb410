// SPDX-License-Identifier: Apache-2.0
// Log lines on stderr. Only the program uses it; libraries report by value.
#pragma once

#include <string>
#include <string_view>

namespace segue::core {

enum class LogLevel { kQuiet, kInfo };

/// Called once by the program; the default is kInfo.
void set_log_level(LogLevel level);

/// One line, printable, whole even when threads log at once.
void log_info(std::string_view line);

/// Text on standard error, whatever the level. That nobody can read it is no failure.
void tell(std::string_view text);

/// Without control characters but line ends and tabs: what a file says of itself must not drive a
/// terminal.
std::string printable(std::string text);

}  // namespace segue::core
