// SPDX-License-Identifier: Apache-2.0
// The weights of a model, found by name in a file, checked against the config and repacked for the
// CPU.
#pragma once

#include <functional>
#include <vector>

#include "core/cpu.h"
#include "core/thread_pool.h"
#include "format/gguf/gguf.h"
#include "model/config.h"
#include "ops/cpu/matrix.h"
#include "ops/cpu/weight_memory.h"
#include "segue/error.h"

namespace segue::model {

struct LayerWeights {
  ops::Matrix q, k, v, o, gate, up, down;
  std::vector<float> attention_norm, ffn_norm;            // [hidden]
  std::vector<float> post_attention_norm, post_ffn_norm;  // [hidden], empty without post norms
  std::vector<float> q_norm, k_norm;                      // [head_dim], empty without qk norm
};

struct Weights {
  ops::WeightMemory memory;
  ops::Matrix embedding;            // [vocab, hidden]
  ops::Matrix output;               // empty: tied to the embedding
  std::vector<float> output_norm;   // [hidden]
  std::vector<float> rope_factors;  // [rope_dims / 2] divisors of the angle, or empty
  std::vector<LayerWeights> layers;

  const ops::Matrix& head() const { return output.outputs() > 0 ? output : embedding; }
};

struct WeightOptions {
  core::IsaLevel isa = core::IsaLevel::kPortable;
  bool dequantise = false;  // matrices become f32
};

/// Refuses missing tensors, shapes that do not fit the config (both shapes in the message), and
/// tensors that the forward pass would not use. `progress` may be empty.
Result<Weights> load_weights(const gguf::File& file, const Config& config,
                             const WeightOptions& options, core::ThreadPool& pool,
                             const std::function<void(double fraction)>& progress);

}  // namespace segue::model
