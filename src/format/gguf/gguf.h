// SPDX-License-Identifier: Apache-2.0
// GGUF v2 and v3 reader: a file becomes typed metadata and named tensor views. It knows nothing
// about models. Every count, length and offset is checked before it is used, so an accepted file
// can be read without further checks.
//
// All numbers are little-endian:
//   1. "GGUF", u32 version, u64 tensor count, u64 metadata count
//   2. metadata: string key, u32 value type, value; string = u64 length + bytes, array = u32 type,
//   u64 count, elements
//   3. tensor infos: string name, u32 dims, u64 dim[dims] (dim[0] contiguous), u32 tensor type, u64
//   offset
//   4. padding to a multiple of general.alignment (default 32), then the data section; offsets are
//   relative to it
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/file.h"
#include "core/tensor.h"
#include "segue/error.h"

namespace segue::gguf {

/// Numbered as in the file.
enum class ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// "u8", "string", ...
std::string_view value_type_name(ValueType type);

/// One metadata value, as stored: a view into the file. Reads of another type than the stored one
/// give nullopt.
class Value {
 public:
  ValueType type() const { return type_; }
  bool is_array() const { return type_ == ValueType::kArray; }
  ValueType element_type() const { return element_type_; }  // of an array; type() of a scalar
  std::int64_t count() const { return count_; }             // elements of an array; 1 for a scalar

  /// Any integer type; nullopt also for a u64 above the largest i64.
  std::optional<std::int64_t> as_int() const;
  /// Any float or integer type.
  std::optional<double> as_double() const;
  std::optional<bool> as_bool() const;
  std::optional<std::string_view> as_string() const;  // bytes as stored, not necessarily UTF-8

  /// The first `limit` elements of an array; a scalar counts as one element.
  std::optional<std::vector<std::int64_t>> as_ints(std::int64_t limit = INT64_MAX) const;
  std::optional<std::vector<float>> as_floats(std::int64_t limit = INT64_MAX) const;
  std::optional<std::vector<bool>> as_bools(std::int64_t limit = INT64_MAX) const;
  std::optional<std::vector<std::string_view>> as_strings(std::int64_t limit = INT64_MAX) const;

  /// "u32", "array of 12 strings": for messages.
  std::string describe_type() const;

 private:
  friend class Parser;
  ValueType type_ = ValueType::kU8;
  ValueType element_type_ = ValueType::kU8;
  std::int64_t count_ = 1;
  const std::byte* data_ = nullptr;  // first element; a string scalar starts with its length
};

struct Entry {
  std::string_view key;
  Value value;
};

/// An opened file. Movable; views (strings, tensors) stay valid until it is destroyed.
class File {
 public:
  /// Maps `path` and checks it. kNotFound, kIo, kInvalidFile, or kUnsupported for versions and
  /// tensor types that are well-formed but not read here.
  static Result<File> open(const std::string& path);
  /// The same checks on bytes in memory, which must outlive the File. `name` stands for the path in
  /// messages. Tensor data is aligned in memory only as far as `bytes` is.
  static Result<File> parse(std::span<const std::byte> bytes, std::string name);

  std::uint32_t version() const { return version_; }
  std::int64_t alignment() const { return alignment_; }
  std::int64_t data_offset() const { return data_offset_; }
  std::int64_t file_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }
  const std::string& path() const { return path_; }

  /// Metadata in file order.
  const std::vector<Entry>& metadata() const { return metadata_; }
  const Value* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  /// Typed reads. An absent key or another type is kInvalidFile; the message has file, key, what
  /// was found and what is allowed. `integers`, `floats`, `booleans` and `strings` read a scalar as
  /// one element.
  Result<std::int64_t> integer(std::string_view key) const;
  Result<double> number(std::string_view key) const;  // floats and integers
  Result<bool> boolean(std::string_view key) const;
  Result<std::string_view> text(std::string_view key) const;
  Result<std::vector<std::int64_t>> integers(std::string_view key) const;
  Result<std::vector<float>> floats(std::string_view key) const;
  Result<std::vector<bool>> booleans(std::string_view key) const;
  Result<std::vector<std::string_view>> strings(std::string_view key) const;

  /// As above, but an absent key gives `fallback`. A key of another type is still an error.
  Result<std::int64_t> integer(std::string_view key, std::int64_t fallback) const;
  Result<double> number(std::string_view key, double fallback) const;
  Result<bool> boolean(std::string_view key, bool fallback) const;
  Result<std::string_view> text(std::string_view key, std::string_view fallback) const;

  /// Tensors in file order; names are unique, data lies inside the file, tensors do not overlap.
  const std::vector<core::TensorView>& tensors() const { return tensors_; }
  const core::TensorView* find_tensor(std::string_view name) const;

  /// Gives back the resident pages of a tensor that was copied elsewhere; it stays readable.
  void release(const core::TensorView& tensor) const;

 private:
  friend class Parser;
  using Index = std::unordered_map<std::string_view, std::size_t>;  // keys are views of the file

  std::string path_;
  core::MappedFile map_;  // empty after parse()
  std::span<const std::byte> bytes_;
  std::uint32_t version_ = 0;
  std::int64_t alignment_ = 32;
  std::int64_t data_offset_ = 0;
  std::vector<Entry> metadata_;
  std::vector<core::TensorView> tensors_;
  Index metadata_index_;
  Index tensor_index_;
};

}  // namespace segue::gguf
