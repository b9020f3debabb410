// SPDX-License-Identifier: Apache-2.0
// Loading: one pass over the tensors that the config asks for, in the file's naming; what is left
// over is refused.
#include "model/weights.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <unordered_set>

#include "core/dtype.h"

namespace segue::model {
namespace {

class Loader {
 public:
  Loader(const gguf::File& file, const WeightOptions& options, core::ThreadPool& pool,
         ops::WeightMemory& memory, const std::function<void(double)>& progress)
      : file_(file), options_(options), pool_(pool), memory_(memory), progress_(progress) {
    for (const core::TensorView& tensor : file.tensors()) total_bytes_ += tensor.bytes;
  }

  void matrix(const std::string& name, std::int64_t inputs, std::int64_t outputs,
              ops::Matrix& out) {
    const core::TensorView* tensor = take(name, inputs, outputs);
    if (tensor == nullptr) return;
    Result<ops::Matrix> prepared =
        options_.dequantise ? dequantised(*tensor)
                            : ops::Matrix::prepare(*tensor, options_.isa, memory_, pool_);
    if (!prepared.ok()) {
      problem_ = Error{prepared.error().code,
                       fmt::format("'{}': {}", file_.path(), prepared.error().message)};
      return;
    }
    out = *prepared;
    finish(*tensor);
  }

  void vector(const std::string& name, std::int64_t size, std::vector<float>& out) {
    const core::TensorView* tensor = take(name, size, 1);
    if (tensor == nullptr) return;
    if (tensor->dtype != core::DType::kF32) {
      problem_ = Error{ErrorCode::kUnsupported,
                       fmt::format("'{}': tensor '{}' is {}; supported for vectors: F32",
                                   file_.path(), name, core::dtype_info(tensor->dtype).name)};
      return;
    }
    out.resize(static_cast<std::size_t>(size));
    std::memcpy(out.data(), tensor->data, static_cast<std::size_t>(size) * sizeof(float));
    finish(*tensor);
  }

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  Status close() {
    if (problem_) return *problem_;
    for (const core::TensorView& tensor : file_.tensors()) {
      if (!taken_.contains(tensor.name)) {
        return Error{
            ErrorCode::kUnsupported,
            fmt::format("'{}': tensor '{}' is not part of this architecture as Segue runs it; "
                        "ignoring it would change the output",
                        file_.path(), tensor.name)};
      }
    }
    return {};
  }

 private:
  const core::TensorView* take(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
    if (problem_) return nullptr;
    const core::TensorView* tensor = file_.find_tensor(name);
    if (tensor == nullptr) {
      problem_ = Error{ErrorCode::kInvalidFile,
                       fmt::format("'{}': tensor '{}' is missing", file_.path(), name)};
      return nullptr;
    }
    if (tensor->shape[0] != inputs || tensor->shape[1] != outputs ||
        tensor->elements() != inputs * outputs) {
      problem_ = Error{
          ErrorCode::kInvalidFile,
          fmt::format("'{}': tensor '{}' has shape [{}, {}, {}, {}]; the metadata says [{}, {}]",
                      file_.path(), name, tensor->shape[0], tensor->shape[1], tensor->shape[2],
                      tensor->shape[3], inputs, outputs)};
      return nullptr;
    }
    taken_.insert(name);
    return tensor;
  }

  Result<ops::Matrix> dequantised(const core::TensorView& tensor) {
    ops::WeightMemory quantised_memory;
    const Result<ops::Matrix> quantised =
        ops::Matrix::prepare(tensor, options_.isa, quantised_memory, pool_);
    if (!quantised.ok()) return quantised;
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    for (std::int64_t row = 0; row < quantised->outputs(); ++row) {
      quantised->dequantize_row(row, values.data() + row * quantised->inputs());
    }
    core::TensorView view = tensor;
    view.dtype = core::DType::kF32;
    view.data = reinterpret_cast<const std::byte*>(values.data());
    view.bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
    return ops::Matrix::prepare(view, options_.isa, memory_, pool_);
  }

  void finish(const core::TensorView& tensor) {
    file_.release(tensor);
    done_bytes_ += tensor.bytes;
    if (progress_)
      progress_(static_cast<double>(done_bytes_) /
                static_cast<double>(std::max<std::int64_t>(1, total_bytes_)));
  }

  const gguf::File& file_;
  WeightOptions options_;
  core::ThreadPool& pool_;
  ops::WeightMemory& memory_;
  const std::function<void(double)>& progress_;
  std::unordered_set<std::string> taken_;
  std::optional<Error> problem_;
  std::int64_t total_bytes_ = 0;
  std::int64_t done_bytes_ = 0;
};

void load_layer(Loader& loader, const Config& config, int layer, LayerWeights& out) {
  const LayerKind& kind =
      config.kinds[static_cast<std::size_t>(config.layer_kind[static_cast<std::size_t>(layer)])];
  const std::int64_t q_size = std::int64_t{config.q_heads} * kind.head_dim;
  const std::int64_t kv_size = std::int64_t{kind.kv_heads} * kind.head_dim;
  const auto name = [layer](std::string_view part) {
    return fmt::format("blk.{}.{}.weight", layer, part);
  };
  loader.vector(name("attn_norm"), config.hidden, out.attention_norm);
  loader.matrix(name("attn_q"), config.hidden, q_size, out.q);
  loader.matrix(name("attn_k"), config.hidden, kv_size, out.k);
  loader.matrix(name("attn_v"), config.hidden, kv_size, out.v);
  loader.matrix(name("attn_output"), q_size, config.hidden, out.o);
  loader.vector(name("ffn_norm"), config.hidden, out.ffn_norm);
  loader.matrix(name("ffn_gate"), config.hidden, config.intermediate, out.gate);
  loader.matrix(name("ffn_up"), config.hidden, config.intermediate, out.up);
  loader.matrix(name("ffn_down"), config.intermediate, config.hidden, out.down);
  if (config.qk_norm) {
    loader.vector(name("attn_q_norm"), kind.head_dim, out.q_norm);
    loader.vector(name("attn_k_norm"), kind.head_dim, out.k_norm);
  }
  if (config.post_norms) {
    loader.vector(name("post_attention_norm"), config.hidden, out.post_attention_norm);
    loader.vector(name("post_ffw_norm"), config.hidden, out.post_ffn_norm);
  }
}

}  // namespace

Result<Weights> load_weights(const gguf::File& file, const Config& config,
                             const WeightOptions& options, core::ThreadPool& pool,
                             const std::function<void(double fraction)>& progress) {
  Weights weights;
  Loader loader(file, options, pool, weights.memory, progress);
  loader.matrix("token_embd.weight", config.hidden, config.vocab, weights.embedding);
  if (loader.has("output.weight"))
    loader.matrix("output.weight", config.hidden, config.vocab, weights.output);
  loader.vector("output_norm.weight", config.hidden, weights.output_norm);
  if (loader.has("rope_freqs.weight")) {
    loader.vector("rope_freqs.weight", config.rope_dims / 2, weights.rope_factors);
  }
  weights.layers.resize(static_cast<std::size_t>(config.layers));
  for (int layer = 0; layer < config.layers; ++layer) {
    load_layer(loader, config, layer, weights.layers[static_cast<std::size_t>(layer)]);
  }
  if (Status status = loader.close(); !status.ok()) return status.error();
  return weights;
}

}  // namespace segue::model
