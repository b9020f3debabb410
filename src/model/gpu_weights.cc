// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "model/gpu_weights.h"

#include <cstdint>
#include <span>
#include <string>

#include "model/step.h"

namespace segue::model {
namespace {

/// Matrices that become one.
class Parts {
 public:
  template <class... Matrices>
  explicit Parts(const Matrices&... all) {
    for (const ops::Matrix* part : {&all...}) {
      if (part->outputs() > 0) parts_.push_back(part);
    }
  }
  operator std::span<const ops::Matrix* const>() const { return parts_; }
  std::int64_t bytes(bool table = false) const {
    if (parts_.empty()) return 0;
    std::int64_t outputs = 0;
    for (const ops::Matrix* part : parts_) outputs += part->outputs();
    const auto form = table ? ops::cuda::Form::kBf16 : ops::cuda::form_of(parts_);
    return ops::cuda::bytes_of(form, outputs, parts_.front()->inputs());
  }

 private:
  std::vector<const ops::Matrix*> parts_;
};

Parts qkv_of(const LayerWeights& w) { return Parts(w.q, w.k, w.v); }
Parts qkv_of(const AssistantLayer& w) { return Parts(w.q); }

template <class Layer>
std::int64_t layer_bytes(const std::vector<Layer>& layers) {
  std::int64_t total = 0;
  for (const Layer& w : layers) {
    total += qkv_of(w).bytes() + Parts(w.o).bytes() + Parts(w.gate, w.up).bytes() +
             Parts(w.down).bytes();
  }
  return total;
}

class Uploader {
 public:
  Uploader(core::ThreadPool& pool, const device::Stream& stream,
           std::vector<device::Buffer>& vectors)
      : pool_(pool), stream_(stream), vectors_(vectors) {}

  ops::cuda::Matrix matrix(std::span<const ops::Matrix* const> parts) {
    return ops::cuda::Matrix::upload(parts, ops::cuda::form_of(parts), pool_, stream_);
  }
  ops::cuda::Matrix matrix(const ops::Matrix& only) { return matrix(Parts(only)); }
  /// Rows are read from it.
  ops::cuda::Matrix table(const ops::Matrix& only) {
    return ops::cuda::Matrix::upload(Parts(only), ops::cuda::Form::kBf16, pool_, stream_);
  }
  /// Null for an empty one.
  const float* vector(const std::vector<float>& values) {
    if (values.empty()) return nullptr;
    return vectors_.emplace_back(buffer(values)).as<const float>();
  }
  template <class T>
  device::Buffer buffer(const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    device::Buffer out(bytes);
    device::copy_to_device(out.as<>(), values.data(), bytes, stream_);
    stream_.synchronize();
    return out;
  }
  GpuLayer layer(const LayerWeights& w) {
    GpuLayer out = around(w);
    out.k_norm = vector(w.k_norm);
    out.scalar = w.scalar;
    if (w.per_layer.gate.outputs() == 0) return out;
    out.per_layer_gate = matrix(w.per_layer.gate);
    out.per_layer_projection = matrix(w.per_layer.projection);
    out.per_layer_norm = vector(w.per_layer.post_norm);
    return out;
  }
  GpuLayer layer(const AssistantLayer& w) {
    GpuLayer out = around(w);
    out.scalar = w.scalar[0];
    return out;
  }

 private:
  /// What layers of a model and of an assistant have in common.
  template <class Layer>
  GpuLayer around(const Layer& w) {
    GpuLayer out;
    out.qkv = matrix(qkv_of(w));
    out.o = matrix(w.o);
    out.gate_up = matrix(Parts(w.gate, w.up));
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
    total += layer.qkv.bytes() + layer.o.bytes() + layer.gate_up.bytes() + layer.down.bytes() +
             layer.per_layer_gate.bytes() + layer.per_layer_projection.bytes();
  for (const device::Buffer& buffer : vectors) total += static_cast<std::int64_t>(buffer.bytes());
  return total;
}

}  // namespace

std::int64_t gpu_bytes(const Weights& host) {
  std::int64_t total = Parts(host.embedding).bytes(true) + Parts(host.output).bytes() +
                       Parts(host.per_layer_projection).bytes() + layer_bytes(host.layers);
  for (const LayerWeights& w : host.layers)
    total += Parts(w.per_layer.gate).bytes() + Parts(w.per_layer.projection).bytes();
  return total;
}

std::int64_t gpu_bytes(const AssistantWeights& host) {
  return Parts(host.pre).bytes() + Parts(host.post).bytes() +
         Parts(host.head).bytes(!host.ordering.empty()) + Parts(host.centroids).bytes() +
         std::ssize(host.ordering) * 4 + layer_bytes(host.layers);
}

std::string forms_text(const std::vector<GpuLayer>& layers) {
  bool four_bit = false;
  for (const GpuLayer& w : layers) {
    for (const ops::cuda::Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down})
      four_bit = four_bit || matrix->form() == ops::cuda::Form::kFourBit;
  }
  return four_bit ? "4 bit and bf16" : "bf16";
}

std::int64_t GpuWeights::bytes() const {
  return embedding.bytes() + output.bytes() + per_layer_projection.bytes() +
         bytes_of(layers, vectors);
}

std::int64_t GpuAssistantWeights::bytes() const {
  return pre.bytes() + post.bytes() + head.bytes() + centroids.bytes() +
         static_cast<std::int64_t>(ordering.bytes()) + bytes_of(layers, vectors);
}

Result<GpuWeights> upload_weights(const Weights& host, const Config& config, core::ThreadPool& pool,
                                  const device::Stream& stream,
                                  const std::function<void(double fraction)>& progress,
                                  const std::function<bool()>& cancelled) {
  GpuWeights out;
  Uploader uploader(pool, stream, out.vectors);
  out.embedding = uploader.table(host.embedding);
  if (host.output.outputs() > 0) out.output = uploader.matrix(host.output);
  out.output_norm = uploader.vector(host.output_norm);
  if (config.per_layer_input > 0) {
    out.per_layer_projection = uploader.matrix(host.per_layer_projection);
    out.per_layer_norm = uploader.vector(host.per_layer_norm);
  }
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
  if (host.ordering.empty()) {
    out.head = uploader.matrix(host.head);
  } else {
    out.head = uploader.table(host.head);
    out.centroids = uploader.matrix(host.centroids);
    out.ordering = uploader.buffer(host.ordering);
  }
  out.output_norm = uploader.vector(host.output_norm);
  for (const std::vector<float>& frequencies : rope_frequencies(config, host.rope_factors))
    out.inv_freq.push_back(uploader.vector(frequencies));
  for (const AssistantLayer& layer : host.layers) out.layers.push_back(uploader.layer(layer));
  return out;
}

}  // namespace segue::model
#endif
