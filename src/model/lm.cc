// SPDX-License-Identifier: Apache-2.0
// Loading, whatever the device; the forward passes are cpu_model.cc and gpu_model.cc.
#include "model/lm.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "model/forward.h"
#include "model/gpu_model.h"

namespace segue::model {

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
  return options.device == Device::kCuda ? load_gpu_model(config, source, pool, options)
                                         : CpuModel::load(config, source, pool, options);
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

std::vector<kv::PoolSpec> LanguageModel::pool_specs(KvType type, int page_size) const {
  std::vector<kv::PoolSpec> specs;
  for (int kind = 0; kind < static_cast<int>(config_.kinds.size()); ++kind) {
    const attention::Shape shape = attention_shape(place_, config_, kind, type, page_size);
    specs.push_back({config_.kinds[static_cast<std::size_t>(kind)].name, config_.kv_layers(kind),
                     shape.kv_heads, shape.head_dim, shape.window, type, shape.layout, page_size,
                     stream(), 0});
  }
  return specs;
}

}  // namespace segue::model
