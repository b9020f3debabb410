// SPDX-License-Identifier: Apache-2.0
// /proc and /sys, read once a call.
#include "core/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

namespace segue::core {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// The number after `key` at the start of a line; `otherwise` without such a line.
std::int64_t number_after(const std::string& path, std::string_view key, std::int64_t otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    std::int64_t value = 0;
    return rest >> value ? value : otherwise;  // "max" is no number
  }
  return otherwise;
}

/// What one control group leaves: its limit, less what it uses and could not drop.
std::int64_t left_in_group(const std::string& folder) {
  const std::int64_t limit = number_after(folder + "/memory.max", "", kNoLimit);
  if (limit == kNoLimit) return kNoLimit;
  const std::int64_t used = number_after(folder + "/memory.current", "", 0);
  const std::int64_t cached = number_after(folder + "/memory.stat", "inactive_file ", 0);
  return std::clamp<std::int64_t>(limit - used + cached, 0, limit);
}

}  // namespace

std::int64_t available_memory_bytes(const std::string& root) {
  const std::int64_t kib = number_after(root + "/proc/meminfo", "MemAvailable:", -1);
  std::int64_t least = kib < 0 ? kNoLimit : kib * 1024;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    std::string group = line.substr(3);
    while (true) {  // a parent's limit holds for all below it
      while (group.ends_with('/')) group.pop_back();
      least = std::min(least, left_in_group(root + "/sys/fs/cgroup" + group));
      if (group.empty()) break;
      group.resize(group.rfind('/'));
    }
  }
  return least;
}

std::int64_t available_memory_bytes() { return available_memory_bytes(""); }

}  // namespace segue::core
