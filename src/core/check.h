// SPDX-License-Identifier: Apache-2.0
// CHECK: always-on assertions for what only a bug in Segue can cause. Never reachable from input.
#pragma once

namespace segue::core {

/// Prints `file:line: CHECK failed: expression` to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* expression);

}  // namespace segue::core

#define CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::segue::core::check_failed(__FILE__, __LINE__, #condition))

#ifdef NDEBUG
#define DCHECK(condition) static_cast<void>(sizeof(condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif
