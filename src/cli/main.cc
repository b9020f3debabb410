// SPDX-License-Identifier: Apache-2.0
// The program: picks the subcommand and turns its Error into one message and one exit code: 0, 1,
// 2, or 128 and the signal that interrupted it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "core/build.h"

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
      "\nsegue COMMAND --help shows the flags of a command, segue --version the "
      "build.\n\nExamples:\n"
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
  fmt::print(stderr, "segue: {}\n", error.message);
  return exit_code(error.code);
}

int dispatch(int argc, const char* const* argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    fmt::print("{}", usage_text());
    return 0;
  }
  if (name == "--version") {
    fmt::print("{}\n", segue::core::build_line());
    return 0;
  }
  for (const Entry& entry : kEntries) {
    if (entry.name != name) continue;
    const segue::Status status = entry.command(argc - 1, argv + 1);
    return status.ok() ? 0 : report(status.error());
  }
  if (name.empty()) {
    fmt::print(stderr, "{}", usage_text());
    return 2;
  }
  return report({segue::ErrorCode::kUsage,
                 fmt::format("no command '{}'; segue --help lists the commands", name)});
}

/// A descriptor 0, 1 or 2 that the caller closed would become the next file that is opened: a model
/// read as a chat, messages in the middle of a trace. Input ends at once and output fails instead.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  int code = 1;
  bool written = true;
  try {
    code = dispatch(argc, argv);
  } catch (const std::bad_alloc&) {
    code = report({segue::ErrorCode::kNoMemory, "out of memory"});
  } catch (const std::system_error&) {  // fmt: a print that failed
    written = false;
  }
  if (const int signal = segue::cli::interrupting_signal(); signal != 0) code = 128 + signal;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !written) {
    fmt::print(stderr, "segue: cannot write to standard output\n");
    return code == 0 ? 1 : code;
  }
  return code;
}
