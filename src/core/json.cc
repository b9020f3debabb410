// SPDX-License-Identifier: Apache-2.0
// Json on top of nlohmann-json: the only file that includes it.
#include "core/json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace segue::core {
namespace {

using Tree = nlohmann::ordered_json;
constexpr int kMaxDepth = 256;

Tree to_tree(const Json& json) {
  if (const auto* value = json.as_bool()) return *value;
  if (const auto* value = json.as_int()) return *value;
  if (const auto* value = json.as_string()) return *value;
  if (const auto* items = json.as_array()) {
    Tree out = Tree::array();
    for (const Json& item : *items) out.push_back(to_tree(item));
    return out;
  }
  if (const auto* members = json.as_object()) {
    Tree out = Tree::object();
    for (const auto& [key, value] : *members) out[key] = to_tree(value);
    return out;
  }
  if (double number = 0; json.as_double(number)) return std::isfinite(number) ? Tree(number) : Tree();
  return nullptr;
}

Json from_tree(const Tree& tree) {
  switch (tree.type()) {
    case Tree::value_t::boolean: return tree.get<bool>();
    case Tree::value_t::number_integer: return tree.get<std::int64_t>();
    case Tree::value_t::number_unsigned: {
      const auto value = tree.get<std::uint64_t>();
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return static_cast<double>(value);
      }
      return static_cast<std::int64_t>(value);
    }
    case Tree::value_t::number_float: return tree.get<double>();
    case Tree::value_t::string: return tree.get<std::string>();
    case Tree::value_t::array: {
      Json out = Json::array();
      for (const Tree& item : tree) out.push(from_tree(item));
      return out;
    }
    case Tree::value_t::object: {
      Json out = Json::object();
      for (const auto& [key, value] : tree.items()) out.set(key, from_tree(value));
      return out;
    }
    default: return {};
  }
}

/// Refuses deep nesting before the recursive parser sees it.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

bool Json::as_double(double& out) const {
  if (const auto* real = std::get_if<double>(&value_)) return out = *real, true;
  if (const auto* whole = as_int()) return out = static_cast<double>(*whole), true;
  return false;
}

const Json* Json::find(std::string_view key) const {
  if (const Object* members = as_object()) {
    for (const auto& [name, value] : *members) {
      if (name == key) return &value;
    }
  }
  return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  auto& members = std::get<Object>(value_);
  for (auto& [name, old] : members) {
    if (name == key) return old = std::move(value), *this;
  }
  members.emplace_back(std::string(key), std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  if (is_null()) value_ = Array{};
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

std::string Json::dump(int indent) const {
  return to_tree(*this).dump(indent, ' ', false, Tree::error_handler_t::replace);
}

Result<Json> Json::parse(std::string_view text) {
  if (too_deep(text)) {
    return Error{ErrorCode::kInvalidFile, fmt::format("JSON nested deeper than {} levels", kMaxDepth)};
  }
  try {
    return from_tree(Tree::parse(text));
  } catch (const Tree::exception& problem) {
    return Error{ErrorCode::kInvalidFile, fmt::format("not valid JSON: {}", problem.what())};
  }
}

}  // namespace segue::core
