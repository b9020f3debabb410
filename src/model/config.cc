// SPDX-License-Identifier: Apache-2.0
// What the readers of both formats share.
#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/file.h"

namespace segue::model {
namespace {

constexpr int kHeadDims[] = {64, 80, 96, 128, 256, 512};

}  // namespace

int Config::kv_layers(int kind) const {
  return static_cast<int>(std::ranges::count_if(
      layers, [kind](const Layer& layer) { return layer.kind == kind && layer.owns_kv; }));
}

int Config::find_kind(std::string_view kind_name) const {
  const auto found = std::ranges::find(kinds, kind_name, &LayerKind::name);
  return found == kinds.end() ? -1 : static_cast<int>(found - kinds.begin());
}

Status assign_layers(Config& config, std::span<const int> kinds, int shared,
                     const std::string& where) {
  const auto count = static_cast<int>(kinds.size());
  const bool all_shared = shared == count;
  std::vector<int> owners(config.kinds.size(), 0);
  for (int i = 0; i < count; ++i) {
    const int kind = kinds[static_cast<std::size_t>(i)];
    int& owned = owners[static_cast<std::size_t>(kind)];
    Layer& layer = config.layers[static_cast<std::size_t>(i)];
    layer.kind = kind;
    layer.owns_kv = i < count - shared;
    if (layer.owns_kv) ++owned;
    layer.kv_layer = owned - 1;
    if (owned == 0 && !all_shared) {
      return Error{
          ErrorCode::kInvalidFile,
          fmt::format("'{}': layer {} ({}) shares the keys of an earlier layer of its "
                      "kind, but the first {} layers have none",
                      where, i, config.kinds[static_cast<std::size_t>(kind)].name, count - shared)};
    }
  }
  std::vector<int> renumbered(config.kinds.size(), -1);
  std::vector<LayerKind> used;
  for (std::size_t kind = 0; kind < config.kinds.size(); ++kind) {
    if (std::ranges::find(kinds, static_cast<int>(kind)) == kinds.end()) continue;
    renumbered[kind] = static_cast<int>(used.size());
    used.push_back(config.kinds[kind]);
  }
  for (Layer& layer : config.layers) {
    layer.kind = renumbered[static_cast<std::size_t>(layer.kind)];
  }
  config.kinds = std::move(used);
  return {};
}

Status check_heads(const Config& config, const std::string& where) {
  for (const LayerKind& kind : config.kinds) {
    if (config.q_heads % kind.kv_heads != 0 || config.q_heads / kind.kv_heads > 16) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("'{}': {} query heads on {} kv heads; supported: a whole number of "
                               "1 to 16 query heads per kv head",
                               where, config.q_heads, kind.kv_heads)};
    }
    if (std::ranges::find(kHeadDims, kind.head_dim) == std::end(kHeadDims)) {
      return Error{ErrorCode::kUnsupported, fmt::format("'{}': head_dim {}; supported: {}", where,
                                                        kind.head_dim, fmt::join(kHeadDims, ", "))};
    }
  }
  return {};
}

Result<Config> read_config(const std::string& path) {
  std::string json = path;
  std::error_code ignored;  // what cannot be looked at is opened as a file, and says why not
  if (std::filesystem::is_directory(path, ignored)) {
    json = path + "/config.json";
  } else if (!path.ends_with(".json")) {
    const Result<gguf::File> file = gguf::File::open(path);
    if (!file.ok()) return file.error();
    return config_from_gguf(*file);
  }
  const Result<std::string> text = core::read_file(json);
  if (!text.ok()) return text.error();
  const Result<core::Json> parsed = core::Json::parse(*text, core::Json::Repeats::kRefused);
  if (!parsed.ok()) {
    return Error{ErrorCode::kInvalidFile, fmt::format("'{}': {}", json, parsed.error().message)};
  }
  return config_from_json(*parsed, json);
}

}  // namespace segue::model
