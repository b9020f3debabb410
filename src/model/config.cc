// SPDX-License-Identifier: Apache-2.0
// GGUF metadata to Config. What a file does not store (Gemma 3's layer pattern, local theta,
// scales) is fixed here; newer files that do store it are honoured.
#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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
constexpr int kHeadDims[] = {64, 80, 96, 128, 256, 512};

void read_gemma3(Reader& reader, Config& config) {
  const int kv_heads = static_cast<int>(reader.integer("attention.head_count_kv", 1, 1024));
  const int head_dim = static_cast<int>(reader.integer("attention.key_length", 1, 4096, 256));
  const auto window = static_cast<int>(reader.integer("attention.sliding_window", 1, 1 << 24));
  const int period =
      static_cast<int>(reader.integer("attention.sliding_window_pattern", 1, 1024, 6));
  LayerKind sliding{"sliding", window,   reader.number("rope.freq_base_swa", 1, 1e12, 1e4),
                    1.0,       kv_heads, head_dim};
  LayerKind global{"global", 0,        reader.number("rope.freq_base", 1, 1e12, 1e6),
                   1.0,      kv_heads, head_dim};
  global.rope_factor = reader.number("rope.scaling.factor", 1e-3, 1e6, 1.0);
  config.kinds = {sliding, global};
  for (int layer = 0; layer < config.layers; ++layer)
    config.layer_kind.push_back((layer + 1) % period == 0 ? 1 : 0);
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  config.activation = Activation::kGeluTanh;
  config.rope_pairs = ops::RopePairs::kSplitHalf;
  config.rope_dims = head_dim;
  config.qk_norm = true;
  config.post_norms = true;
}

void read_llama(Reader& reader, const gguf::File& file, Config& config) {
  const int kv_heads =
      static_cast<int>(reader.integer("attention.head_count_kv", 1, 1024, config.q_heads));
  const int head_dim = static_cast<int>(
      reader.integer("attention.key_length", 1, 4096, config.hidden / std::max(1, config.q_heads)));
  LayerKind global{"global", 0,        reader.number("rope.freq_base", 1, 1e12, 1e4),
                   1.0,      kv_heads, head_dim};
  if (reader.has("rope.scaling.type")) {
    const Result<std::string_view> type = file.text(reader.full("rope.scaling.type"));
    if (!type.ok()) {
      reader.fail(type.error());
    } else if (*type == "linear") {
      global.rope_factor = reader.number("rope.scaling.factor", 1e-3, 1e6, 1.0);
    } else if (*type != "none") {
      reader.fail({ErrorCode::kUnsupported,
                   fmt::format("'{}': {} is '{}'; supported: none, linear", file.path(),
                               reader.full("rope.scaling.type"), *type)});
    }
  }
  if (reader.integer("expert_count", 0, 1 << 16, 0) > 0) {
    reader.fail({ErrorCode::kUnsupported,
                 fmt::format("'{}': mixture-of-experts llama models are not supported "
                             "(llama.expert_count > 0)",
                             file.path())});
  }
  config.kinds = {global};
  config.layer_kind.assign(static_cast<std::size_t>(config.layers), 0);
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  config.rope_dims =
      static_cast<int>(reader.integer("rope.dimension_count", 2, head_dim, head_dim));
  if (config.rope_dims % 2 != 0) {
    reader.fail({ErrorCode::kInvalidFile,
                 fmt::format("'{}': {} is {}; it must be even", file.path(),
                             reader.full("rope.dimension_count"), config.rope_dims)});
  }
}

Status check_heads(const gguf::File& file, const Config& config) {
  for (const LayerKind& kind : config.kinds) {
    if (config.q_heads % kind.kv_heads != 0 || config.q_heads / kind.kv_heads > 16) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("'{}': {} query heads on {} kv heads; supported: a whole number of "
                               "1 to 16 query heads "
                               "per kv head",
                               file.path(), config.q_heads, kind.kv_heads)};
    }
    if (std::ranges::find(kHeadDims, kind.head_dim) == std::end(kHeadDims)) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("'{}': head_dim {}; supported: {}", file.path(), kind.head_dim,
                               fmt::join(kHeadDims, ", "))};
    }
  }
  return {};
}

}  // namespace

Result<Config> config_from_gguf(const gguf::File& file) {
  const Result<std::string_view> architecture = file.text("general.architecture");
  if (!architecture.ok()) return architecture.error();
  if (*architecture != "gemma3" && *architecture != "llama") {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': general.architecture is '{}'; supported: gemma3, llama",
                             file.path(), *architecture)};
  }
  Config config;
  config.architecture = *architecture;
  const Result<std::string_view> name = file.text("general.name", "");
  config.name = name.ok() && !name->empty() ? std::string(*name) : config.architecture;
  Reader reader(file, config.architecture);
  config.layers = static_cast<int>(reader.integer("block_count", 1, 4096));
  config.hidden = reader.integer("embedding_length", 1, kMaxDim);
  config.intermediate = reader.integer("feed_forward_length", 1, kMaxDim);
  config.q_heads = static_cast<int>(reader.integer("attention.head_count", 1, 1024));
  config.context = reader.integer("context_length", 1, std::int64_t{1} << 30);
  config.rms_eps =
      static_cast<float>(reader.number("attention.layer_norm_rms_epsilon", 0, 1, 1e-6));
  if (reader.problem()) return *reader.problem();
  if (config.architecture == "gemma3") {
    read_gemma3(reader, config);
  } else {
    read_llama(reader, file, config);
  }
  if (reader.problem()) return *reader.problem();
  if (Status heads = check_heads(file, config); !heads.ok()) return heads.error();
  const core::TensorView* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': tensor 'token_embd.weight' is missing", file.path())};
  }
  config.vocab = embedding->shape[1];
  return config;
}

}  // namespace segue::model
