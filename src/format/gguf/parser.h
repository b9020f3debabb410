// SPDX-License-Identifier: Apache-2.0
// Parser: one pass over the bytes of a GGUF file that fills a File. Private to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "format/gguf/gguf.h"
#include "segue/error.h"

namespace segue::gguf {

/// 'text' for a message: quoted, unprintable bytes escaped, cut after 80 bytes.
std::string quote(std::string_view text);

/// Bytes of one element; for strings and arrays the least an element takes. 0: no such type.
std::int64_t least_element_bytes(ValueType type);

/// Reads file.bytes_ from front to back. Bounds are compared as "needed <= remaining", so no sum
/// can overflow, and nothing is allocated for a count that the remaining bytes could not hold.
class Parser {
 public:
  explicit Parser(File& file) : file_(file), bytes_(file.bytes_) {}
  Status parse();

 private:
  Status header();
  Status metadata_entry(std::uint64_t number);
  Status array(std::string_view key, int depth, Value& value);
  Status tensor_info(std::uint64_t number);
  Status place_tensors();
  Status check_overlaps() const;
  Status read_alignment();

  std::uint64_t remaining() const { return bytes_.size() - position_; }
  template <class T>
  Status number(T& out, std::string_view what);
  Status string(std::string_view& out, std::string_view what);
  Error truncated(std::string_view what, std::uint64_t needed) const;
  Error invalid(std::string_view problem) const;

  File& file_;
  std::span<const std::byte> bytes_;
  std::uint64_t position_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t entry_count_ = 0;
  std::vector<std::uint64_t> offsets_;  // per tensor, within the data section
};

}  // namespace segue::gguf
