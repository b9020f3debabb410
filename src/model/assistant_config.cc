// SPDX-License-Identifier: Apache-2.0
// What an assistant adds to the config of a model, in both formats, then the comparison with a
// target.
#include "model/assistant_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "attention/plan.h"
#include "core/file.h"

namespace segue::model {
namespace {

constexpr std::int64_t kMaxDim = 1 << 20;

Status check(const AssistantConfig& config) {
  const auto refuse = [&](std::string what) {
    return Error{ErrorCode::kInvalidFile, fmt::format("'{}': {}", config.path, what)};
  };
  if (std::ranges::any_of(config.text.layers, &Layer::owns_kv)) {
    return refuse(
        "layers of an assistant have no keys and values of their own; these have "
        "(num_kv_shared_layers must be the number of layers)");
  }
  if (config.text.per_layer_input > 0 || config.text.experts.count > 0)
    return refuse("per-layer embeddings and experts are not supported in assistants");
  if (config.text.final_softcap != 0) {
    return refuse(fmt::format("final_logit_softcapping is {}; supported in assistants: none",
                              config.text.final_softcap));
  }
  if (config.centroids > 0 && config.text.vocab % config.centroids != 0) {
    return refuse(fmt::format("{} tokens in {} centroids: every centroid must have equally many",
                              config.text.vocab, config.centroids));
  }
  if (config.centroid_top > config.centroids) {
    return refuse(
        fmt::format("the head looks at {} of {} centroids", config.centroid_top, config.centroids));
  }
  return {};
}

/// A whole number of at least 1 at `key`, or `fallback` (0: the key must be there).
Result<std::int64_t> positive(const core::Json& json, const std::string& path, std::string_view key,
                              std::int64_t fallback) {
  const core::Json* value = json.find(key);
  if ((value == nullptr || value->is_null()) && fallback > 0) return fallback;
  const std::int64_t* number = value == nullptr ? nullptr : value->as_int();
  if (number != nullptr && *number >= 1 && *number <= kMaxDim) return *number;
  return Error{ErrorCode::kInvalidFile,
               fmt::format("'{}': {} is {}; allowed: 1 to {}", path, key,
                           value == nullptr ? "missing" : value->dump(), kMaxDim)};
}

}  // namespace

Result<AssistantConfig> assistant_from_json(const core::Json& json, const std::string& path) {
  const core::Json* type = json.find("model_type");
  const std::string* name = type == nullptr ? nullptr : type->as_string();
  if (name == nullptr || (*name != "gemma4_assistant" && *name != "gemma4_unified_assistant")) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': model_type is {}; supported for assistants: gemma4_assistant, "
                             "gemma4_unified_assistant",
                             path, name == nullptr ? "missing" : *name)};
  }
  const core::Json* text = json.find("text_config");
  if (text == nullptr || !text->is_object())
    return Error{ErrorCode::kInvalidFile, fmt::format("'{}': text_config is missing", path)};
  AssistantConfig config;
  config.path = path;
  Result<Config> layers = config_from_json(*text, path);
  if (!layers.ok()) return layers.error();
  config.text = std::move(layers).value();
  const Result<std::int64_t> backbone = positive(json, path, "backbone_hidden_size", 0);
  if (!backbone.ok()) return backbone.error();
  config.backbone = *backbone;
  const core::Json* ordered = json.find("use_ordered_embeddings");
  if (ordered != nullptr && !ordered->is_null() && ordered->as_bool() == nullptr) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': use_ordered_embeddings is {}; allowed: true, false", path,
                             ordered->dump())};
  }
  if (ordered != nullptr && ordered->as_bool() != nullptr && *ordered->as_bool()) {
    const Result<std::int64_t> count = positive(json, path, "num_centroids", 2048);
    if (!count.ok()) return count.error();
    const Result<std::int64_t> top = positive(json, path, "centroid_intermediate_top_k", 32);
    if (!top.ok()) return top.error();
    config.centroids = *count;
    config.centroid_top = static_cast<int>(*top);
  }
  if (Status status = check(config); !status.ok()) return status.error();
  return config;
}

Result<AssistantConfig> assistant_from_gguf(const gguf::File& file) {
  AssistantConfig config;
  config.path = file.path();
  Result<Config> layers = config_from_gguf(file);
  if (!layers.ok()) return layers.error();
  config.text = std::move(layers).value();
  if (config.text.architecture != "gemma4-assistant") {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': general.architecture is '{}'; supported for assistants: "
                             "gemma4-assistant",
                             file.path(), config.text.architecture)};
  }
  const auto key = [&](std::string_view name) { return fmt::format("gemma4-assistant.{}", name); };
  const auto number = [&](std::string_view name) -> Result<std::int64_t> {
    const Result<std::int64_t> value = file.integer(key(name));
    if (!value.ok() || (*value >= 1 && *value <= kMaxDim)) return value;
    return Error{ErrorCode::kInvalidFile, fmt::format("'{}': {} is {}; allowed: 1 to {}",
                                                      file.path(), key(name), *value, kMaxDim)};
  };
  const Result<std::int64_t> backbone = number("embedding_length_out");
  if (!backbone.ok()) return backbone.error();
  config.backbone = *backbone;
  const Result<bool> ordered = file.boolean(key("use_ordered_embeddings"), false);
  if (!ordered.ok()) return ordered.error();
  if (*ordered) {
    const Result<std::int64_t> count = number("n_centroids");
    if (!count.ok()) return count.error();
    const Result<std::int64_t> top = number("centroid_top_k");
    if (!top.ok()) return top.error();
    config.centroids = *count;
    config.centroid_top = static_cast<int>(*top);
  }
  if (Status status = check(config); !status.ok()) return status.error();
  return config;
}

Result<AssistantConfig> read_assistant_config(const std::string& path) {
  std::error_code ignored;
  const bool json_file = path.ends_with(".json");
  if (!json_file && !std::filesystem::is_directory(path, ignored)) {
    const Result<gguf::File> file = gguf::File::open(path);
    if (!file.ok()) return file.error();
    return assistant_from_gguf(*file);
  }
  const std::string config_path = json_file ? path : path + "/config.json";
  const Result<std::string> text = core::read_file(config_path);
  if (!text.ok()) return text.error();
  const Result<core::Json> json = core::Json::parse(*text, core::Json::Repeats::kRefused);
  if (!json.ok()) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': {}", config_path, json.error().message)};
  }
  Result<AssistantConfig> config = assistant_from_json(*json, config_path);
  if (config.ok()) config->path = path;
  return config;
}

Result<std::vector<int>> fit(const AssistantConfig& config, const Config& model) {
  const auto refuse = [&](std::string_view what, std::int64_t made_for, std::int64_t found) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("assistant '{}' was made for a target with {} {}; the model '{}' has "
                             "{}",
                             config.path, what, made_for, model.name, found)};
  };
  if (config.backbone != model.hidden)
    return refuse("a hidden size of", config.backbone, model.hidden);
  if (config.text.vocab != model.vocab)
    return refuse("a vocabulary of", config.text.vocab, model.vocab);
  std::vector<int> kinds;
  for (const LayerKind& reads : config.text.kinds) {
    const int kind = model.find_kind(reads.name);
    if (kind < 0) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("assistant '{}' reads K and V of {} layers; the model '{}' ({}) has "
                               "none",
                               config.path, reads.name, model.name, model.architecture)};
    }
    const LayerKind& found = model.kinds[static_cast<std::size_t>(kind)];
    const auto what = [&](std::string_view of) {
      return fmt::format("{} layers of {}", reads.name, of);
    };
    if (reads.head_dim != found.head_dim)
      return refuse(what("head_dim"), reads.head_dim, found.head_dim);
    if (reads.kv_heads != found.kv_heads)
      return refuse(what("kv heads"), reads.kv_heads, found.kv_heads);
    if (reads.window > found.window) return refuse(what("window"), reads.window, found.window);
    kinds.push_back(kind);
  }
  return kinds;
}

Status check_place(const Place& place, const AssistantConfig& config) {
  if (place.device == Device::kCpu) return {};
  const std::string name = fmt::format("assistant '{}'", config.path);
  if (Status status = check_widths(place, config.text, name); !status.ok()) return status;
  for (int kind = 0; kind < static_cast<int>(config.text.kinds.size()); ++kind) {
    constexpr int kAnyPage = 64;
    const attention::SequenceRows row{0, 1, false};
    attention::PlanInput input;
    input.shape = attention_shape(place, config.text, kind, KvType::kBF16, kAnyPage);
    input.sequences = std::span(&row, 1);
    attention::Plan plan;
    const attention::DeviceFacts facts = device_facts(place, input.shape, nullptr);
    if (Status status = attention::plan(input, facts, plan); !status.ok())
      return Error{status.error().code, fmt::format("{}: {}", name, status.error().message)};
  }
  return {};
}

}  // namespace segue::model
