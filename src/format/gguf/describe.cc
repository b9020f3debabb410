// SPDX-License-Identifier: Apache-2.0
// Abbreviates what is long and prints what is strange as text: never fails.
#include "format/gguf/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace segue::gguf {
namespace {

using core::Json;

constexpr std::int64_t kLongArray = 8;      // longer ones are abbreviated
constexpr std::int64_t kFirstElements = 4;  // to this many elements
constexpr std::size_t kLongString = 200;    // bytes

Json text_json(std::string_view text) {
  if (text.size() <= kLongString) return text;
  std::size_t length = kLongString;
  const auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u;
  };
  for (int back = 0; back < 3 && continues(length); ++back) --length;
  return fmt::format("{}... ({} bytes)", text.substr(0, length), text.size());
}

/// The double that prints as the float does: 0.1, not 0.10000000149011612.
double printable(float value) {
  return std::isfinite(value) ? std::stod(fmt::format("{}", value)) : value;
}

Json elements_json(const Value& value, std::int64_t limit) {
  Json out = Json::array();
  if (const auto ints = value.as_ints(limit)) {
    for (const std::int64_t item : *ints) out.push(item);
  } else if (const auto floats = value.as_floats(limit)) {
    for (const float item : *floats) out.push(printable(item));
  } else if (const auto bools = value.as_bools(limit)) {
    for (const bool item : *bools) out.push(item);
  } else if (const auto strings = value.as_strings(limit)) {
    for (const std::string_view item : *strings) out.push(text_json(item));
  }
  return out;
}

Json value_json(const Value& value) {
  if (value.is_array()) {
    const bool nested = value.element_type() == ValueType::kArray;
    if (!nested && value.count() <= kLongArray) return elements_json(value, value.count());
    Json out;
    out.set("type", value_type_name(value.element_type())).set("count", value.count());
    if (!nested) out.set("first", elements_json(value, kFirstElements));
    return out;
  }
  if (const auto text = value.as_string()) return text_json(*text);
  if (const auto flag = value.as_bool()) return *flag;
  if (const auto whole = value.as_int()) return *whole;
  if (value.type() == ValueType::kF32) return printable(static_cast<float>(*value.as_double()));
  return *value.as_double();
}

struct Total {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;

  void add(const core::TensorView& tensor) {
    ++tensors;
    elements += tensor.elements();
    bytes += tensor.bytes;
  }
  Json json() const {
    return Json().set("tensors", tensors).set("elements", elements).set("bytes", bytes);
  }
};

}  // namespace

Json describe(const File& file) {
  Json::Object metadata;
  metadata.reserve(file.metadata().size());
  for (const Entry& entry : file.metadata()) {
    metadata.emplace_back(std::string(entry.key), value_json(entry.value));
  }

  Json tensors = Json::array();
  Total all;
  std::vector<std::pair<core::DType, Total>> by_type;  // in order of appearance
  for (const core::TensorView& tensor : file.tensors()) {
    Json shape = Json::array();
    for (int i = 0; i < tensor.dims; ++i) shape.push(tensor.shape[static_cast<std::size_t>(i)]);
    tensors.push(Json()
                     .set("name", tensor.name)
                     .set("type", core::dtype_info(tensor.dtype).name)
                     .set("shape", std::move(shape))
                     .set("bytes", tensor.bytes));
    all.add(tensor);
    auto total = std::find_if(by_type.begin(), by_type.end(),
                              [&](const auto& row) { return row.first == tensor.dtype; });
    if (total == by_type.end()) total = by_type.insert(by_type.end(), {tensor.dtype, Total{}});
    total->second.add(tensor);
  }
  Json types = Json::object();
  for (const auto& [type, total] : by_type) types.set(core::dtype_info(type).name, total.json());

  return Json()
      .set("file", file.path())
      .set("bytes", file.file_bytes())
      .set("version", file.version())
      .set("alignment", file.alignment())
      .set("metadata", Json(std::move(metadata)))
      .set("tensors", std::move(tensors))
      .set("totals", all.json().set("types", std::move(types)));
}

}  // namespace segue::gguf
