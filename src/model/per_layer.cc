// SPDX-License-Identifier: Apache-2.0
// The embedding that every layer adds (Gemma 4 E2B, E4B): a table row per token and a projection of
// the first layer's input, mixed once per step; each layer gates its part with its own state.
#include <cmath>

#include "model/forward.h"

namespace segue::model {

/// per_layer = (table[token] * sqrt(width) + norm(projection x / sqrt(hidden))) / sqrt(2).
void CpuModel::prepare_per_layer(const StepInput& input, std::int64_t count) {
  const std::int64_t width = config_.per_layer_input;
  const std::int64_t total = width * config_.layer_count();
  grow(per_layer, count * total);
  grow(gate, count * total);
  rows.assign(x.data(), count, config_.hidden);
  ops::matmul(rows, {&weights.per_layer_projection, per_layer.data(), total}, pool);
  const float table_scale = std::sqrt(static_cast<float>(width));
  const float projection_scale = 1.0f / std::sqrt(static_cast<float>(config_.hidden));
  const float half = std::sqrt(0.5f);
  std::int64_t row = 0;
  for (const SequenceInput& sequence : input.sequences) {
    const auto rows_here = static_cast<std::int64_t>(sequence.tokens.size());
    for_rows(rows_here, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        float* mixed = per_layer.data() + (row + i) * total;
        float* token = gate.data() + (row + i) * total;
        weights.per_layer_embedding.dequantize_row(sequence.tokens[static_cast<std::size_t>(i)],
                                                   token);
        ew.scale(token, table_scale, total, token);
        ew.scale(mixed, projection_scale, total, mixed);
        ew.rms_norm(mixed, width, weights.per_layer_norm.data(), config_.rms_eps,
                    config_.layer_count(), width, mixed, width);
        ew.add(mixed, token, total, mixed);
        ew.scale(mixed, half, total, mixed);
      }
    });
    row += rows_here;
  }
}

/// x += norm(projection (gelu(gate x) * per_layer[layer])).
void CpuModel::add_per_layer(int layer, std::int64_t count) {
  const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  const std::int64_t width = config_.per_layer_input;
  const std::int64_t total = width * config_.layer_count();
  grow(gate, count * width);
  rows.assign(x.data(), count, config_.hidden);
  ops::matmul(rows, {&w.per_layer.gate, gate.data(), width}, pool);
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      float* at = gate.data() + row * width;
      ew.gelu_tanh_mul(at, per_layer.data() + row * total + layer * width, width, at);
    }
  });
  rows.assign(gate.data(), count, width);
  ops::matmul(rows, {&w.per_layer.projection, normed.data(), config_.hidden}, pool);
  residual(w.per_layer.post_norm, count);
}

}  // namespace segue::model
