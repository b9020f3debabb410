// SPDX-License-Identifier: Apache-2.0
// stderr for people, files for scripts.
#include "cli/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/build.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"

namespace segue::cli {
namespace {

// The globals: a signal handler has no other way.
std::atomic<bool> g_interrupted{false};
std::atomic<int> g_signal{0};
std::atomic<double> g_interrupted_us{0};

void on_interrupt(int signal) {
  // timeout(1) and the like signal the process and then its group: that is one interrupt.
  constexpr double kOneInterruptUs = 100e3;
  g_signal = signal;
  const double now = core::now_us();
  if (!g_interrupted.exchange(true)) {
    g_interrupted_us = now;
  } else if (now - g_interrupted_us > kOneInterruptUs) {
    _exit(128 + signal);
  }
}

}  // namespace

std::function<void(double)> progress_bar(std::string_view what, bool quiet) {
  if (quiet) return {};
  if (isatty(STDERR_FILENO) == 0) {
    return [what = std::string(what), last = core::now_us()](double fraction) mutable {
      constexpr double kEveryUs = 60e6;
      if (core::now_us() - last < kEveryUs) return;
      last = core::now_us();
      core::tell(fmt::format("{} {}%\n", what, static_cast<int>(fraction * 100)));
    };
  }
  return [what = std::string(what), shown = -1](double fraction) mutable {
    constexpr int kWidth = 30;
    const int percent = static_cast<int>(fraction * 100);
    if (percent == shown) return;
    shown = percent;
    const int full = percent * kWidth / 100;
    core::tell(fmt::format("\r{} [{:<{}}] {:3}%", what,
                           std::string(static_cast<std::size_t>(full), '#'), kWidth, percent));
    if (percent >= 100)
      core::tell(fmt::format("\r{:<{}}\r", "", kWidth + static_cast<int>(what.size()) + 10));
    std::fflush(stderr);
  };
}

const std::atomic<bool>& interrupted() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup stays nohup
  return g_interrupted;
}

void forget_interrupt() {
  g_signal = 0;
  g_interrupted = false;
}

int interrupting_signal() { return g_signal; }

Status write_json(const std::string& path, const core::Json& document) {
  if (path.empty()) return {};
  return core::write_file(path, document.dump(1) + "\n");
}

std::string input_name(const std::string& path) {
  return path == "-" ? "standard input" : fmt::format("'{}'", path);
}

Status write_with_settings(const std::string& path, core::Json document, core::Json settings) {
  document.set("settings", std::move(settings))
      .set("machine", core::machine_json())
      .set("build", core::build_json());
  return write_json(path, document);
}

Status finish_measurement(const std::string& json, bool quiet, core::Json document,
                          core::Json settings, const std::string& table) {
  if (!quiet && json != "-") fmt::print("{}", table);
  const core::Json* cut = document.find("interrupted");
  if (cut != nullptr && cut->as_bool() != nullptr && *cut->as_bool()) {
    core::tell("segue: interrupted; the results are of what had finished by then\n");
  }
  return write_with_settings(json, std::move(document), std::move(settings));
}

Status check_writable(const std::string& path) {
  if (path.empty() || path == "-") return {};
  const auto refuse = [&path](int problem) {
    return Error{ErrorCode::kIo,
                 fmt::format("cannot create '{}': {}", path, std::strerror(problem))};
  };
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    // To open a pipe would wait for its reader, and to close it again would be the reader's end.
    if (S_ISDIR(info.st_mode)) return refuse(EISDIR);
    return ::access(path.c_str(), W_OK) == 0 ? Status() : refuse(errno);
  }
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const bool created = fd >= 0;
  if (!created && errno == EEXIST) fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return refuse(errno);
  ::close(fd);
  if (created) ::unlink(path.c_str());  // what fails later leaves no empty file behind
  return {};
}

namespace {

/// Is it a file that a model in this folder has, or would be read as a part of it?
bool belongs_to_model(const std::filesystem::path& folder, const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return false;
  const std::filesystem::path parent =
      path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (!std::filesystem::equivalent(folder, parent, ignored)) return false;
  const std::string name = path.filename().string();
  for (const std::string_view own : {"config.json", "generation_config.json", "tokenizer.json",
                                     "tokenizer_config.json", "special_tokens_map.json"}) {
    if (name == own) return true;
  }
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

}  // namespace

Status check_distinct(std::span<const NamedPath> inputs, std::span<const NamedPath> outputs) {
  const auto clash = [](const NamedPath& a, const NamedPath& b) {
    if (a.path.empty() || b.path.empty() || a.path == "-" || b.path == "-") return false;
    std::error_code error;
    return a.path == b.path || std::filesystem::equivalent(a.path, b.path, error) ||
           belongs_to_model(b.path, a.path);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto refuse = [&](const NamedPath& other) {
      return Error{ErrorCode::kUsage,
                   fmt::format("{} would overwrite '{}', which is also {}{}", outputs[i].flag,
                               outputs[i].path,
                               belongs_to_model(other.path, outputs[i].path) ? "a file of " : "",
                               other.flag)};
    };
    for (const NamedPath& input : inputs) {
      if (clash(outputs[i], input)) return refuse(input);
    }
    for (const NamedPath& other : outputs.first(i)) {
      if (clash(outputs[i], other)) return refuse(other);
    }
  }
  return {};
}

}  // namespace segue::cli
