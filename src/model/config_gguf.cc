// SPDX-License-Identifier: Apache-2.0
// GGUF metadata to Config. What a file does not store (Gemma 3's layer pattern, local theta,
// scales) is fixed here; newer files that do store it are honoured.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "model/config.h"
#include "model/gguf_keys.h"

namespace segue::model {
namespace {

/// Reads keys of one architecture; the first problem is kept and every later read returns its
/// fallback.
class Reader {
 public:
  Reader(const gguf::File& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) {
    return bounded(key, file_.integer(full(key)), low, high);
  }
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::int64_t fallback) {
    return bounded(key, file_.integer(full(key), fallback), low, high);
  }
  double number(std::string_view key, double low, double high, double fallback) {
    const Result<double> value = file_.number(full(key), fallback);
    if (!value.ok()) return fail(value.error()), fallback;
    if (!(*value >= low && *value <= high)) {
      fail({ErrorCode::kInvalidFile, fmt::format("'{}': {} is {}; allowed: {} to {}", file_.path(),
                                                 full(key), *value, low, high)});
      return fallback;
    }
    return *value;
  }
  /// One value per layer, from an array or from one value for all.
  std::vector<std::int64_t> per_layer(std::string_view key, std::int64_t low, std::int64_t high,
                                      int layers) {
    const Result<std::vector<std::int64_t>> values = file_.integers(full(key));
    const std::vector<std::int64_t> lowest(static_cast<std::size_t>(layers), low);
    if (!values.ok()) return fail(values.error()), lowest;
    if (std::ssize(*values) != 1 && std::ssize(*values) != layers) {
      fail({ErrorCode::kInvalidFile, fmt::format("'{}': {} has {} values; the model has {} layers",
                                                 file_.path(), full(key), values->size(), layers)});
      return lowest;
    }
    for (std::int64_t value : *values) bounded(key, value, low, high);
    if (problem_) return lowest;
    if (values->size() > 1) return *values;
    return std::vector<std::int64_t>(static_cast<std::size_t>(layers), values->front());
  }
  bool has(std::string_view key) const { return file_.has(full(key)); }
  std::string full(std::string_view key) const { return prefix_ + "." + std::string(key); }
  void fail(Error error) {
    if (!problem_) problem_ = std::move(error);
  }
  const std::optional<Error>& problem() const { return problem_; }

 private:
  std::int64_t bounded(std::string_view key, const Result<std::int64_t>& value, std::int64_t low,
                       std::int64_t high) {
    if (!value.ok()) return fail(value.error()), low;
    if (*value < low || *value > high) {
      fail({ErrorCode::kInvalidFile, fmt::format("'{}': {} is {}; allowed: {} to {}", file_.path(),
                                                 full(key), *value, low, high)});
      return low;
    }
    return *value;
  }
  const gguf::File& file_;
  std::string prefix_;
  std::optional<Error> problem_;
};

constexpr std::int64_t kMaxDim = 1 << 20;
LayerKind make_kind(std::string name, int window, int kv_heads, int head_dim) {
  LayerKind kind;
  kind.name = std::move(name);
  kind.window = window;
  kind.kv_heads = kv_heads;
  kind.head_dim = head_dim;
  kind.rotary = kind.rotary_span = head_dim;
  return kind;
}

/// What Gemma 3 and 4 have in common.
void set_gemma(Config& config) {
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  config.activation = Activation::kGeluTanh;
  config.rope_pairs = ops::RopePairs::kSplitHalf;
  config.qk_norm = true;
  config.post_norms = true;
}

/// The factor of linear position scaling. It counts without a type too, as elsewhere, and old files
/// have another name for it.
double rope_factor(Reader& reader, const gguf::File& file) {
  const Result<std::string_view> type = file.text(reader.full("rope.scaling.type"), "linear");
  if (!type.ok()) return reader.fail(type.error()), 1.0;
  if (*type == "linear") {
    const double old = reader.number("rope.scale_linear", 1e-3, 1e6, 1.0);
    return reader.number("rope.scaling.factor", 1e-3, 1e6, old);
  }
  if (*type != "none") {
    reader.fail({ErrorCode::kUnsupported,
                 fmt::format("'{}': {} is '{}'; supported: none, linear", file.path(),
                             reader.full("rope.scaling.type"), *type)});
  }
  return 1.0;
}

/// Gemma 3 files do not store what the scores are scaled by: the head dim at every published size
/// but 27B, the one of 62 layers, where it is hidden / heads (gemma_pytorch, gemma/config.py).
float gemma3_attention_scale(const Config& config, int head_dim) {
  constexpr std::size_t kLayersOf27B = 62;
  const auto scaled_by = config.layers.size() == kLayersOf27B
                             ? static_cast<float>(config.hidden / config.q_heads)
                             : static_cast<float>(head_dim);
  return 1.0f / std::sqrt(scaled_by);
}

void read_gemma3(Reader& reader, const gguf::File& file, Config& config) {
  const int kv_heads = static_cast<int>(reader.integer("attention.head_count_kv", 1, 1024));
  const int head_dim = static_cast<int>(reader.integer("attention.key_length", 1, 4096, 256));
  const auto window = static_cast<int>(reader.integer("attention.sliding_window", 1, 1 << 24));
  const int period =
      static_cast<int>(reader.integer("attention.sliding_window_pattern", 1, 1024, 6));
  LayerKind sliding = make_kind("sliding", window, kv_heads, head_dim);
  LayerKind global = make_kind("global", 0, kv_heads, head_dim);
  sliding.rope_theta = reader.number("rope.freq_base_swa", 1, 1e12, 1e4);
  global.rope_theta = reader.number("rope.freq_base", 1, 1e12, 1e6);
  global.rope_factor = rope_factor(reader, file);
  config.kinds = {sliding, global};
  set_gemma(config);
  config.attention_scale = gemma3_attention_scale(config, head_dim);
  std::vector<int> kinds;
  for (int layer = 0; layer < config.layer_count(); ++layer)
    kinds.push_back((layer + 1) % period == 0 ? 1 : 0);
  if (Status status = assign_layers(config, kinds, 0, file.path()); !status.ok())
    reader.fail(status.error());
}

void read_llama(Reader& reader, const gguf::File& file, Config& config) {
  const int kv_heads =
      static_cast<int>(reader.integer("attention.head_count_kv", 1, 1024, config.q_heads));
  const int head_dim = static_cast<int>(
      reader.integer("attention.key_length", 1, 4096, config.hidden / std::max(1, config.q_heads)));
  LayerKind global = make_kind("global", 0, kv_heads, head_dim);
  global.rope_theta = reader.number("rope.freq_base", 1, 1e12, 1e4);
  global.rope_freqs = true;
  global.rope_factor = rope_factor(reader, file);
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  global.rotary = global.rotary_span =
      static_cast<int>(reader.integer("rope.dimension_count", 2, head_dim, head_dim));
  if (global.rotary % 2 != 0) {
    reader.fail(
        {ErrorCode::kInvalidFile, fmt::format("'{}': {} is {}; it must be even", file.path(),
                                              reader.full("rope.dimension_count"), global.rotary)});
  }
  config.kinds = {global};
  const std::vector<int> kinds(config.layers.size(), 0);
  if (Status status = assign_layers(config, kinds, 0, file.path()); !status.ok())
    reader.fail(status.error());
}

/// Pairs of a global head that rotate: the leading ones whose divisor in rope_freqs is no absurd
/// number ("proportional" RoPE is stored as ones, then 1e30).
int rotating_pairs(const gguf::File& file, int head_dim) {
  const core::TensorView* factors = file.find_tensor("rope_freqs.weight");
  if (factors == nullptr || factors->dtype != core::DType::kF32) return head_dim / 2;
  int pairs = 0;
  for (; pairs < std::min<std::int64_t>(factors->shape[0], head_dim / 2); ++pairs) {
    float factor;
    std::memcpy(&factor, factors->data + pairs * std::int64_t{sizeof(float)}, sizeof(factor));
    if (!(factor < 1e20f)) break;
  }
  return pairs;
}

/// The kv heads of a kind: those of its first layer. All its layers must agree.
int kv_heads_of(Reader& reader, const gguf::File& file, std::span<const std::int64_t> heads,
                std::span<const int> kinds, int kind) {
  std::int64_t found = 0;
  for (std::size_t layer = 0; layer < kinds.size(); ++layer) {
    if (kinds[layer] != kind) continue;
    if (found != 0 && heads[layer] != found) {
      reader.fail({ErrorCode::kUnsupported,
                   fmt::format("'{}': {} gives layer {} {} kv heads, earlier layers of its kind {}",
                               file.path(), reader.full("attention.head_count_kv"), layer,
                               heads[layer], found)});
    }
    found = heads[layer];
  }
  return static_cast<int>(std::max<std::int64_t>(1, found));
}

void read_gemma4(Reader& reader, const gguf::File& file, Config& config) {
  const int layers = config.layer_count();
  std::vector<int> kinds;
  const Result<std::vector<bool>> pattern =
      file.booleans(reader.full("attention.sliding_window_pattern"));
  if (!pattern.ok()) return reader.fail(pattern.error());
  if (std::ssize(*pattern) != layers) {
    return reader.fail(
        {ErrorCode::kInvalidFile,
         fmt::format("'{}': {} has {} values; the model has {} layers", file.path(),
                     reader.full("attention.sliding_window_pattern"), pattern->size(), layers)});
  }
  for (bool is_sliding : *pattern) kinds.push_back(is_sliding ? 0 : 1);
  const std::vector<std::int64_t> heads =
      reader.per_layer("attention.head_count_kv", 1, 1024, layers);
  const auto window = static_cast<int>(reader.integer("attention.sliding_window", 1, 1 << 24));
  const int head_dim = static_cast<int>(reader.integer("attention.key_length_swa", 1, 4096, 256));
  const int wide = static_cast<int>(reader.integer("attention.key_length", 1, 4096, 512));
  LayerKind sliding =
      make_kind("sliding", window, kv_heads_of(reader, file, heads, kinds, 0), head_dim);
  LayerKind global = make_kind("global", 0, kv_heads_of(reader, file, heads, kinds, 1), wide);
  sliding.rope_theta = reader.number("rope.freq_base_swa", 1, 1e12, 1e4);
  global.rope_theta = reader.number("rope.freq_base", 1, 1e12, 1e6);
  global.rope_factor = rope_factor(reader, file);
  global.rotary = 2 * rotating_pairs(file, wide);
  global.rope_freqs = true;
  // Which global layers take V from K shows in the tensors alone.
  const auto first_global = std::ranges::find(kinds, 1) - kinds.begin();
  global.v_from_k = file.find_tensor(fmt::format("blk.{}.attn_v.weight", first_global)) == nullptr;
  config.kinds = {sliding, global};
  set_gemma(config);
  config.attention_scale = 1.0f;
  config.v_norm = config.layer_scalars = true;
  config.per_layer_input =
      static_cast<int>(reader.integer("embedding_length_per_layer_input", 0, 1 << 16, 0));
  config.per_layer_vocab = config.vocab;
  config.experts.count = static_cast<int>(reader.integer("expert_count", 0, 1 << 16, 0));
  if (config.experts.count > 0) {
    config.experts.used =
        static_cast<int>(reader.integer("expert_used_count", 1, config.experts.count));
    config.experts.intermediate = reader.integer("expert_feed_forward_length", 1, kMaxDim);
  }
  // All layers of an assistant read K and V of its target.
  const bool assistant = config.architecture == "gemma4-assistant";
  const int shared = static_cast<int>(
      assistant ? layers : reader.integer("attention.shared_kv_layers", 0, layers - 1, 0));
  if (Status status = assign_layers(config, kinds, shared, file.path()); !status.ok())
    reader.fail(status.error());
}

}  // namespace

Result<Config> config_from_gguf(const gguf::File& file) {
  const Result<std::string_view> architecture = file.text("general.architecture");
  if (!architecture.ok()) return architecture.error();
  if (*architecture != "gemma3" && *architecture != "gemma4" && *architecture != "llama" &&
      *architecture != "gemma4-assistant") {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': general.architecture is '{}'; supported: gemma3, gemma4, llama",
                             file.path(), *architecture)};
  }
  if (const Result<std::int64_t> parts = file.integer("split.count", 1); !parts.ok()) {
    return parts.error();
  } else if (*parts > 1) {
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("'{}' is one of {} files of a split model (split.count); supported: one "
                    "file with all tensors, as llama-gguf-split --merge makes it",
                    file.path(), *parts)};
  }
  Config config;
  config.architecture = *architecture;
  const Result<std::string_view> name = file.text("general.name", "");
  config.name = name.ok() && !name->empty() ? std::string(*name) : config.architecture;
  Reader reader(file, config.architecture);
  const auto layers = static_cast<int>(reader.integer("block_count", 1, 4096));
  config.layers.resize(static_cast<std::size_t>(layers));
  config.hidden = reader.integer("embedding_length", 1, kMaxDim);
  const std::vector<std::int64_t> intermediate =
      reader.per_layer("feed_forward_length", 1, kMaxDim, layers);
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer)
    config.layers[layer].intermediate = intermediate[layer];
  config.q_heads = static_cast<int>(reader.integer("attention.head_count", 1, 1024));
  config.context = reader.integer("context_length", 1, std::int64_t{1} << 30);
  config.rms_eps =
      static_cast<float>(reader.number("attention.layer_norm_rms_epsilon", 0, 1, 1e-6));
  config.final_softcap = static_cast<float>(reader.number("final_logit_softcapping", 0, 1e6, 0.0));
  if (reader.problem()) return *reader.problem();
  const core::TensorView* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': tensor 'token_embd.weight' is missing", file.path())};
  }
  config.vocab = embedding->shape[1];
  if (const std::int64_t claimed = reader.integer("vocab_size", 1, 1 << 28, config.vocab);
      claimed != config.vocab && !reader.problem()) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': {} is {}, the embedding has {} rows", file.path(),
                             reader.full("vocab_size"), claimed, config.vocab)};
  }
  config.tied = file.find_tensor("output.weight") == nullptr;
  if (config.architecture == "gemma3") {
    read_gemma3(reader, file, config);
  } else if (config.architecture.starts_with("gemma4")) {
    read_gemma4(reader, file, config);
  } else {
    read_llama(reader, file, config);
  }
  if (reader.problem()) return *reader.problem();
  if (Status keys = check_keys(file, config); !keys.ok()) return keys.error();
  if (Status heads = check_heads(config, file.path()); !heads.ok()) return heads.error();
  return config;
}

}  // namespace segue::model
