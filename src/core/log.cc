// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <atomic>
#include <cstdio>
#include <string>

namespace segue::core {
namespace {

std::atomic<LogLevel> log_level = LogLevel::kInfo;

}  // namespace

void set_log_level(LogLevel level) { log_level = level; }

void log_info(std::string_view line) {
  if (log_level.load() == LogLevel::kQuiet) return;
  const std::string whole = std::string(line) + "\n";
  std::fwrite(whole.data(), 1, whole.size(), stderr);
}

}  // namespace segue::core
