// SPDX-License-Identifier: Apache-2.0
// The flags that say which model: a file or folder, or random weights for a config.
#pragma once

#include <cstdint>
#include <string>

#include "cli/args.h"
#include "segue/error.h"

namespace segue::cli {

/// Declares -m and --random-weights; `model` gets what the engine takes once resolve() is called.
struct ModelFlag {
  std::string model;
  std::string random_config;

  void declare(Args& args);
  /// kUsage unless exactly one of the two was given. `seed`: of random weights.
  Status resolve(std::uint64_t seed);
};

}  // namespace segue::cli
