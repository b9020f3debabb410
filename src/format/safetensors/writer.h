// SPDX-License-Identifier: Apache-2.0
// Safetensors writer: small files and folders for tests, fuzz seeds and synthetic models. Not a
// converter: it holds everything in memory and its misuse is a bug, not an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/safetensors/safetensors.h"
#include "segue/error.h"

namespace segue::safetensors {

class Writer {
 public:
  void metadata(std::string_view key, std::string_view text);
  /// Copies `data`, whose size must be that of `shape` (contiguous axis last).
  void tensor(std::string_view name, Dtype dtype, const std::vector<std::int64_t>& shape,
              std::span<const std::byte> data);
  void tensor(std::string_view name, const std::vector<std::int64_t>& shape,
              std::span<const float> data);

  /// The file: larger elements first, otherwise in the order of the calls; the data begins at a
  /// multiple of 8.
  std::vector<std::byte> bytes() const;
  Status write(const std::string& path) const;
  /// model-00001-of-00002.safetensors, ... and their index in an existing folder.
  static Status write_shards(const std::string& folder, std::span<const Writer> shards);

 private:
  struct Entry {
    std::string name;
    Dtype dtype;
    std::vector<std::int64_t> shape;
    std::string data;
  };
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<Entry> tensors_;
};

}  // namespace segue::safetensors
