// SPDX-License-Identifier: Apache-2.0
// The program: picks the subcommand and turns its Error into one message and one exit code: 0, 1,
// 2, or 128 and the signal that interrupted it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "core/build.h"
#include "core/log.h"

namespace {

using segue::cli::Command;

struct Entry {
  std::string_view name;
  std::string_view summary;
  Command command;
};

constexpr std::array kEntries{
    Entry{"run", "complete a prompt or chat", segue::cli::run_command},
    Entry{"batch", "complete many requests at once", segue::cli::batch_command},
    Entry{"ladder", "decode speed by depth, with and without speculation",
          segue::cli::ladder_command},
    Entry{"cells", "is --spec auto ever slower than off or a fixed k?", segue::cli::cells_command},
    Entry{"sweep", "time attention alone: rows x depths x policies", segue::cli::sweep_command},
    Entry{"exactness", "check that results do not depend on how work is split",
          segue::cli::exactness_command},
    Entry{"explain", "which path a step takes, and why", segue::cli::explain_command},
    Entry{"kernels", "the attention kernels of this build", segue::cli::kernels_command},
    Entry{"inspect", "what is in a model file", segue::cli::inspect_command},
    Entry{"tokenize", "text to token ids", segue::cli::tokenize_command},
    Entry{"eval", "logits and perplexity of a text", segue::cli::eval_command},
};

constexpr std::string_view kExitStatus =
    "Exit status:\n"
    "  0    done\n"
    "  1    what was asked for is possible and failed: a file that is missing or damaged,\n"
    "       models that do not fit together, a prompt longer than the context, memory, a device\n"
    "  2    the command line or a request must be changed: something unknown, malformed, out of\n"
    "       range, missing or contradictory, or more than the model that it names has (--ctx,\n"
    "       --depths, token ids, --kernel)\n"
    "  128+ interrupted by this signal\n";

std::string usage_text() {
  std::string text =
      "segue: long-context decoding with speculation\n\nUsage: segue COMMAND "
      "[FLAGS]\n\nCommands:\n";
  for (const Entry& entry : kEntries)
    text += fmt::format("  {:<10} {}\n", entry.name, entry.summary);
  text += fmt::format("\n{}", kExitStatus);
  text +=
      "\nsegue COMMAND --help (or segue help COMMAND) shows the flags of a command, segue "
      "--version "
      "the build.\n\nExamples:\n"
      "  segue run -m model.gguf -p 'The capital of France is' -n 16\n"
      "  segue ladder -m model.gguf --depths 512,2048\n"
      "  segue explain --shape 16,8,256 --policy stock --rows 2 --depth 32768\n";
  return text;
}

int exit_code(segue::ErrorCode code) {
  switch (code) {
    case segue::ErrorCode::kUsage: return 2;
    case segue::ErrorCode::kInvalidFile:
    case segue::ErrorCode::kUnsupported:
    case segue::ErrorCode::kNotFound:
    case segue::ErrorCode::kTooLong:
    case segue::ErrorCode::kNoMemory:
    case segue::ErrorCode::kIo:
    case segue::ErrorCode::kCancelled:
    case segue::ErrorCode::kDevice: return 1;
  }
  return 1;
}

int report(const segue::Error& error) {
  segue::core::tell(fmt::format("segue: {}\n", segue::core::printable(error.message)));
  return exit_code(error.code);
}

/// `words`: the command's name and what follows it.
int run_command(std::span<const char* const> words) {
  const std::string_view name = words[0];
  for (const Entry& entry : kEntries) {
    if (entry.name != name) continue;
    const segue::Status status = entry.command(static_cast<int>(words.size()), words.data());
    return status.ok() ? 0 : report(status.error());
  }
  return report({segue::ErrorCode::kUsage,
                 fmt::format("no command '{}'; segue --help lists the commands", name)});
}

int dispatch(int argc, const char* const* argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  const bool help = name == "--help" || name == "-h" || name == "help";
  if (argc <= 1) {
    segue::core::tell(usage_text());
    return 2;
  }
  if (help && argc == 2) {
    fmt::print("{}", usage_text());
    return 0;
  }
  if (const int most = help ? 3 : 2; (help || name == "--version") && argc > most)
    return report({segue::ErrorCode::kUsage,
                   fmt::format("{} takes no more; found '{}'", argv[most - 1], argv[most])});
  if (name == "--version") {
    fmt::print("{}\n", segue::core::build_line());
    return 0;
  }
  if (help) return run_command(std::array<const char*, 2>{argv[2], "--help"});
  return run_command(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
}

/// A descriptor 0, 1 or 2 that the caller closed would become the next file that is opened: a model
/// read as a chat, messages in the middle of a trace. Input ends at once and output fails instead.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDONLY);
  }
}

/// Model files are read through memory maps: one that is cut while it is read, or whose disk fails,
/// is a signal.
void on_lost_page(int signal, siginfo_t* info, void* /*context*/) {
  constexpr std::string_view kMessage =
      "segue: a file became shorter or its disk failed while it was read\n";
  if (info->si_code == BUS_ADRERR) {
    static_cast<void>(!::write(STDERR_FILENO, kMessage.data(), kMessage.size()));
    ::_exit(1);
  }
  std::signal(signal, SIG_DFL);  // a bug: happens again, and ends the program
}

void report_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = on_lost_page;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  report_lost_pages();
  int code = 1;
  bool written = true;
  try {
    code = dispatch(argc, argv);
  } catch (const std::bad_alloc&) {
    code = report({segue::ErrorCode::kNoMemory, "out of memory"});
  } catch (const std::system_error& problem) {  // a print that failed, or no more threads
    written = std::ferror(stdout) == 0;
    if (written) code = report({segue::ErrorCode::kDevice, problem.what()});
  }
  if (const int signal = segue::cli::interrupting_signal(); signal != 0) code = 128 + signal;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !written) {
    segue::core::tell("segue: cannot write to standard output\n");
    return code == 0 ? 1 : code;
  }
  return code;
}
