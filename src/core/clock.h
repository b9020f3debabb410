// SPDX-License-Identifier: Apache-2.0
// The steady clock as a number, for step times.
#pragma once

#include <chrono>

namespace segue::core {

inline double now_us() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace segue::core
