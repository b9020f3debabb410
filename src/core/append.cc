// SPDX-License-Identifier: Apache-2.0
#include "core/append.h"

#include <iterator>

#include <fmt/format.h>

namespace segue::core {

void vappend(std::string& out, fmt::string_view format, fmt::format_args args) {
  fmt::vformat_to(std::back_inserter(out), format, args);
}

}  // namespace segue::core
