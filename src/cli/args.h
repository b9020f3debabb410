// SPDX-License-Identifier: Apache-2.0
// Args: the flags of one subcommand. A thin layer over CLI11, which only args.cc includes: flags
// are declared next to the variables that they fill, and every misuse becomes one kUsage message.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/range.h"
#include "segue/error.h"

namespace segue::cli {

class Args {
 public:
  /// `summary` is one sentence; `examples` are whole command lines.
  Args(std::string_view command, std::string_view summary,
       const std::vector<std::string>& examples);
  ~Args();

  /// Declares a flag; its default is the value that `target` has now. Names as CLI11 spells them:
  /// "-m,--model". --help shows ranges and defaults.
  Args& flag(std::string_view names, bool& target, std::string_view help);
  Args& text(std::string_view names, std::string& target, std::string_view help,
             bool required = false);
  /// A text that names a file: not empty.
  Args& path(std::string_view names, std::string& target, std::string_view help,
             bool required = false);
  /// May repeat.
  Args& texts(std::string_view names, std::vector<std::string>& target, std::string_view help,
              bool required = false);
  Args& choice(std::string_view names, std::string& target, const std::vector<std::string>& allowed,
               std::string_view help);
  Args& integer(std::string_view names, std::int64_t& target, const Range<std::int64_t>& range,
                std::string_view help);
  Args& integer(std::string_view names, int& target, const Range<int>& range,
                std::string_view help);
  Args& seed(std::string_view names, std::uint64_t& target, std::string_view help);
  Args& real(std::string_view names, float& target, const Range<double>& range,
             std::string_view help);
  /// Comma-separated lists: "512,2048". Nothing twice, except in `reals`.
  Args& integers(std::string_view names, std::vector<std::int64_t>& target,
                 const Range<std::int64_t>& range, std::string_view help);
  Args& reals(std::string_view names, std::vector<double>& target, const Range<double>& range,
              std::string_view help);
  Args& list(std::string_view names, std::vector<std::string>& target, std::string_view help);
  /// A file: not empty.
  Args& positional(std::string_view name, std::string& target, std::string_view help);

  /// True: go on. False: help was printed. kUsage: a flag is unknown, missing or out of range.
  Result<bool> parse(int argc, const char* const* argv);
  /// Was the flag given on the command line?
  bool given(std::string_view name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace segue::cli
