// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "model/gpu_weights.h"

#include <array>

#include "model/step.h"

namespace segue::model {
namespace {

class Uploader {
 public:
  Uploader(core::ThreadPool& pool, const device::Stream& stream,
           std::vector<device::Buffer>& vectors)
      : pool_(pool), stream_(stream), vectors_(vectors) {}

  ops::cuda::Matrix matrix(std::span<const ops::Matrix* const> parts) {
    return ops::cuda::Matrix::upload(parts, pool_, stream_);
  }
  ops::cuda::Matrix matrix(const ops::Matrix& only) {
    const ops::Matrix* const part = &only;
    return matrix(std::span(&part, 1));
  }
  /// Null for an empty one.
  const float* vector(const std::vector<float>& values) {
    if (values.empty()) return nullptr;
    const std::size_t bytes = values.size() * sizeof(float);
    device::Buffer& buffer = vectors_.emplace_back(bytes);
    device::copy_to_device(buffer.as<>(), values.data(), bytes, stream_);
    stream_.synchronize();
    return buffer.as<const float>();
  }
  GpuLayer layer(const LayerWeights& w) {
    std::vector<const ops::Matrix*> qkv{&w.q, &w.k};
    if (w.v.outputs() > 0) qkv.push_back(&w.v);
    GpuLayer out = around(w, qkv);
    out.k_norm = vector(w.k_norm);
    out.scalar = w.scalar;
    return out;
  }
  GpuLayer layer(const AssistantLayer& w) {
    const ops::Matrix* const q = &w.q;
    GpuLayer out = around(w, std::span(&q, 1));
    out.scalar = w.scalar[0];
    return out;
  }

 private:
  /// What layers of a model and of an assistant have in common.
  template <class Layer>
  GpuLayer around(const Layer& w, std::span<const ops::Matrix* const> qkv) {
    GpuLayer out;
    out.qkv = matrix(qkv);
    out.o = matrix(w.o);
    out.gate_up = matrix(std::array{&w.gate, &w.up});
    out.down = matrix(w.down);
    out.attention_norm = vector(w.attention_norm);
    out.ffn_norm = vector(w.ffn_norm);
    out.post_attention_norm = vector(w.post_attention_norm);
    out.post_ffn_norm = vector(w.post_ffn_norm);
    out.q_norm = vector(w.q_norm);
    return out;
  }

  core::ThreadPool& pool_;
  const device::Stream& stream_;
  std::vector<device::Buffer>& vectors_;
};

std::int64_t bytes_of(const std::vector<GpuLayer>& layers,
                      const std::vector<device::Buffer>& vectors) {
  std::int64_t total = 0;
  for (const GpuLayer& layer : layers)
    total += layer.qkv.bytes() + layer.o.bytes() + layer.gate_up.bytes() + layer.down.bytes();
  for (const device::Buffer& buffer : vectors) total += static_cast<std::int64_t>(buffer.bytes());
  return total;
}

}  // namespace

std::int64_t GpuWeights::bytes() const {
  return embedding.bytes() + output.bytes() + bytes_of(layers, vectors);
}

std::int64_t GpuAssistantWeights::bytes() const {
  return pre.bytes() + post.bytes() + head.bytes() + bytes_of(layers, vectors);
}

Result<GpuWeights> upload_weights(const Weights& host, const Config& config, core::ThreadPool& pool,
                                  const device::Stream& stream,
                                  const std::function<void(double fraction)>& progress,
                                  const std::function<bool()>& cancelled) {
  GpuWeights out;
  Uploader uploader(pool, stream, out.vectors);
  out.embedding = uploader.matrix(host.embedding);
  if (host.output.outputs() > 0) out.output = uploader.matrix(host.output);
  out.output_norm = uploader.vector(host.output_norm);
  for (const std::vector<float>& frequencies : rope_frequencies(config, host.rope_factors))
    out.inv_freq.push_back(uploader.vector(frequencies));
  for (const LayerWeights& layer : host.layers) {
    if (cancelled && cancelled()) return Error{ErrorCode::kCancelled, "interrupted while loading"};
    out.layers.push_back(uploader.layer(layer));
    if (progress)
      progress(static_cast<double>(out.layers.size()) / static_cast<double>(host.layers.size()));
  }
  return out;
}

GpuAssistantWeights upload_weights(const AssistantWeights& host, const Config& config,
                                   core::ThreadPool& pool, const device::Stream& stream) {
  GpuAssistantWeights out;
  Uploader uploader(pool, stream, out.vectors);
  out.pre = uploader.matrix(host.pre);
  out.post = uploader.matrix(host.post);
  out.head = uploader.matrix(host.head);
  out.output_norm = uploader.vector(host.output_norm);
  for (const std::vector<float>& frequencies : rope_frequencies(config, host.rope_factors))
    out.inv_freq.push_back(uploader.vector(frequencies));
  for (const AssistantLayer& layer : host.layers) out.layers.push_back(uploader.layer(layer));
  return out;
}

}  // namespace segue::model
#endif
