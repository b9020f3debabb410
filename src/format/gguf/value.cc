// SPDX-License-Identifier: Apache-2.0
// Typed reads of metadata values. The parser has checked that every element lies inside the file.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "format/gguf/parser.h"

namespace segue::gguf {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are read as they lie in the file");

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

std::optional<std::int64_t> load_int(ValueType type, const std::byte* from) {
  switch (type) {
    case ValueType::kU8: return load<std::uint8_t>(from);
    case ValueType::kI8: return load<std::int8_t>(from);
    case ValueType::kU16: return load<std::uint16_t>(from);
    case ValueType::kI16: return load<std::int16_t>(from);
    case ValueType::kU32: return load<std::uint32_t>(from);
    case ValueType::kI32: return load<std::int32_t>(from);
    case ValueType::kI64: return load<std::int64_t>(from);
    case ValueType::kU64: {
      const auto value = load<std::uint64_t>(from);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default: return std::nullopt;
  }
}

std::optional<double> load_double(ValueType type, const std::byte* from) {
  if (type == ValueType::kF32) return load<float>(from);
  if (type == ValueType::kF64) return load<double>(from);
  if (type == ValueType::kU64) return static_cast<double>(load<std::uint64_t>(from));
  if (const auto whole = load_int(type, from)) return static_cast<double>(*whole);
  return std::nullopt;
}

/// `load_one` of the first min(count, limit) elements; nullopt when one of them is of another type.
template <class T, class LoadOne>
std::optional<std::vector<T>> load_array(const Value& value, const std::byte* from,
                                         std::int64_t limit, LoadOne load_one) {
  const std::int64_t count = std::min(value.count(), limit);
  const std::int64_t stride = least_element_bytes(value.element_type());
  std::vector<T> out;
  out.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto item = load_one(value.element_type(), from + i * stride);
    if (!item) return std::nullopt;
    out.push_back(static_cast<T>(*item));
  }
  return out;
}

bool is_number(ValueType type) {
  return type != ValueType::kBool && type != ValueType::kString && type != ValueType::kArray;
}

bool is_integer(ValueType type) {
  return is_number(type) && type != ValueType::kF32 && type != ValueType::kF64;
}

}  // namespace

std::string_view value_type_name(ValueType type) {
  switch (type) {
    case ValueType::kU8: return "u8";
    case ValueType::kI8: return "i8";
    case ValueType::kU16: return "u16";
    case ValueType::kI16: return "i16";
    case ValueType::kU32: return "u32";
    case ValueType::kI32: return "i32";
    case ValueType::kF32: return "f32";
    case ValueType::kBool: return "bool";
    case ValueType::kString: return "string";
    case ValueType::kArray: return "array";
    case ValueType::kU64: return "u64";
    case ValueType::kI64: return "i64";
    case ValueType::kF64: return "f64";
  }
  return "?";
}

std::optional<std::int64_t> Value::as_int() const { return load_int(type_, data_); }

std::optional<double> Value::as_double() const { return load_double(type_, data_); }

std::optional<bool> Value::as_bool() const {
  if (type_ != ValueType::kBool) return std::nullopt;
  return *data_ != std::byte{0};
}

std::optional<std::string_view> Value::as_string() const {
  if (type_ != ValueType::kString) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(data_) + 8, load<std::uint64_t>(data_));
}

std::optional<std::vector<std::int64_t>> Value::as_ints(std::int64_t limit) const {
  if (!is_integer(element_type_)) return std::nullopt;
  return load_array<std::int64_t>(*this, data_, limit, load_int);
}

std::optional<std::vector<float>> Value::as_floats(std::int64_t limit) const {
  if (!is_number(element_type_)) return std::nullopt;
  return load_array<float>(*this, data_, limit, load_double);
}

std::optional<std::vector<bool>> Value::as_bools(std::int64_t limit) const {
  if (element_type_ != ValueType::kBool) return std::nullopt;
  return load_array<bool>(*this, data_, limit, [](ValueType, const std::byte* from) {
    return std::optional<bool>(*from != std::byte{0});
  });
}

std::optional<std::vector<std::string_view>> Value::as_strings(std::int64_t limit) const {
  if (element_type_ != ValueType::kString) return std::nullopt;
  const std::int64_t count = std::min(count_, limit);
  std::vector<std::string_view> out;
  out.reserve(static_cast<std::size_t>(count));
  const std::byte* from = data_;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto length = load<std::uint64_t>(from);
    out.emplace_back(reinterpret_cast<const char*>(from) + 8, length);
    from += 8 + length;
  }
  return out;
}

std::string Value::describe_type() const {
  if (!is_array()) return std::string(value_type_name(type_));
  return fmt::format("array of {} {} values", count_, value_type_name(element_type_));
}

}  // namespace segue::gguf
