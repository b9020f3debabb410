// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each parses its own flags and returns an exit status or the Error that main
// turns into one.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"
#include "segue/error.h"

namespace segue::cli {

using Command = Status (*)(int argc, const char* const* argv);

Status run_command(int argc, const char* const* argv);
Status batch_command(int argc, const char* const* argv);
Status ladder_command(int argc, const char* const* argv);
Status cells_command(int argc, const char* const* argv);
Status sweep_command(int argc, const char* const* argv);
Status exactness_command(int argc, const char* const* argv);
Status explain_command(int argc, const char* const* argv);
Status kernels_command(int argc, const char* const* argv);
Status inspect_command(int argc, const char* const* argv);
Status tokenize_command(int argc, const char* const* argv);
Status eval_command(int argc, const char* const* argv);

}  // namespace segue::cli
