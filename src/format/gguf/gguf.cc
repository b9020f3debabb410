// SPDX-License-Identifier: Apache-2.0
// File: opening, look-ups and typed reads. The checks of the format are in parser.cc.
#include "format/gguf/gguf.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "format/gguf/parser.h"

namespace segue::gguf {
namespace {

Error absent(const File& file, std::string_view key, std::string_view allowed) {
  return {ErrorCode::kInvalidFile,
          fmt::format("'{}': metadata has no key {} ({})", file.path(), quote(key), allowed)};
}

Error wrong_type(const File& file, std::string_view key, const Value& value,
                 std::string_view allowed) {
  // A u64 above the largest i64 is an integer by type, so its value is what is wrong.
  const auto number = value.as_double();
  const std::string found = value.type() == ValueType::kU64 && number
                                ? fmt::format("the u64 {:.0f}", *number)
                                : value.describe_type();
  return {ErrorCode::kInvalidFile, fmt::format("'{}': key {} holds {} (allowed: {})", file.path(),
                                               quote(key), found, allowed)};
}

/// The value of `key` as read by `read`, or the error that says why not.
template <class T, class Read>
Result<T> typed(const File& file, std::string_view key, std::string_view allowed, Read read) {
  const Value* value = file.find(key);
  if (value == nullptr) return absent(file, key, allowed);
  std::optional<T> found = read(*value);
  if (!found) return wrong_type(file, key, *value, allowed);
  return *std::move(found);
}

}  // namespace

Result<File> File::open(const std::string& path) {
  Result<core::MappedFile> map = core::MappedFile::open(path);
  if (!map) return map.error();
  File file;
  file.path_ = path;
  file.map_ = std::move(map).value();
  file.bytes_ = {file.map_.data(), static_cast<std::size_t>(file.map_.size())};
  if (Status parsed = Parser(file).parse(); !parsed) return parsed.error();
  return file;
}

Result<File> File::parse(std::span<const std::byte> bytes, std::string name) {
  File file;
  file.path_ = std::move(name);
  file.bytes_ = bytes;
  if (Status parsed = Parser(file).parse(); !parsed) return parsed.error();
  return file;
}

const Value* File::find(std::string_view key) const {
  const auto found = metadata_index_.find(key);
  return found == metadata_index_.end() ? nullptr : &metadata_[found->second].value;
}

const core::TensorView* File::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

void File::release(const core::TensorView& tensor) const {
  if (map_.data() != nullptr) map_.release(tensor.data - map_.data(), tensor.bytes);
}

Result<std::int64_t> File::integer(std::string_view key) const {
  return typed<std::int64_t>(*this, key, "an integer", [](const Value& v) { return v.as_int(); });
}

Result<double> File::number(std::string_view key) const {
  return typed<double>(*this, key, "a float or integer",
                       [](const Value& v) { return v.as_double(); });
}

Result<bool> File::boolean(std::string_view key) const {
  return typed<bool>(*this, key, "a bool", [](const Value& v) { return v.as_bool(); });
}

Result<std::string_view> File::text(std::string_view key) const {
  return typed<std::string_view>(*this, key, "a string",
                                 [](const Value& v) { return v.as_string(); });
}

Result<std::vector<std::int64_t>> File::integers(std::string_view key) const {
  return typed<std::vector<std::int64_t>>(*this, key, "an integer or an array of them",
                                          [](const Value& v) { return v.as_ints(); });
}

Result<std::vector<float>> File::floats(std::string_view key) const {
  return typed<std::vector<float>>(*this, key, "a number or an array of them",
                                   [](const Value& v) { return v.as_floats(); });
}

Result<std::vector<bool>> File::booleans(std::string_view key) const {
  return typed<std::vector<bool>>(*this, key, "a bool or an array of them",
                                  [](const Value& v) { return v.as_bools(); });
}

Result<std::vector<std::string_view>> File::strings(std::string_view key) const {
  return typed<std::vector<std::string_view>>(*this, key, "a string or an array of them",
                                              [](const Value& v) { return v.as_strings(); });
}

Result<std::int64_t> File::integer(std::string_view key, std::int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}

Result<double> File::number(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

Result<bool> File::boolean(std::string_view key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}

Result<std::string_view> File::text(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : fallback;
}

}  // namespace segue::gguf
