// SPDX-License-Identifier: Apache-2.0
// The table of names, in the order of Part. "{}" stands for the layer.
#include "model/names.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace segue::model {
namespace {

struct Names {
  Part part;
  std::string_view gguf;
  std::string_view hugging_face;
};

constexpr std::array<Names, 34> kNames{{
    {Part::kEmbedding, "token_embd.weight", "embed_tokens.weight"},
    {Part::kHead, "output.weight", "lm_head.weight"},
    {Part::kOutputNorm, "output_norm.weight", "norm.weight"},
    {Part::kRopeFactors, "rope_freqs.weight", ""},
    {Part::kAttentionNorm, "blk.{}.attn_norm.weight", "layers.{}.input_layernorm.weight"},
    {Part::kQ, "blk.{}.attn_q.weight", "layers.{}.self_attn.q_proj.weight"},
    {Part::kK, "blk.{}.attn_k.weight", "layers.{}.self_attn.k_proj.weight"},
    {Part::kV, "blk.{}.attn_v.weight", "layers.{}.self_attn.v_proj.weight"},
    {Part::kO, "blk.{}.attn_output.weight", "layers.{}.self_attn.o_proj.weight"},
    {Part::kQNorm, "blk.{}.attn_q_norm.weight", "layers.{}.self_attn.q_norm.weight"},
    {Part::kKNorm, "blk.{}.attn_k_norm.weight", "layers.{}.self_attn.k_norm.weight"},
    {Part::kPostAttentionNorm, "blk.{}.post_attention_norm.weight",
     "layers.{}.post_attention_layernorm.weight"},
    {Part::kFfnNorm, "blk.{}.ffn_norm.weight", "layers.{}.pre_feedforward_layernorm.weight"},
    {Part::kGate, "blk.{}.ffn_gate.weight", "layers.{}.mlp.gate_proj.weight"},
    {Part::kUp, "blk.{}.ffn_up.weight", "layers.{}.mlp.up_proj.weight"},
    {Part::kDown, "blk.{}.ffn_down.weight", "layers.{}.mlp.down_proj.weight"},
    {Part::kPostFfnNorm, "blk.{}.post_ffw_norm.weight",
     "layers.{}.post_feedforward_layernorm.weight"},
    {Part::kLayerScalar, "blk.{}.layer_output_scale.weight", "layers.{}.layer_scalar"},
    {Part::kPerLayerEmbedding, "per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
    {Part::kPerLayerModelProjection, "per_layer_model_proj.weight",
     "per_layer_model_projection.weight"},
    {Part::kPerLayerProjectionNorm, "per_layer_proj_norm.weight",
     "per_layer_projection_norm.weight"},
    {Part::kPerLayerGate, "blk.{}.inp_gate.weight", "layers.{}.per_layer_input_gate.weight"},
    {Part::kPerLayerProjection, "blk.{}.proj.weight", "layers.{}.per_layer_projection.weight"},
    {Part::kPerLayerPostNorm, "blk.{}.post_norm.weight",
     "layers.{}.post_per_layer_input_norm.weight"},
    {Part::kRouter, "blk.{}.ffn_gate_inp.weight", "layers.{}.router.proj.weight"},
    {Part::kRouterScale, "blk.{}.ffn_gate_inp.scale", "layers.{}.router.scale"},
    {Part::kExpertScale, "blk.{}.ffn_down_exps.scale", "layers.{}.router.per_expert_scale"},
    {Part::kExpertsGateUp, "blk.{}.ffn_gate_up_exps.weight", "layers.{}.experts.gate_up_proj"},
    {Part::kExpertsGate, "blk.{}.ffn_gate_exps.weight", ""},
    {Part::kExpertsUp, "blk.{}.ffn_up_exps.weight", ""},
    {Part::kExpertsDown, "blk.{}.ffn_down_exps.weight", "layers.{}.experts.down_proj"},
    {Part::kDensePostNorm, "blk.{}.post_ffw_norm_1.weight",
     "layers.{}.post_feedforward_layernorm_1.weight"},
    {Part::kExpertsNorm, "blk.{}.pre_ffw_norm_2.weight",
     "layers.{}.pre_feedforward_layernorm_2.weight"},
    {Part::kExpertsPostNorm, "blk.{}.post_ffw_norm_2.weight",
     "layers.{}.post_feedforward_layernorm_2.weight"},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i].part != static_cast<Part>(i)) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

std::string tensor_name(Naming naming, Part part, int layer) {
  const Names& names = kNames[static_cast<std::size_t>(part)];
  const std::string_view form = naming == Naming::kGguf ? names.gguf : names.hugging_face;
  return fmt::format(fmt::runtime(form), layer);
}

}  // namespace segue::model
