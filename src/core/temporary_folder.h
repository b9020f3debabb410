// SPDX-License-Identifier: Apache-2.0
// For tests: a folder of their own for the files that they write. Only a test that crashes or is
// killed leaves it behind.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "core/check.h"

namespace segue::core {

/// An empty folder that no other process uses; it is removed, with what is in it, at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "segue-XXXXXX").string();
    CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    if (::getpid() != owner_) return;  // the child of a death test
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  pid_t owner_ = ::getpid();
  std::string path_;
};

}  // namespace segue::core
