// SPDX-License-Identifier: Apache-2.0
// A Hugging Face config.json of Gemma 4 to Config. Keys that a file leaves out have the defaults of
// the published classes; what the forward pass does not do is refused by name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "format/safetensors/packed.h"
#include "model/config.h"

namespace segue::model {
namespace {

using core::Json;

constexpr std::int64_t kMaxDim = 1 << 20;

/// Reads keys of one object; null counts as absent. The first problem is kept and every later read
/// returns its fallback.
class Reader {
 public:
  Reader(const Json& json, const std::string& where, std::string prefix = {})
      : json_(json), where_(where), prefix_(std::move(prefix)) {}

  const Json* find(std::string_view key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::int64_t fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    const std::int64_t* number = value->as_int();
    if (number != nullptr && *number >= low && *number <= high) return *number;
    return wrong(key, *value, fmt::format("integers from {} to {}", low, high)), fallback;
  }
  double number(std::string_view key, double low, double high, double fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    double found = 0;
    if (value->as_double(found) && found >= low && found <= high) return found;
    return wrong(key, *value, fmt::format("numbers from {} to {}", low, high)), fallback;
  }
  bool boolean(std::string_view key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (value->as_bool() != nullptr) return *value->as_bool();
    return wrong(key, *value, "true, false"), fallback;
  }
  std::string text(std::string_view key, std::string_view fallback) {
    const Json* value = find(key);
    if (value == nullptr) return std::string(fallback);
    if (value->as_string() != nullptr) return *value->as_string();
    return wrong(key, *value, "a string"), std::string(fallback);
  }
  /// The object at the key; null where it is absent.
  const Json* object(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr || value->is_object()) return value;
    return wrong(key, *value, "an object"), nullptr;
  }
  /// The key, where it is present, must have this value.
  void require(std::string_view key, const Json& needed) {
    const Json* value = find(key);
    if (value != nullptr && value->dump() != needed.dump()) wrong(key, *value, needed.dump());
  }
  void wrong(std::string_view key, const Json& found, std::string_view allowed) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}{} is {}; supported: {}", prefix_, key, found.dump(), allowed));
  }
  void fail(ErrorCode code, const std::string& message) {
    if (!problem_) problem_ = Error{code, fmt::format("'{}': {}", where_, message)};
  }
  void adopt(const Reader& other) {
    if (!problem_) problem_ = other.problem_;
  }
  const std::optional<Error>& problem() const { return problem_; }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  const std::string& where_;
  std::string prefix_;
  std::optional<Error> problem_;
};

constexpr std::array<std::string_view, 2> kTypeNames{"sliding_attention", "full_attention"};

/// [layers] 0 sliding, 1 global. The last layer is always global, as the published class has it.
std::vector<int> layer_kinds(Reader& reader, int layers) {
  std::vector<int> kinds;
  const Json* types = reader.find("layer_types");
  if (types == nullptr) {
    for (int layer = 0; layer < layers; ++layer) kinds.push_back((layer + 1) % 6 == 0 ? 1 : 0);
    kinds.back() = 1;
    return kinds;
  }
  const Json::Array* names = types->as_array();
  if (names == nullptr || std::ssize(*names) != layers) {
    reader.fail(ErrorCode::kInvalidFile,
                fmt::format("layer_types has {} entries; num_hidden_layers is {}",
                            names == nullptr ? 0 : names->size(), layers));
    return std::vector<int>(static_cast<std::size_t>(layers), 1);
  }
  for (const Json& name : *names) {
    const std::string* text = name.as_string();
    if (text == nullptr || (*text != kTypeNames[0] && *text != kTypeNames[1])) {
      reader.wrong("layer_types[]", name, fmt::format("{}", fmt::join(kTypeNames, ", ")));
    }
    kinds.push_back(text != nullptr && *text == kTypeNames[0] ? 0 : 1);
  }
  kinds.back() = 1;
  return kinds;
}

/// The rope of one kind of layer; null: that of the published class.
const Json* rope_of(Reader& reader, std::string_view type_name) {
  const Json* all = reader.object("rope_parameters");
  if (all == nullptr) return nullptr;
  for (const auto& [name, value] : *all->as_object()) {
    if (std::ranges::find(kTypeNames, name) != kTypeNames.end()) continue;
    reader.fail(ErrorCode::kUnsupported,
                fmt::format("rope_parameters.{} is {}; supported in rope_parameters: {}", name,
                            value.dump(), fmt::join(kTypeNames, ", ")));
  }
  Reader kinds(*all, reader.where(), "rope_parameters.");
  const Json* rope = kinds.object(type_name);
  reader.adopt(kinds);
  return rope;
}

void read_rope(Reader& reader, std::string_view type_name, bool proportional, LayerKind& kind) {
  kind.rope_theta = proportional ? 1e6 : 1e4;
  double part = proportional ? 0.25 : 1.0;
  const Json* json = rope_of(reader, type_name);
  if (json != nullptr) {
    Reader rope(*json, reader.where(), fmt::format("rope_parameters.{}.", type_name));
    const std::string type = rope.text("rope_type", "default");
    kind.rope_theta = rope.number("rope_theta", 1, 1e12, kind.rope_theta);
    kind.rope_factor = rope.number("factor", 1e-3, 1e6, 1.0);
    part = rope.number("partial_rotary_factor", 0, 1, 1.0);
    if (type == "default") {
      part = 1.0;
      kind.rope_factor = 1.0;
    } else if (type == "linear") {
      part = 1.0;
    } else if (type != "proportional") {
      rope.wrong("rope_type", Json(type), "default, linear, proportional");
    }
    reader.adopt(rope);
  }
  kind.rotary_span = kind.head_dim;
  kind.rotary = 2 * static_cast<int>(part * kind.head_dim / 2);
}

/// Newer files name the layers that differ instead of the global sizes: {"5": {"head_dim": 512}}.
/// All layers of a kind must agree.
void read_overrides(Reader& reader, const Json& overrides, std::span<const int> kinds,
                    std::array<LayerKind, 2>& facts) {
  if (!overrides.is_object()) return reader.wrong("per_layer_config", overrides, "an object");
  const std::array<LayerKind, 2> base = facts;
  std::array<bool, 2> seen{};
  for (std::size_t layer = 0; layer < kinds.size(); ++layer) {
    const auto kind = static_cast<std::size_t>(kinds[layer]);
    int heads = base[kind].kv_heads;
    int dim = base[kind].head_dim;
    const std::string name = std::to_string(layer);
    if (const Json* own = overrides.find(name); own != nullptr) {
      Reader entry(*own, reader.where(), fmt::format("per_layer_config.{}.", name));
      heads = static_cast<int>(entry.integer("num_key_value_heads", 1, 1024, heads));
      dim = static_cast<int>(entry.integer("head_dim", 1, 4096, dim));
      reader.adopt(entry);
    }
    if (seen[kind] && (heads != facts[kind].kv_heads || dim != facts[kind].head_dim)) {
      reader.fail(ErrorCode::kUnsupported,
                  fmt::format("per_layer_config gives layer {} {} kv heads of {}, earlier layers "
                              "of its kind {} of {}",
                              layer, heads, dim, facts[kind].kv_heads, facts[kind].head_dim));
    }
    seen[kind] = true;
    facts[kind].kv_heads = heads;
    facts[kind].head_dim = dim;
  }
}

void read_kinds(Reader& reader, std::span<const int> kinds, Config& config) {
  const bool unified = config.architecture == "gemma4_unified_text";
  std::array<LayerKind, 2> facts;
  facts[0].name = "sliding";
  facts[1].name = "global";
  facts[0].window =
      static_cast<int>(reader.integer("sliding_window", 1, 1 << 24, unified ? 1024 : 512));
  const bool k_eq_v = reader.boolean("attention_k_eq_v", false);
  facts[1].v_from_k = k_eq_v;
  const auto heads = static_cast<int>(reader.integer("num_key_value_heads", 1, 1024, 4));
  const auto dim = static_cast<int>(reader.integer("head_dim", 1, 4096, 256));
  for (LayerKind& kind : facts) {
    kind.kv_heads = heads;
    kind.head_dim = dim;
  }
  if (const Json* overrides = reader.find("per_layer_config"); overrides != nullptr) {
    read_overrides(reader, *overrides, kinds, facts);
  } else {
    facts[1].head_dim = static_cast<int>(reader.integer("global_head_dim", 1, 4096, 512));
    if (k_eq_v) {
      facts[1].kv_heads =
          static_cast<int>(reader.integer("num_global_key_value_heads", 1, 1024, heads));
    }
  }
  read_rope(reader, kTypeNames[0], false, facts[0]);
  read_rope(reader, kTypeNames[1], true, facts[1]);
  config.kinds.assign(facts.begin(), facts.end());
}

void read_experts(Reader& reader, Config& config) {
  if (!reader.boolean("enable_moe_block", false)) return;
  config.experts.count = static_cast<int>(reader.integer("num_experts", 1, 1 << 16, 0));
  config.experts.used =
      static_cast<int>(reader.integer("top_k_experts", 1, config.experts.count, 0));
  config.experts.intermediate = reader.integer("moe_intermediate_size", 1, kMaxDim, 0);
  if (config.experts.used == 0 || config.experts.intermediate == 0) {
    reader.fail(ErrorCode::kInvalidFile,
                "enable_moe_block is true; num_experts, top_k_experts and moe_intermediate_size "
                "must be there");
  }
}

Result<Config> read_text(const Json& json, const std::string& where) {
  Config config;
  Reader reader(json, where);
  config.architecture = reader.text("model_type", "gemma4_text");
  const bool unified = config.architecture == "gemma4_unified_text";
  const auto layers = static_cast<int>(reader.integer("num_hidden_layers", 1, 4096, 30));
  config.hidden = reader.integer("hidden_size", 1, kMaxDim, 2304);
  config.vocab = reader.integer("vocab_size", 1, 1 << 24, 262144);
  config.context = reader.integer("max_position_embeddings", 1, std::int64_t{1} << 30,
                                  unified ? 262144 : 131072);
  config.q_heads = static_cast<int>(reader.integer("num_attention_heads", 1, 1024, 8));
  config.rms_eps = static_cast<float>(reader.number("rms_norm_eps", 0, 1, 1e-6));
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  config.final_softcap = static_cast<float>(reader.number("final_logit_softcapping", 0, 1e6, 0));
  config.activation = Activation::kGeluTanh;
  config.rope_pairs = ops::RopePairs::kSplitHalf;
  config.qk_norm = config.v_norm = config.post_norms = config.layer_scalars = true;
  config.tied = reader.boolean("tie_word_embeddings", true);
  config.per_layer_input = static_cast<int>(
      reader.integer("hidden_size_per_layer_input", 0, 1 << 16, unified ? 0 : 256));
  config.per_layer_vocab = reader.integer("vocab_size_per_layer_input", 0, 1 << 24, 262144);
  if (config.per_layer_input > 0 && config.per_layer_vocab < config.vocab) {
    reader.fail(ErrorCode::kUnsupported,
                fmt::format("vocab_size_per_layer_input is {}; vocab_size is {}: every token needs "
                            "its row",
                            config.per_layer_vocab, config.vocab));
  }
  reader.require("hidden_activation", Json("gelu_pytorch_tanh"));
  reader.require("attention_bias", Json(false));
  reader.require("rope_scaling", Json());
  if (const Json* both = reader.find("use_bidirectional_attention");
      both != nullptr && both->dump() != "\"vision\"") {
    reader.wrong("use_bidirectional_attention", *both, "null, \"vision\"");
  }
  read_experts(reader, config);
  const std::vector<int> kinds = layer_kinds(reader, layers);
  read_kinds(reader, kinds, config);
  const int shared = static_cast<int>(reader.integer("num_kv_shared_layers", 0, layers, 0));
  const std::int64_t intermediate = reader.integer("intermediate_size", 1, kMaxDim / 2, 9216);
  const bool wide = reader.boolean("use_double_wide_mlp", false);
  if (reader.problem()) return *reader.problem();
  config.layers.resize(static_cast<std::size_t>(layers));
  if (Status status = assign_layers(config, kinds, shared, where); !status.ok())
    return status.error();
  for (Layer& layer : config.layers)
    layer.intermediate = wide && !layer.owns_kv ? 2 * intermediate : intermediate;
  if (Status status = check_heads(config, where); !status.ok()) return status.error();
  return config;
}

}  // namespace

Result<Config> config_from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    return Error{ErrorCode::kInvalidFile, fmt::format("'{}': no JSON object", where)};
  }
  Reader top(json, where);
  const std::string type = top.text("model_type", "");
  constexpr std::array<std::string_view, 4> kTypes{"gemma4", "gemma4_text", "gemma4_unified",
                                                   "gemma4_unified_text"};
  if (std::ranges::find(kTypes, std::string_view(type)) == kTypes.end()) {
    top.wrong("model_type", Json(type),
              fmt::format("{}{}", fmt::join(kTypes, ", "),
                          type.ends_with("_assistant")
                              ? " (an assistant drafts for a model; it is none by itself)"
                              : ""));
  }
  const Json* text = top.find("text_config");
  if (const Json* quantization = top.find("quantization_config"); quantization != nullptr) {
    const Status status = safetensors::check_quantization(*quantization);
    if (!status.ok()) top.fail(status.error().code, status.error().message);
  }
  if (top.problem()) return *top.problem();
  Result<Config> config = read_text(text == nullptr ? json : *text, where);
  if (!config.ok()) return config.error();
  config->architecture = "gemma4";
  config->name = type;
  return config;
}

}  // namespace segue::model
