// SPDX-License-Identifier: Apache-2.0
// What this program was built from, and on what machine it runs: every recorded result carries
// both.
#pragma once

#include <string>

#include "core/json.h"

namespace segue::core {

/// "segue 0.1.0 (commit abc1234, Release, GNU 12.2.0)".
std::string build_line();

/// version, commit (with "-dirty" when the tree differs), build type, compiler.
Json build_json();

/// CPU model, CPUs of this process, memory, best instruction level.
Json machine_json();

}  // namespace segue::core
