// SPDX-License-Identifier: Apache-2.0
// GGUF v2 and v3 writer: small files for tests, fuzz seeds and synthetic models. Not a converter:
// it holds the whole file in memory and its misuse is a bug, not an error.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "format/gguf/gguf.h"
#include "segue/error.h"

namespace segue::gguf {

class Writer {
 public:
  explicit Writer(std::uint32_t version = 3) : version_(version) {}

  /// Metadata; the stored type is the type of the argument: set("llama.block_count",
  /// std::uint32_t{2}). Takes the place of an earlier value of the key.
  template <class T>
  requires std::is_arithmetic_v<T>
  void set(std::string_view key, T value) { put(key, type_of<T>(), encode(value)); }
  template <std::convertible_to<std::string_view> T>
  void set(std::string_view key, const T& text) {
    put(key, ValueType::kString, encode(std::string_view(text)));
  }
  template <class T>
  void set(std::string_view key, const std::vector<T>& items) {
    std::string payload = array_head(type_of<T>(), items.size());
    for (const auto& item : items) {
      if constexpr (std::is_arithmetic_v<T>) {
        payload += encode(static_cast<T>(item));
      } else {
        payload += encode(std::string_view(item));
      }
    }
    put(key, ValueType::kArray, payload);
  }
  /// A value whose bytes the caller lays out: nested arrays, broken values, repeated keys.
  void set_raw(std::string_view key, ValueType type, std::string_view payload);

  /// Copies `data`, whose size must be that of `shape` (shape[0] contiguous, a multiple of the
  /// block).
  void tensor(std::string_view name, core::DType type, const std::vector<std::int64_t>& shape,
              std::span<const std::byte> data);
  void tensor(std::string_view name, const std::vector<std::int64_t>& shape,
              std::span<const float> data);

  /// The file. A general.alignment that was set (u32) is obeyed.
  std::vector<std::byte> bytes() const;
  Status write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    core::DType type;
    std::vector<std::int64_t> shape;
    std::string data;
  };

  template <class T>
  static constexpr ValueType type_of() {
    if constexpr (std::is_same_v<T, bool>)
      return ValueType::kBool;
    else if constexpr (std::is_same_v<T, float>)
      return ValueType::kF32;
    else if constexpr (std::is_same_v<T, double>)
      return ValueType::kF64;
    else if constexpr (!std::is_arithmetic_v<T>)
      return ValueType::kString;
    else if constexpr (sizeof(T) == 1)
      return std::is_signed_v<T> ? ValueType::kI8 : ValueType::kU8;
    else if constexpr (sizeof(T) == 2)
      return std::is_signed_v<T> ? ValueType::kI16 : ValueType::kU16;
    else if constexpr (sizeof(T) == 4)
      return std::is_signed_v<T> ? ValueType::kI32 : ValueType::kU32;
    else
      return std::is_signed_v<T> ? ValueType::kI64 : ValueType::kU64;
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  static std::string encode(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static std::string encode(std::string_view text);
  void put(std::string_view key, ValueType type, std::string_view payload);
  static std::string array_head(ValueType element, std::size_t count);

  std::uint32_t version_;
  struct Entry {
    std::string key;
    ValueType type;
    std::string payload;  // encoded
  };
  std::vector<Entry> entries_;
  std::uint32_t alignment_ = 32;
  std::vector<Tensor> tensors_;
};

}  // namespace segue::gguf
