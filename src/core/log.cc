// SPDX-License-Identifier: Apache-2.0
// Logging on top of spdlog: the only file that includes it.
#include "core/log.h"

#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace segue::core {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = std::make_shared<spdlog::logger>(
        "segue", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%v");
    return created;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(level == LogLevel::kQuiet  ? spdlog::level::err
                     : level == LogLevel::kInfo ? spdlog::level::info
                                                : spdlog::level::debug);
}

void log_info(std::string_view line) { logger().info("{}", line); }
void log_debug(std::string_view line) { logger().debug("{}", line); }

}  // namespace segue::core
