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
  tell(printable(std::string(line)) + "\n");
}

void tell(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::string printable(std::string text) {
  for (char& c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (control && c != '\n' && c != '\t') c = '?';
  }
  return text;
}

}  // namespace segue::core
