// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segue::model {
namespace {

struct Key {
  std::string_view name;     // without the architecture
  std::vector<double> same;  // values that ask for what is done anyway; of a flag: 0 and 1
};

/// 0 stands for "not set" where a file may say so.
std::vector<Key> keys_of(const Config& config) {
  std::vector<Key> keys{
      {"attention.causal", {1}},
      {"attention.clamp_kqv", {0}},
      {"attention.max_alibi_bias", {0}},
      {"attention.output_scale", {0, 1}},
      {"attention.scale", {0, config.attention_scale}},
      {"attention.temperature_length", {0}},
      {"attention.temperature_scale", {0}},
      {"attn_logit_softcapping", {0}},
      {"embedding_scale", {0, config.embedding_scale}},
      {"expert_gating_func", {0, 1}},  // 1: softmax
      {"expert_group_count", {0, 1}},
      {"expert_shared_count", {0}},
      {"expert_weights_scale", {0, 1}},
      {"logit_scale", {0, 1}},
      {"residual_scale", {0, 1}},
      {"rope.dimension_sections", {0}},
      {"rope.scaling.alpha", {0, 1}},
      {"rope.scaling.attn_factor", {1}},
      {"router_logit_softcapping", {0}},
      {"swin_norm", {0}},
      {"use_parallel_residual", {0}},
  };
  const bool llama = config.architecture == "llama";
  const bool one_width = !config.architecture.starts_with("gemma4");  // of heads of all kinds
  if (one_width) {
    keys.push_back({"attention.shared_kv_layers", {0}});
    keys.push_back({"expert_count", {0}});
  }
  const int global = config.find_kind("global");
  if (global >= 0 || one_width) {
    const LayerKind& kind = config.kinds.back();
    const auto dim = static_cast<double>(kind.head_dim);
    keys.push_back({"attention.value_length", {dim}});
    if (!llama) keys.push_back({"rope.dimension_count", {dim, static_cast<double>(kind.rotary)}});
    if (!llama && global >= 0) keys.push_back({"rope.global.freq_base", {kind.rope_theta}});
  }
  if (const int sliding = config.find_kind("sliding"); sliding >= 0) {
    const LayerKind& kind = config.kinds[static_cast<std::size_t>(sliding)];
    const auto dim = static_cast<double>(kind.head_dim);
    keys.push_back({"attention.key_length_swa", {dim}});
    keys.push_back({"attention.value_length_swa", {dim}});
    keys.push_back({"rope.dimension_count_swa", {dim}});
    keys.push_back({"rope.local.freq_base", {kind.rope_theta}});
  }
  return keys;
}

/// The elements of a number, a flag or an array of either.
std::optional<std::vector<double>> numbers_of(const gguf::Value& value) {
  if (const auto flags = value.as_bools()) return std::vector<double>(flags->begin(), flags->end());
  if (const auto integers = value.as_ints())
    return std::vector<double>(integers->begin(), integers->end());
  if (const auto floats = value.as_floats())
    return std::vector<double>(floats->begin(), floats->end());
  return {};
}

/// As near as two roundings to f32.
bool equal(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

Status check_key(const gguf::File& file, const std::string& key, const std::vector<double>& same) {
  const gguf::Value* const value = file.find(key);
  if (value == nullptr) return {};
  const auto refuse = [&](const std::string& found) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': {} is {}, which would change the output; supported: {}",
                             file.path(), key, found, fmt::join(same, ", "))};
  };
  const std::optional<std::vector<double>> numbers = numbers_of(*value);
  if (!numbers) return refuse(value->describe_type());
  for (const double number : *numbers) {
    if (std::ranges::none_of(same, [&](double one) { return equal(number, one); }))
      return refuse(fmt::format("{}", number));
  }
  return {};
}

}  // namespace

Status check_keys(const gguf::File& file, const Config& config) {
  for (const Key& key : keys_of(config)) {
    const std::string name = fmt::format("{}.{}", config.architecture, key.name);
    if (Status status = check_key(file, name, key.same); !status.ok()) return status;
  }
  if (config.architecture != "llama") return {};
  // Its layers see all keys: a window that no context outgrows is none.
  const std::string window = "llama.attention.sliding_window";
  const Result<std::int64_t> found = file.integer(window, 0);
  if (!found.ok()) return found.error();
  if (*found == 0 || *found >= config.context) return {};
  return Error{ErrorCode::kUnsupported,
               fmt::format("'{}': {} is {}, which would change the output; supported: 0 (none), {} "
                           "(the context) and more",
                           file.path(), window, *found, config.context)};
}

}  // namespace segue::model
