// SPDX-License-Identifier: Apache-2.0
// The weights of a model or an assistant on a GPU: matrices of 4 bits as the file has them, others
// and tables of embeddings in bf16, those over the same input side by side, norms in f32. The table
// of per-layer embeddings stays on the host: half of the bytes of a small model, of which a step
// reads a row per token. Private to this folder, CUDA builds only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "device/device.h"
#include "model/assistant_weights.h"
#include "model/weights.h"
#include "ops/cuda/matrix.h"

namespace segue::model {

struct GpuLayer {
  ops::cuda::Matrix qkv;      // [q | k | v, hidden]; no v where V is K, q alone in an assistant
  ops::cuda::Matrix o;        // [hidden, q]
  ops::cuda::Matrix gate_up;  // [gate | up, hidden]
  ops::cuda::Matrix down;     // [hidden, intermediate]
  // Empty without an embedding that every layer adds:
  ops::cuda::Matrix per_layer_gate;        // [width, hidden]
  ops::cuda::Matrix per_layer_projection;  // [hidden, width]
  // [hidden] and [head_dim] f32 on the device; null where the model has none
  const float* attention_norm = nullptr;
  const float* ffn_norm = nullptr;
  const float* post_attention_norm = nullptr;
  const float* post_ffn_norm = nullptr;
  const float* per_layer_norm = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float scalar = 1.0f;
};

struct GpuWeights {
  ops::cuda::Matrix embedding;             // [vocab, hidden]
  ops::cuda::Matrix output;                // empty: tied to the embedding
  ops::cuda::Matrix per_layer_projection;  // [layers * width, hidden], or empty
  const float* output_norm = nullptr;
  const float* per_layer_norm = nullptr;  // [width]
  std::vector<const float*> inv_freq;     // [kinds] of [rotary / 2]
  std::vector<GpuLayer> layers;
  std::vector<device::Buffer> vectors;  // what the pointers point into

  const ops::cuda::Matrix& head() const { return output.outputs() > 0 ? output : embedding; }
  std::int64_t bytes() const;
};

/// Bytes of the matrices there.
std::int64_t gpu_bytes(const Weights& host);
std::int64_t gpu_bytes(const AssistantWeights& host);

/// "bf16", "4 bit and bf16".
std::string forms_text(const std::vector<GpuLayer>& layers);

/// Throws DeviceError. kCancelled between layers when `cancelled` (may be empty) says so;
/// `progress` may be empty.
Result<GpuWeights> upload_weights(const Weights& host, const Config& config, core::ThreadPool& pool,
                                  const device::Stream& stream,
                                  const std::function<void(double fraction)>& progress,
                                  const std::function<bool()>& cancelled);

struct GpuAssistantWeights {
  ops::cuda::Matrix pre;        // [hidden, 2 * backbone]
  ops::cuda::Matrix post;       // [backbone, hidden]
  ops::cuda::Matrix head;       // [vocab, hidden]; a table where there are centroids
  ops::cuda::Matrix centroids;  // [centroids, hidden], empty without
  device::Buffer ordering;      // [centroids, vocab / centroids] int32
  const float* output_norm = nullptr;
  std::vector<const float*> inv_freq;  // [kinds] of [rotary / 2]
  std::vector<GpuLayer> layers;
  std::vector<device::Buffer> vectors;  // what the pointers point into

  std::int64_t bytes() const;
};

/// Throws DeviceError.
GpuAssistantWeights upload_weights(const AssistantWeights& host, const Config& config,
                                   core::ThreadPool& pool, const device::Stream& stream);

}  // namespace segue::model
