// SPDX-License-Identifier: Apache-2.0
// The one place that aborts.
#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace segue::core {

void check_failed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace segue::core
