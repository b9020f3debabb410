// SPDX-License-Identifier: Apache-2.0
// The layers have the names of any model's; only what connects them to the target has its own.
#include "model/assistant_weights.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>

#include "format/safetensors/safetensors.h"

namespace segue::model {
namespace {

struct OwnNames {
  std::string pre, post, centroids, ordering;
};

OwnNames names_of(Naming naming) {
  if (naming == Naming::kGguf) {
    return {"nextn.pre_projection.weight", "nextn.post_projection.weight",
            "masked_embd_centroids.weight", "masked_embd_ordering"};
  }
  return {"pre_projection.weight", "post_projection.weight", "masked_embedding.centroids.weight",
          "masked_embedding.token_ordering"};
}

template <class T>
void read_ordering(const std::byte* data, std::size_t bytes, std::vector<std::int32_t>& out) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    T value;
    std::memcpy(&value, data + at, sizeof(T));
    const bool fits = value >= 0 && value <= std::numeric_limits<std::int32_t>::max();
    out.push_back(fits ? static_cast<std::int32_t>(value) : -1);
  }
}

Status check_ordering(const AssistantConfig& config, const std::vector<std::int32_t>& ordering) {
  if (std::ssize(ordering) != config.text.vocab) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': the token ordering has {} entries; the vocabulary has {}",
                             config.path, ordering.size(), config.text.vocab)};
  }
  for (const std::int32_t token : ordering) {
    if (token >= 0 && token < config.text.vocab) continue;
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': the token ordering has token {}; allowed: 0 to {}", config.path,
                             token, config.text.vocab - 1)};
  }
  return {};
}

void load_layer(Loader& loader, const Config& text, int layer, AssistantLayer& out) {
  const Layer& facts = text.layers[static_cast<std::size_t>(layer)];
  const int head_dim = text.kind_of(facts).head_dim;
  const std::int64_t q_size = std::int64_t{text.q_heads} * head_dim;
  const auto name = [&](Part part) { return loader.name(part, layer); };
  loader.vector(name(Part::kAttentionNorm), text.hidden, out.attention_norm);
  loader.matrix(name(Part::kQ), text.hidden, q_size, out.q);
  loader.vector(name(Part::kQNorm), head_dim, out.q_norm);
  loader.matrix(name(Part::kO), q_size, text.hidden, out.o);
  loader.vector(name(Part::kPostAttentionNorm), text.hidden, out.post_attention_norm);
  loader.vector(name(Part::kFfnNorm), text.hidden, out.ffn_norm);
  loader.matrix(name(Part::kGate), text.hidden, facts.intermediate, out.gate);
  loader.matrix(name(Part::kUp), text.hidden, facts.intermediate, out.up);
  loader.matrix(name(Part::kDown), facts.intermediate, text.hidden, out.down);
  loader.vector(name(Part::kPostFfnNorm), text.hidden, out.post_ffn_norm);
  loader.vector(name(Part::kLayerScalar), 1, out.scalar);
}

Result<LoadedAssistant> load(AssistantConfig config, std::vector<std::int32_t> ordering,
                             TensorSource& source, const WeightOptions& options,
                             core::ThreadPool& pool) {
  const Config& text = config.text;
  const OwnNames own = names_of(source.naming());
  AssistantWeights weights;
  const std::function<void(double)> no_progress;
  Loader loader(source, options, pool, weights.memory, no_progress);
  loader.matrix(own.pre, 2 * config.backbone, text.hidden, weights.pre);
  loader.matrix(own.post, text.hidden, config.backbone, weights.post);
  loader.matrix(loader.name(Part::kEmbedding), text.hidden, text.vocab, weights.head);
  loader.vector(loader.name(Part::kOutputNorm), text.hidden, weights.output_norm);
  if (source.naming() == Naming::kHuggingFace) {
    loader.ignore(loader.name(Part::kHead));  // the embedding once more
  } else if (loader.has(loader.name(Part::kRopeFactors))) {
    const int global = text.find_kind("global");
    const int head_dim = global < 0 ? 0 : text.kinds[static_cast<std::size_t>(global)].head_dim;
    loader.vector(loader.name(Part::kRopeFactors), head_dim / 2, weights.rope_factors);
  }
  weights.layers.resize(text.layers.size());
  for (int layer = 0; layer < text.layer_count(); ++layer)
    load_layer(loader, text, layer, weights.layers[static_cast<std::size_t>(layer)]);
  if (config.centroids > 0) {
    loader.matrix(own.centroids, text.hidden, config.centroids, weights.centroids);
    loader.ignore(own.ordering);
    if (Status status = check_ordering(config, ordering); !status.ok()) return status.error();
    weights.ordering = std::move(ordering);
  }
  if (Status status = loader.close(); !status.ok()) return status.error();
  return LoadedAssistant{std::move(config), std::move(weights)};
}

Result<LoadedAssistant> load_gguf(const std::string& path, const WeightOptions& options,
                                  core::ThreadPool& pool) {
  const Result<gguf::File> file = gguf::File::open(path);
  if (!file.ok()) return file.error();
  Result<AssistantConfig> config = assistant_from_gguf(*file);
  if (!config.ok()) return config.error();
  std::vector<std::int32_t> ordering;
  const core::TensorView* tensor = file->find_tensor(names_of(Naming::kGguf).ordering);
  if (tensor != nullptr && tensor->dtype == core::DType::kI32)
    read_ordering<std::int32_t>(tensor->data, static_cast<std::size_t>(tensor->bytes), ordering);
  return load(std::move(config).value(), std::move(ordering), *gguf_tensors(*file), options, pool);
}

Result<LoadedAssistant> load_folder(const std::string& path, const WeightOptions& options,
                                    core::ThreadPool& pool) {
  Result<AssistantConfig> config = read_assistant_config(path);
  if (!config.ok()) return config.error();
  const Result<safetensors::Checkpoint> checkpoint = safetensors::Checkpoint::open(path);
  if (!checkpoint.ok()) return checkpoint.error();
  std::vector<std::int32_t> ordering;
  const safetensors::Tensor* tensor = checkpoint->find(names_of(Naming::kHuggingFace).ordering);
  if (tensor != nullptr && tensor->dtype == safetensors::Dtype::kI64)
    read_ordering<std::int64_t>(tensor->bytes.data(), tensor->bytes.size(), ordering);
  if (tensor != nullptr && tensor->dtype == safetensors::Dtype::kI32)
    read_ordering<std::int32_t>(tensor->bytes.data(), tensor->bytes.size(), ordering);
  return load(std::move(config).value(), std::move(ordering), *folder_tensors(*checkpoint), options,
              pool);
}

/// Random ones for a config.json alone.
Result<LoadedAssistant> load_random(const std::string& path, const WeightOptions& options,
                                    core::ThreadPool& pool) {
  Result<AssistantConfig> config = read_assistant_config(path);
  if (!config.ok()) return config.error();
  std::vector<std::int32_t> ordering(static_cast<std::size_t>(config->text.vocab));
  std::iota(ordering.begin(), ordering.end(), 0);
  return load(std::move(config).value(), std::move(ordering), *random_tensors(0), options, pool);
}

}  // namespace

Result<LoadedAssistant> load_assistant(const std::string& path, const WeightOptions& options,
                                       core::ThreadPool& pool) {
  std::error_code problem;
  if (path.ends_with(".json")) return load_random(path, options, pool);
  return std::filesystem::is_directory(path, problem) ? load_folder(path, options, pool)
                                                      : load_gguf(path, options, pool);
}

}  // namespace segue::model
