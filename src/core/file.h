// SPDX-License-Identifier: Apache-2.0
// Files: read-only memory maps, whole-file reads and writes that notice a full disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "segue/error.h"

namespace segue::core {

/// A read-only private map of a whole file; movable, unmapped on destruction.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }

  /// Tells the system that the pages of [offset, offset + bytes) are no longer needed: resident
  /// memory falls, the bytes stay readable (they come from the file again).
  void release(std::int64_t offset, std::int64_t bytes) const;

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// No text that anyone means is larger; what never ends (a device, a pipe) is.
inline constexpr std::int64_t kMostTextBytes = std::int64_t{1} << 30;

/// All of `path` ("-": standard input). kIo when it is longer than `most_bytes`.
Result<std::string> read_file(const std::string& path, std::int64_t most_bytes = kMostTextBytes);

/// Writes `text` to `path` ("-": standard output). Fails when any byte could not be written.
Status write_file(const std::string& path, std::string_view text);

}  // namespace segue::core
