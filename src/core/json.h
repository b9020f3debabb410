// SPDX-License-Identifier: Apache-2.0
// A JSON value: built by reports and traces, read from requests and metadata. The parser and
// printer behind it are nlohmann-json (json.cc), kept out of every other translation unit.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "segue/error.h"

namespace segue::core {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in insertion order

  Json() = default;                    // null
  Json(bool value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  template <std::integral T>
  Json(T value) {  // NOLINT(google-explicit-constructor)
    const auto whole = static_cast<std::int64_t>(value);
    if (value > 0 && whole < 0) {
      value_ = static_cast<std::uint64_t>(value);
    } else {
      value_ = whole;
    }
  }
  template <std::floating_point T>
  Json(T value) : value_(static_cast<double>(value)) {}  // NOLINT(google-explicit-constructor)
  Json(std::string value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Json(std::string_view value)
      : value_(std::string(value)) {}                      // NOLINT(google-explicit-constructor)
  Json(const char* value) : value_(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  Json(Array value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  /// The caller sees to it that names are unique.
  explicit Json(Object value) : value_(std::move(value)) {}
  template <class T>
  requires(!std::same_as<T, Json>) Json(const std::vector<T>& values)
      : value_(Array(values.begin(), values.end())) {}  // NOLINT(google-explicit-constructor)

  static Json object() {
    Json json;
    json.value_ = Object{};
    return json;
  }
  static Json array() { return Json(Array{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }

  /// Typed reads: null pointer when the value is of another type. `as_double` also reads integers,
  /// `as_uint` any integer from 0 to 2^64 - 1 (as_int does not see those above 2^63 - 1).
  const bool* as_bool() const { return std::get_if<bool>(&value_); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&value_); }
  const std::string* as_string() const { return std::get_if<std::string>(&value_); }
  const Array* as_array() const { return std::get_if<Array>(&value_); }
  const Object* as_object() const { return std::get_if<Object>(&value_); }
  bool as_double(double& out) const;
  bool as_uint(std::uint64_t& out) const;

  /// Member of an object; null pointer when absent or when this is no object.
  const Json* find(std::string_view key) const;

  /// Adds or replaces a member; null becomes an object first. Looks at every member: for thousands,
  /// build an Object.
  Json& set(std::string_view key, Json value);
  /// Appends to an array; null becomes an array first.
  Json& push(Json value);

  /// indent < 0: one line. Non-finite numbers print as null; bytes that are not UTF-8 as U+FFFD.
  std::string dump(int indent = -1) const;

  /// What two members of one name in one object mean.
  enum class Repeats : std::uint8_t { kLastCounts /* in the place of the first */, kRefused };

  /// The message has line and column, of one line only the column, or the repeated name. Nesting is
  /// limited to 256 levels.
  static Result<Json> parse(std::string_view text, Repeats repeats = Repeats::kLastCounts);

 private:
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_;
};

}  // namespace segue::core
