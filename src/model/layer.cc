// SPDX-License-Identifier: Apache-2.0
// One layer: attention through the step's plan, MLP, residuals.
#include <algorithm>
#include <array>

#include "core/clock.h"
#include "kv/write.h"
#include "model/forward.h"

namespace segue::model {

/// out = in / rms(in) * weight, row by row.
void CpuModel::norm_rows(const std::vector<float>& in, const std::vector<float>& weight,
                         std::int64_t count, std::vector<float>& out) {
  const std::int64_t hidden = config_.hidden;
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    ew.rms_norm(in.data() + first * hidden, hidden, weight.data(), config_.rms_eps, last - first,
                hidden, out.data() + first * hidden, hidden);
  });
}

/// x += post_norm(normed), or x += normed without post norms.
void CpuModel::residual(const std::vector<float>& post_norm, std::int64_t count) {
  const std::int64_t hidden = config_.hidden;
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    float* branch = normed.data() + first * hidden;
    if (!post_norm.empty()) {
      ew.rms_norm(branch, hidden, post_norm.data(), config_.rms_eps, last - first, hidden, branch,
                  hidden);
    }
    ew.add(x.data() + first * hidden, branch, (last - first) * hidden, x.data() + first * hidden);
  });
}

/// Norm per head and RoPE on the queries.
void CpuModel::position_queries(int layer, std::int64_t count) {
  const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  const Layer& place = config_.layers[static_cast<std::size_t>(layer)];
  const LayerKind& kind = config_.kind_of(place);
  const float* angles = cos_sin[static_cast<std::size_t>(place.kind)].data();
  const std::int64_t size = w.q.outputs();
  const ops::RopeShape shape = kind.rope(config_.q_heads, config_.rope_pairs);
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    float* at = q.data() + first * size;
    if (config_.qk_norm) {
      ew.rms_norm(at, kind.head_dim, w.q_norm.data(), config_.rms_eps,
                  (last - first) * config_.q_heads, kind.head_dim, at, kind.head_dim);
    }
    ew.rope(at, size, angles + first * kind.rotary, last - first, shape);
  });
}

/// Norms per head and RoPE on the keys, norm on the values, and both into the cache.
void CpuModel::store_keys(const StepInput& input, int layer, std::int64_t count) {
  const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  const Layer& place = config_.layers[static_cast<std::size_t>(layer)];
  const LayerKind& kind = config_.kind_of(place);
  const std::int64_t size = w.k.outputs();
  const std::int64_t dim = kind.head_dim;
  const float* angles = cos_sin[static_cast<std::size_t>(place.kind)].data();
  const ops::RopeShape shape = kind.rope(kind.kv_heads, config_.rope_pairs);
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    float* k_rows = k.data() + first * size;
    float* v_rows = v.data() + first * size;
    const std::int64_t heads = (last - first) * kind.kv_heads;
    const float* raw = kind.v_from_k ? k_rows : v_rows;
    if (config_.v_norm) {
      ew.rms_norm(raw, dim, nullptr, config_.rms_eps, heads, dim, v_rows, dim);
    } else if (raw != v_rows) {
      std::copy_n(raw, (last - first) * size, v_rows);
    }
    if (config_.qk_norm)
      ew.rms_norm(k_rows, dim, w.k_norm.data(), config_.rms_eps, heads, dim, k_rows, dim);
    ew.rope(k_rows, size, angles + first * kind.rotary, last - first, shape);
  });
  const kv::View view = input.cache->view(place.kind, place.kv_layer);
  std::int64_t row = 0;
  for (std::size_t s = 0; s < input.sequences.size(); ++s) {
    const SequenceInput& sequence = input.sequences[s];
    const kv::PageTable& table = tables[static_cast<std::size_t>(place.kind)][s];
    const auto rows_here = static_cast<std::int64_t>(sequence.tokens.size());
    for_rows(rows_here, [&](std::int64_t first, std::int64_t last) {
      const std::int64_t at = (row + first) * size;
      kv::write_rows(view, table, sequence.depth + first, last - first,
                     {k.data() + at, v.data() + at, size, size});
    });
    row += rows_here;
  }
}

void CpuModel::attend(const StepInput& input, int layer) {
  const Layer& place = config_.layers[static_cast<std::size_t>(layer)];
  const auto kind = static_cast<std::size_t>(place.kind);
  const attention::Plan& plan = plans[kind];
  attention::Params params;
  params.plan = &plan;
  params.q = q.data();
  params.out = attended.data();
  params.kv = input.cache->view(place.kind, place.kv_layer);
  params.tables = tables[kind].data();
  params.scale = config_.attention_scale;
  params.partial_m = partial_m.data();
  params.partial_l = partial_l.data();
  params.partial_o = partial_o.data();
  attention::Stream stream{&pool};
  const double start = core::now_us();
  plan.kernel->launch(params, stream);
  groups[kind].attention_us += core::now_us() - start;
}

void CpuModel::attention_block(const StepInput& input, int layer, std::int64_t count) {
  const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  const bool owns_kv = config_.layers[static_cast<std::size_t>(layer)].owns_kv;
  const std::int64_t hidden = config_.hidden;
  grow(normed, count * hidden);
  grow(q, count * w.q.outputs());
  grow(attended, count * w.q.outputs());
  grow(k, count * w.k.outputs());
  grow(v, count * w.k.outputs());
  norm_rows(x, w.attention_norm, count, normed);
  rows.assign(normed.data(), count, hidden);
  std::array<ops::Product, 3> products;
  std::size_t used = 0;
  products[used++] = {&w.q, q.data(), w.q.outputs()};
  if (w.k.outputs() > 0) products[used++] = {&w.k, k.data(), w.k.outputs()};
  if (w.v.outputs() > 0) products[used++] = {&w.v, v.data(), w.v.outputs()};
  ops::matmul(rows, std::span(products).first(used), pool);
  position_queries(layer, count);
  if (owns_kv) store_keys(input, layer, count);
  attend(input, layer);
  rows.assign(attended.data(), count, w.o.inputs());
  ops::matmul(rows, {&w.o, normed.data(), hidden}, pool);
  residual(w.post_attention_norm, count);
}

/// normed = MLP(norm(x)).
void CpuModel::dense_mlp(const LayerWeights& w, std::int64_t count) {
  const std::int64_t wide = w.gate.outputs();
  grow(gate, count * wide);
  grow(up, count * wide);
  norm_rows(x, w.ffn_norm, count, normed);
  rows.assign(normed.data(), count, config_.hidden);
  const std::array products{ops::Product{&w.gate, gate.data(), wide},
                            ops::Product{&w.up, up.data(), wide}};
  ops::matmul(rows, products, pool);
  const auto activate =
      config_.activation == Activation::kGeluTanh ? ew.gelu_tanh_mul : ew.silu_mul;
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    activate(gate.data() + first * wide, up.data() + first * wide, (last - first) * wide,
             gate.data() + first * wide);
  });
  rows.assign(gate.data(), count, wide);
  ops::matmul(rows, {&w.down, normed.data(), config_.hidden}, pool);
}

void CpuModel::run_layer(const StepInput& input, int layer, std::int64_t count) {
  const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  attention_block(input, layer, count);
  dense_mlp(w, count);
  if (config_.experts.count > 0) add_experts(w, count);
  residual(w.post_ffn_norm, count);
  if (config_.per_layer_input > 0) add_per_layer(layer, count);
  if (config_.layer_scalars) {
    for_rows(count, [&](std::int64_t first, std::int64_t last) {
      float* at = x.data() + first * config_.hidden;
      ew.scale(at, w.scalar, (last - first) * config_.hidden, at);
    });
  }
}

}  // namespace segue::model
