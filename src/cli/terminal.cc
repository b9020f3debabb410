// SPDX-License-Identifier: Apache-2.0
// stderr for people, files for scripts.
#include "cli/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/file.h"

namespace segue::cli {
namespace {

std::atomic<bool> g_interrupted{false};  // the one global: a signal handler has no other way

void on_interrupt(int) {
  if (g_interrupted.exchange(true)) _exit(130);
}

}  // namespace

std::function<void(double)> progress_bar(std::string_view what, bool quiet) {
  if (quiet || isatty(STDERR_FILENO) == 0) return {};
  return [what = std::string(what), shown = -1](double fraction) mutable {
    constexpr int kWidth = 30;
    const int percent = static_cast<int>(fraction * 100);
    if (percent == shown) return;
    shown = percent;
    const int full = percent * kWidth / 100;
    fmt::print(stderr, "\r{} [{:<{}}] {:3}%", what,
               std::string(static_cast<std::size_t>(full), '#'), kWidth, percent);
    if (percent >= 100)
      fmt::print(stderr, "\r{:<{}}\r", "", kWidth + static_cast<int>(what.size()) + 10);
    std::fflush(stderr);
  };
}

const std::atomic<bool>& interrupted() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return g_interrupted;
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

Status write_json(const std::string& path, const core::Json& document) {
  if (path.empty()) return {};
  return core::write_file(path, document.dump(1) + "\n");
}

Status check_writable(const std::string& path) {
  if (path.empty() || path == "-") return {};
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0)
    return Error{ErrorCode::kIo, fmt::format("cannot create '{}': {}", path, std::strerror(errno))};
  ::close(fd);
  return {};
}

}  // namespace segue::cli
