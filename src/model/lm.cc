// SPDX-License-Identifier: Apache-2.0
// LanguageModel as others see it; the forward pass is in forward.h.
#include "model/lm.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "model/forward.h"

namespace segue::model {

attention::DeviceFacts cpu_device(int threads) { return attention::cpu_device(threads); }

LanguageModel::LanguageModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LanguageModel::~LanguageModel() = default;

Result<std::unique_ptr<LanguageModel>> LanguageModel::load(const Config& config,
                                                           TensorSource& source,
                                                           core::ThreadPool& pool,
                                                           const LoadOptions& options) {
  for (const Layer& layer : config.layers) {
    if (layer.kv_layer >= 0) continue;
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': no layer has keys and values of its own; an assistant drafts "
                             "for a model, it is none by itself",
                             source.path())};
  }
  auto impl = std::make_unique<Impl>(pool, options.isa);
  impl->config = config;
  Result<Weights> weights = load_weights(
      source, config, {options.isa, options.dequantise, options.cancelled}, pool, options.progress);
  if (!weights.ok()) return weights.error();
  impl->weights = std::move(weights).value();
  impl->prepare_rope();
  const std::size_t kinds = config.kinds.size();
  impl->plans.resize(kinds);
  impl->tables.resize(kinds);
  impl->cos_sin.resize(kinds);
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    const auto layers = std::ranges::count(config.layers, static_cast<int>(kind), &Layer::kind);
    impl->groups.push_back({nullptr, static_cast<int>(layers), 0});
  }
  return std::unique_ptr<LanguageModel>(new LanguageModel(std::move(impl)));
}

Result<std::unique_ptr<LanguageModel>> LanguageModel::load(const gguf::File& file,
                                                           core::ThreadPool& pool,
                                                           const LoadOptions& options) {
  const Result<Config> config = config_from_gguf(file);
  if (!config.ok()) return config.error();
  return load(*config, *gguf_tensors(file), pool, options);
}

Result<std::unique_ptr<LanguageModel>> LanguageModel::open(const std::string& path,
                                                           core::ThreadPool& pool,
                                                           const LoadOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    const Result<gguf::File> file = gguf::File::open(path);
    if (!file.ok()) return file.error();
    return load(*file, pool, options);
  }
  const Result<Config> config = read_config(path);
  if (!config.ok()) return config.error();
  const Result<safetensors::Checkpoint> checkpoint = safetensors::Checkpoint::open(path);
  if (!checkpoint.ok()) return checkpoint.error();
  return load(*config, *folder_tensors(*checkpoint), pool, options);
}

const Config& LanguageModel::config() const { return impl_->config; }
core::IsaLevel LanguageModel::isa() const { return impl_->isa; }
std::int64_t LanguageModel::weight_bytes() const { return impl_->weights.memory.bytes(); }
const attention::DeviceFacts& LanguageModel::device() const { return impl_->device; }

std::vector<kv::PoolSpec> LanguageModel::pool_specs(KvType type, int page_size) const {
  std::vector<kv::PoolSpec> specs;
  for (std::size_t kind = 0; kind < impl_->config.kinds.size(); ++kind) {
    const LayerKind& facts = impl_->config.kinds[kind];
    specs.push_back({facts.name, impl_->config.kv_layers(static_cast<int>(kind)), facts.kv_heads,
                     facts.head_dim, facts.window, type, kv::Layout::kTiled16, page_size, 0});
  }
  return specs;
}

attention::Shape attention_shape(const Config& config, int kind, KvType type, int page_size) {
  const LayerKind& facts = config.kinds[static_cast<std::size_t>(kind)];
  return {config.q_heads, facts.kv_heads,       facts.head_dim, facts.window,
          type,           kv::Layout::kTiled16, page_size};
}

attention::Shape LanguageModel::attention_shape(int kind, KvType type, int page_size) const {
  return model::attention_shape(config(), kind, type, page_size);
}

KvPlace LanguageModel::last_kv_layer(int kind) const {
  return {kind, impl_->config.kv_layers(kind) - 1};
}

void LanguageModel::embed_token(std::int32_t token, float* out) const {
  const Impl& m = *impl_;
  m.weights.embedding.dequantize_row(token, out);
  if (m.config.embedding_scale != 1.0f)
    m.ew.scale(out, m.config.embedding_scale, m.config.hidden, out);
}

void LanguageModel::reserve_logits(std::int64_t rows) {
  grow(impl_->logits, rows * impl_->config.vocab);
}

Result<StepOutput> LanguageModel::forward(const StepInput& input) {
  Impl& m = *impl_;
  std::int64_t count = 0;
  for (const SequenceInput& sequence : input.sequences) {
    DCHECK(sequence.logits <= static_cast<int>(sequence.tokens.size()));
    count += static_cast<std::int64_t>(sequence.tokens.size());
  }
  if (Status status = m.plan_step(input, count); !status.ok()) return status.error();
  m.embed(input, count);
  if (m.config.per_layer_input > 0) m.prepare_per_layer(input, count);
  for (int layer = 0; layer < m.config.layer_count(); ++layer) m.run_layer(input, layer, count);
  StepOutput output;
  output.rows = m.head(input);
  output.logits = m.logits.data();
  output.hidden = m.normed.data();
  output.groups = m.groups;
  return output;
}

}  // namespace segue::model
