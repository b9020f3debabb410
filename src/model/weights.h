// SPDX-License-Identifier: Apache-2.0
// The weights of a model, found by name in a source, checked against the config and repacked for
// the CPU.
#pragma once

#include <functional>
#include <vector>

#include "core/thread_pool.h"
#include "model/config.h"
#include "model/loader.h"
#include "model/tensors.h"
#include "ops/cpu/matrix.h"
#include "ops/cpu/weight_memory.h"
#include "segue/error.h"

namespace segue::model {

/// Experts of one layer, beside its dense MLP.
struct ExpertWeights {
  ops::Matrix router;                  // [experts, hidden]
  std::vector<float> router_scale;     // [hidden]
  std::vector<float> expert_scale;     // [experts]
  std::vector<ops::Matrix> gate, up;   // [experts] of [intermediate, hidden]
  std::vector<ops::Matrix> down;       // [experts] of [hidden, intermediate]
  std::vector<float> norm;             // [hidden] before the experts
  std::vector<float> post_norm;        // [hidden] after the experts
  std::vector<float> dense_post_norm;  // [hidden] after the dense MLP
};

/// A layer's part of the embedding that every layer adds.
struct PerLayerWeights {
  ops::Matrix gate;              // [width, hidden]
  ops::Matrix projection;        // [hidden, width]
  std::vector<float> post_norm;  // [hidden]
};

struct LayerWeights {
  ops::Matrix q, k, v, o, gate, up, down;  // k and v are empty where the layer has none of its own
  std::vector<float> attention_norm, ffn_norm;            // [hidden]
  std::vector<float> post_attention_norm, post_ffn_norm;  // [hidden], empty without post norms
  std::vector<float> q_norm, k_norm;                      // [head_dim], empty without qk norm
  float scalar = 1.0f;
  PerLayerWeights per_layer;
  ExpertWeights experts;
};

struct Weights {
  ops::WeightMemory memory;
  ops::Matrix embedding;               // [vocab, hidden]
  ops::Matrix output;                  // empty: tied to the embedding
  std::vector<float> output_norm;      // [hidden]
  std::vector<float> rope_factors;     // divisors of the angles of kinds with rope_freqs, or empty
  ops::WeightMemory per_layer_memory;  // of the table alone: on a GPU nothing else stays
  ops::Matrix per_layer_embedding;     // [vocab, layers * width]
  ops::Matrix per_layer_projection;    // [layers * width, hidden]
  std::vector<float> per_layer_norm;   // [width]
  std::vector<LayerWeights> layers;

  const ops::Matrix& head() const { return output.outputs() > 0 ? output : embedding; }
};

/// Refuses missing tensors, shapes that do not fit the config (both shapes in the message), and
/// tensors that the forward pass would not use. `progress` may be empty.
Result<Weights> load_weights(TensorSource& source, const Config& config,
                             const WeightOptions& options, core::ThreadPool& pool,
                             const std::function<void(double fraction)>& progress);

}  // namespace segue::model
