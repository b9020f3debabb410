// SPDX-License-Identifier: Apache-2.0
// Json on top of nlohmann-json: the only file that includes it.
#include "core/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

namespace segue::core {
namespace {

using Tree = nlohmann::ordered_json;
constexpr std::size_t kMaxDepth = 256;

Tree to_tree(const Json& json) {
  if (const auto* value = json.as_bool()) return *value;
  if (const auto* value = json.as_int()) return *value;
  if (std::uint64_t value = 0; json.as_uint(value)) return value;
  if (const auto* value = json.as_string()) return *value;
  if (const auto* items = json.as_array()) {
    Tree out = Tree::array();
    for (const Json& item : *items) out.push_back(to_tree(item));
    return out;
  }
  if (const auto* members = json.as_object()) {
    Tree out = Tree::object();
    // Names are unique already; operator[] would compare each with all before it.
    auto& ordered = out.get_ref<Tree::object_t&>();
    for (const auto& [key, value] : *members) ordered.emplace_back(key, to_tree(value));
    return out;
  }
  if (double number = 0; json.as_double(number))
    return std::isfinite(number) ? Tree(number) : Tree();
  return nullptr;
}

/// Of members with one name the last value stays, in the place of the first. `repeated` becomes the
/// name of one that occurred twice.
Json::Object without_repeats(Json::Object members, std::optional<std::string>& repeated) {
  Json::Object out;
  out.reserve(members.size());  // so that `place` can view the names in it
  std::unordered_map<std::string_view, std::size_t> place;
  for (auto& [key, value] : members) {
    if (const auto seen = place.find(key); seen != place.end()) {
      repeated = key;
      out[seen->second].second = std::move(value);
    } else {
      out.emplace_back(std::move(key), std::move(value));
      place.emplace(out.back().first, out.size() - 1);
    }
  }
  return out;
}

/// Receives the parser's events and builds a Json without recursion; the parser's own stack is one
/// bit per level.
class Builder {
 public:
  Builder(Json::Repeats repeats, bool one_line) : repeats_(repeats), one_line_(one_line) {}

  Result<Json> take() {
    if (!problem_.empty()) return Error{ErrorCode::kInvalidFile, problem_};
    return std::move(root_);
  }

  bool null() { return add({}); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string& /*text*/) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Tree::binary_t& /*value*/) { return false; }  // not in JSON text
  bool start_object(std::size_t /*members*/) { return open(false); }
  bool start_array(std::size_t /*items*/) { return open(true); }
  bool key(std::string& name) {
    open_.back().members.emplace_back(std::move(name), Json());
    return true;
  }
  bool end_object() {
    std::optional<std::string> repeated;
    const auto finish = [&](Level& level) {
      return Json(without_repeats(std::move(level.members), repeated));
    };
    if (!close(finish)) return false;
    if (repeats_ == Json::Repeats::kLastCounts || !repeated) return true;
    problem_ = fmt::format("JSON has two members named {} in one object", Json(*repeated).dump());
    return false;
  }
  bool end_array() {
    return close([](Level& level) { return Json(std::move(level.items)); });
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const Tree::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    std::string_view text = error.what();
    const auto drop = [&text](std::string_view begin) {
      if (text.starts_with(begin)) text.remove_prefix(begin.size());
    };
    if (const auto tag = text.find("] "); tag != std::string_view::npos)
      text.remove_prefix(tag + 2);
    drop("parse error at ");
    if (one_line_) drop("line 1, ");
    problem_ = fmt::format("not valid JSON: {}", text);
    return false;
  }

 private:
  struct Level {
    bool is_array;
    Json::Array items;
    Json::Object members;
  };

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_array) {
      open_.back().items.push_back(std::move(value));
    } else {
      open_.back().members.back().second = std::move(value);
    }
    return true;
  }
  bool open(bool is_array) {
    if (open_.size() == kMaxDepth) {
      problem_ = fmt::format("JSON nested deeper than {} levels", kMaxDepth);
      return false;
    }
    open_.push_back({is_array, {}, {}});
    return true;
  }
  template <class Finish>
  bool close(Finish finish) {
    Json value = finish(open_.back());
    open_.pop_back();
    return add(std::move(value));
  }

  Json::Repeats repeats_;
  bool one_line_;
  Json root_;
  std::vector<Level> open_;
  std::string problem_;
};

}  // namespace

bool Json::as_double(double& out) const {
  if (const auto* real = std::get_if<double>(&value_)) return out = *real, true;
  if (const auto* whole = as_int()) return out = static_cast<double>(*whole), true;
  if (const auto* large = std::get_if<std::uint64_t>(&value_))
    return out = static_cast<double>(*large), true;
  return false;
}

bool Json::as_uint(std::uint64_t& out) const {
  if (const auto* large = std::get_if<std::uint64_t>(&value_)) return out = *large, true;
  if (const auto* whole = as_int(); whole != nullptr && *whole >= 0)
    return out = static_cast<std::uint64_t>(*whole), true;
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

Result<Json> Json::parse(std::string_view text, Repeats repeats) {
  Builder builder(repeats, text.find('\n') == std::string_view::npos);
  Tree::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace segue::core
