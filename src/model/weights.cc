// SPDX-License-Identifier: Apache-2.0
// Loading: one pass over the tensors that the config asks for, in the source's naming; what is left
// over is refused.
#include "model/weights.h"

#include <algorithm>

namespace segue::model {
namespace {

/// Loads the parts of one layer.
class LayerLoader {
 public:
  LayerLoader(Loader& loader, const Config& config, int layer, LayerWeights& out)
      : loader_(loader),
        config_(config),
        facts_(config.layers[static_cast<std::size_t>(layer)]),
        kind_(config.kind_of(facts_)),
        layer_(layer),
        out_(out) {}

  void load() {
    attention();
    mlp();
    if (config_.per_layer_input > 0) per_layer();
    if (config_.experts.count > 0) experts();
    if (config_.layer_scalars) {
      std::vector<float> scalar{1.0f};
      vector(Part::kLayerScalar, 1, scalar);
      out_.scalar = scalar.front();
    }
  }

 private:
  void matrix(Part part, std::int64_t inputs, std::int64_t outputs, ops::Matrix& out) {
    loader_.matrix(loader_.name(part, layer_), inputs, outputs, out);
  }
  void vector(Part part, std::int64_t size, std::vector<float>& out) {
    loader_.vector(loader_.name(part, layer_), size, out);
  }

  void attention() {
    const std::int64_t hidden = config_.hidden;
    const std::int64_t q_size = std::int64_t{config_.q_heads} * kind_.head_dim;
    const std::int64_t kv_size = std::int64_t{kind_.kv_heads} * kind_.head_dim;
    vector(Part::kAttentionNorm, hidden, out_.attention_norm);
    matrix(Part::kQ, hidden, q_size, out_.q);
    matrix(Part::kO, q_size, hidden, out_.o);
    if (facts_.owns_kv) {
      matrix(Part::kK, hidden, kv_size, out_.k);
      if (!kind_.v_from_k) matrix(Part::kV, hidden, kv_size, out_.v);
    } else {  // some checkpoints still have them
      for (Part part : {Part::kK, Part::kV, Part::kKNorm})
        loader_.ignore(loader_.name(part, layer_));
    }
    if (config_.qk_norm) {
      vector(Part::kQNorm, kind_.head_dim, out_.q_norm);
      if (facts_.owns_kv) vector(Part::kKNorm, kind_.head_dim, out_.k_norm);
    }
    if (config_.post_norms) vector(Part::kPostAttentionNorm, hidden, out_.post_attention_norm);
  }

  void mlp() {
    const std::int64_t hidden = config_.hidden;
    vector(Part::kFfnNorm, hidden, out_.ffn_norm);
    matrix(Part::kGate, hidden, facts_.intermediate, out_.gate);
    matrix(Part::kUp, hidden, facts_.intermediate, out_.up);
    matrix(Part::kDown, facts_.intermediate, hidden, out_.down);
    if (config_.post_norms) vector(Part::kPostFfnNorm, hidden, out_.post_ffn_norm);
  }

  void per_layer() {
    matrix(Part::kPerLayerGate, config_.hidden, config_.per_layer_input, out_.per_layer.gate);
    matrix(Part::kPerLayerProjection, config_.per_layer_input, config_.hidden,
           out_.per_layer.projection);
    vector(Part::kPerLayerPostNorm, config_.hidden, out_.per_layer.post_norm);
  }

  void experts() {
    const Experts& facts = config_.experts;
    const std::int64_t hidden = config_.hidden;
    ExpertWeights& experts = out_.experts;
    matrix(Part::kRouter, hidden, facts.count, experts.router);
    vector(Part::kRouterScale, hidden, experts.router_scale);
    vector(Part::kExpertScale, facts.count, experts.expert_scale);
    const std::string both = loader_.name(Part::kExpertsGateUp, layer_);
    if (loader_.has(both)) {
      expert_matrices(both, {hidden, facts.intermediate, 0, 2 * facts.intermediate}, experts.gate);
      expert_matrices(both,
                      {hidden, facts.intermediate, facts.intermediate, 2 * facts.intermediate},
                      experts.up);
    } else {
      const Loader::Slices whole{hidden, facts.intermediate, 0, facts.intermediate};
      expert_matrices(loader_.name(Part::kExpertsGate, layer_), whole, experts.gate);
      expert_matrices(loader_.name(Part::kExpertsUp, layer_), whole, experts.up);
    }
    expert_matrices(loader_.name(Part::kExpertsDown, layer_),
                    {facts.intermediate, hidden, 0, hidden}, experts.down);
    vector(Part::kExpertsNorm, hidden, experts.norm);
    vector(Part::kExpertsPostNorm, hidden, experts.post_norm);
    vector(Part::kDensePostNorm, hidden, experts.dense_post_norm);
  }

  void expert_matrices(const std::string& name, const Loader::Slices& slices,
                       std::vector<ops::Matrix>& out) {
    out.resize(static_cast<std::size_t>(config_.experts.count));
    std::vector<ops::Matrix*> places;
    for (ops::Matrix& matrix : out) places.push_back(&matrix);
    loader_.matrices(name, slices, places);
  }

  Loader& loader_;
  const Config& config_;
  const Layer& facts_;
  const LayerKind& kind_;
  int layer_;
  LayerWeights& out_;
};

/// Divisors of the angles: one per pair of a whole head; the pairs that rotate come first.
void load_rope_factors(Loader& loader, const Config& config, std::vector<float>& out) {
  const std::string name = loader.name(Part::kRopeFactors);
  if (name.empty() || !loader.has(name)) return;
  const auto kind = std::ranges::find(config.kinds, true, &LayerKind::rope_freqs);
  if (kind == config.kinds.end()) return;  // close() refuses the tensor
  loader.vector(name, kind->rotary_span / 2, out);
}

}  // namespace

Result<Weights> load_weights(TensorSource& source, const Config& config,
                             const WeightOptions& options, core::ThreadPool& pool,
                             const std::function<void(double fraction)>& progress) {
  Weights weights;
  Loader loader(source, options, pool, weights.memory, progress);
  loader.matrix(loader.name(Part::kEmbedding), config.hidden, config.vocab, weights.embedding);
  const std::string head = loader.name(Part::kHead);
  if (config.tied) {
    loader.ignore(head);  // a second copy of the embedding
  } else {
    loader.matrix(head, config.hidden, config.vocab, weights.output);
  }
  loader.vector(loader.name(Part::kOutputNorm), config.hidden, weights.output_norm);
  load_rope_factors(loader, config, weights.rope_factors);
  if (config.per_layer_input > 0) {
    const std::int64_t width = std::int64_t{config.layer_count()} * config.per_layer_input;
    loader.fill(weights.per_layer_memory);
    loader.matrix(loader.name(Part::kPerLayerEmbedding), width, config.per_layer_vocab,
                  weights.per_layer_embedding);
    loader.fill(weights.memory);
    loader.matrix(loader.name(Part::kPerLayerModelProjection), config.hidden, width,
                  weights.per_layer_projection);
    loader.vector(loader.name(Part::kPerLayerProjectionNorm), config.per_layer_input,
                  weights.per_layer_norm);
  }
  weights.layers.resize(config.layers.size());
  for (int layer = 0; layer < config.layer_count(); ++layer) {
    LayerLoader(loader, config, layer, weights.layers[static_cast<std::size_t>(layer)]).load();
  }
  if (Status status = loader.close(); !status.ok()) return status.error();
  return weights;
}

}  // namespace segue::model
