// SPDX-License-Identifier: Apache-2.0
// Reads the built-in shapes.json once; a mistake in it is a bug of this build.
#include "lab/shapes.h"

#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "core/check.h"
#include "core/json.h"
#include "lab/shapes_data.h"

namespace segue::lab {
namespace {

int member(const core::Json& json, std::string_view key, int otherwise) {
  const core::Json* value = json.find(key);
  if (value == nullptr) return otherwise;
  CHECK(value->as_int() != nullptr);
  return static_cast<int>(*value->as_int());
}

std::vector<NamedShape> read_shapes() {
  const Result<core::Json> json = core::Json::parse(kShapesJson);
  CHECK(json.ok());
  const core::Json* list = json->find("shapes");
  CHECK(list != nullptr && list->as_array() != nullptr);
  std::vector<NamedShape> shapes;
  for (const core::Json& entry : *list->as_array()) {
    const core::Json* name = entry.find("name");
    CHECK(name != nullptr && name->as_string() != nullptr);
    NamedShape shape;
    shape.name = *name->as_string();
    shape.shape.q_heads = member(entry, "q_heads", 0);
    shape.shape.kv_heads = member(entry, "kv_heads", 0);
    shape.shape.head_dim = member(entry, "head_dim", 0);
    shape.shape.window = member(entry, "window", 0);
    CHECK(validate(shape.shape).ok());
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

/// "4,1,256" -> {4, 1, 256}; nothing when any part is no whole number.
std::optional<std::vector<int>> numbers(std::string_view text) {
  std::vector<int> values;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    int value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
    values.push_back(value);
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

const std::vector<NamedShape>& named_shapes() {
  static const std::vector<NamedShape> shapes = read_shapes();
  return shapes;
}

Result<NamedShape> parse_shape(std::string_view text) {
  for (const NamedShape& shape : named_shapes()) {
    if (shape.name == text) return shape;
  }
  const std::optional<std::vector<int>> values = numbers(text);
  if (!values || values->size() < 3 || values->size() > 4) {
    std::string names;
    for (const NamedShape& shape : named_shapes())
      names += fmt::format("{}{}", names.empty() ? "" : ", ", shape.name);
    return Error{ErrorCode::kUsage,
                 fmt::format("shape '{}' is neither q_heads,kv_heads,head_dim[,window] nor one of "
                             "the known names: {}",
                             text, names)};
  }
  NamedShape shape;
  shape.name = text;
  shape.shape.q_heads = (*values)[0];
  shape.shape.kv_heads = (*values)[1];
  shape.shape.head_dim = (*values)[2];
  shape.shape.window = values->size() == 4 ? (*values)[3] : 0;
  if (Status status = validate(shape.shape); !status.ok()) return status.error();
  return shape;
}

}  // namespace segue::lab
