// SPDX-License-Identifier: Apache-2.0
// Runs the program as a shell would: for tests of what scripts see.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/json.h"

namespace segue::e2e {

struct Outcome {
  int code = -1;
  std::string output;  // standard output and standard error
};

/// `arguments` is quoted by the caller, and so is the file that is its standard input.
inline Outcome run_program(const std::string& arguments, const std::string& input = "/dev/null") {
  Outcome result;
  FILE* pipe = popen(fmt::format("{} {} 2>&1 < {}", SEGUE_PROGRAM, arguments, input).c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::array<char, 4096> buffer;
  for (std::size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

inline core::Json json_of(const std::string& text) {
  Result<core::Json> json = core::Json::parse(text);
  EXPECT_TRUE(json.ok()) << text.substr(0, 400);
  return json.ok() ? std::move(json).value() : core::Json();
}

/// The member at "a.b.c"; null where there is none.
inline const core::Json& at(const core::Json& json, std::string_view path) {
  static const core::Json kNothing;
  const core::Json* here = &json;
  while (here != nullptr && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    here = here->find(path.substr(0, dot));
    path.remove_prefix(std::min(path.size(), dot + 1));
  }
  return here == nullptr ? kNothing : *here;
}

}  // namespace segue::e2e
