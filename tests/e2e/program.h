// SPDX-License-Identifier: Apache-2.0
// Runs the program as a shell would: for tests of what scripts see.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace segue::e2e {

struct Outcome {
  int code = -1;
  std::string output;  // standard output and standard error
};

/// `arguments` is quoted by the caller.
inline Outcome run_program(const std::string& arguments) {
  Outcome result;
  FILE* pipe = popen(fmt::format("{} {} 2>&1 < /dev/null", SEGUE_PROGRAM, arguments).c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::array<char, 4096> buffer;
  for (std::size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace segue::e2e
