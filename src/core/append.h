// SPDX-License-Identifier: Apache-2.0
// Formatted text into a string that is there already, within its capacity where that suffices.
// fmt::format_to would compile all of fmt's formatting into every source that calls it.
#pragma once

#include <string>
#include <utility>

#include <fmt/core.h>

namespace segue::core {

void vappend(std::string& out, fmt::string_view format, fmt::format_args args);

template <class... Args>
void append(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  vappend(out, format, fmt::make_format_args(args...));
}

/// In place of what is there.
template <class... Args>
void assign(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  out.clear();
  vappend(out, format, fmt::make_format_args(args...));
}

}  // namespace segue::core
