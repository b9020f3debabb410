// SPDX-License-Identifier: Apache-2.0
// What each part of a model is called in the two file formats. Hugging Face names are without the
// prefix of the text model ("model.", "model.language_model."), which TensorSource adds.
#pragma once

#include <cstdint>
#include <string>

namespace segue::model {

enum class Naming : std::uint8_t { kGguf, kHuggingFace };

enum class Part : std::uint8_t {
  kEmbedding,
  kHead,
  kOutputNorm,
  kRopeFactors,
  kAttentionNorm,
  kQ,
  kK,
  kV,
  kO,
  kQNorm,
  kKNorm,
  kPostAttentionNorm,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
  kPostFfnNorm,
  kLayerScalar,
  // The embedding that every layer adds (Gemma 4 E2B, E4B).
  kPerLayerEmbedding,
  kPerLayerModelProjection,
  kPerLayerProjectionNorm,
  kPerLayerGate,
  kPerLayerProjection,
  kPerLayerPostNorm,
  // Experts beside the dense MLP (Gemma 4 26B-A4B).
  kRouter,
  kRouterScale,
  kExpertScale,
  kExpertsGateUp,  // gate rows first
  kExpertsGate,
  kExpertsUp,
  kExpertsDown,
  kDensePostNorm,
  kExpertsNorm,
  kExpertsPostNorm,
};

/// Empty when the format has no such tensor. `layer` is ignored for parts of the whole model.
std::string tensor_name(Naming naming, Part part, int layer = 0);

}  // namespace segue::model
