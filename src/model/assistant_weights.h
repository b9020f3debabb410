// SPDX-License-Identifier: Apache-2.0
// The weights of a Gemma 4 assistant, from a Hugging Face folder or a GGUF file, checked against
// its config and repacked for the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "model/assistant_config.h"
#include "model/loader.h"
#include "ops/cpu/matrix.h"
#include "ops/cpu/weight_memory.h"
#include "segue/error.h"

namespace segue::model {

struct AssistantLayer {
  ops::Matrix q, o, gate, up, down;
  std::vector<float> attention_norm, post_attention_norm, ffn_norm, post_ffn_norm;  // [hidden]
  std::vector<float> q_norm;                                                        // [head_dim]
  std::vector<float> scalar;  // [1] the residual stream behind the layer is multiplied by it
};

struct AssistantWeights {
  ops::WeightMemory memory;
  ops::Matrix pre;                     // [hidden, 2 * backbone]
  ops::Matrix post;                    // [backbone, hidden]
  ops::Matrix head;                    // [vocab, hidden]
  ops::Matrix centroids;               // [centroids, hidden], empty without
  std::vector<std::int32_t> ordering;  // [centroids, vocab / centroids] token ids by centroid
  std::vector<float> output_norm;      // [hidden]
  std::vector<float> rope_factors;     // [rotary / 2 of global heads] divisors, or empty
  std::vector<AssistantLayer> layers;
};

struct LoadedAssistant {
  AssistantConfig config;
  AssistantWeights weights;
};

/// `path`: a folder with config.json and safetensors, a GGUF file, or a config.json alone, which
/// gets random weights, for measurements. Refuses missing tensors,
/// shapes that do not fit the config (both in the message) and tensors that drafting would ignore.
Result<LoadedAssistant> load_assistant(const std::string& path, const WeightOptions& options,
                                       core::ThreadPool& pool);

}  // namespace segue::model
