// SPDX-License-Identifier: Apache-2.0
// Experts beside the dense MLP (Gemma 4 26B-A4B). Rows are gathered per expert, experts run in
// ascending order, so that a row's sum has one order whatever rows are beside it.
#include <algorithm>
#include <array>
#include <cmath>

#include "model/forward.h"
#include "ops/cpu/experts.h"

namespace segue::model {

/// Which experts each row uses, from the row before any norm weight.
void CpuModel::route(const LayerWeights& w, std::int64_t count) {
  const std::int64_t hidden = config_.hidden;
  const std::int64_t experts = config_.experts.count;
  const std::int64_t used = config_.experts.used;
  grow(routing.input, count * hidden);
  grow(routing.scores, count * experts);
  grow(routing.chosen, count * used);
  grow(routing.weights, count * used);
  const float scale = 1.0f / std::sqrt(static_cast<float>(hidden));
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    float* at = routing.input.data() + first * hidden;
    ew.rms_norm(x.data() + first * hidden, hidden, w.experts.router_scale.data(), config_.rms_eps,
                last - first, hidden, at, hidden);
    ew.scale(at, scale, (last - first) * hidden, at);
  });
  rows.assign(routing.input.data(), count, hidden);
  ops::matmul(rows, {&w.experts.router, routing.scores.data(), experts}, pool);
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      ops::choose_experts(
          {routing.scores.data() + row * experts, static_cast<std::size_t>(experts)},
          w.experts.expert_scale,
          {routing.chosen.data() + row * used, static_cast<std::size_t>(used)},
          {routing.weights.data() + row * used, static_cast<std::size_t>(used)});
    }
  });
}

/// sum[row] += weight * expert(input[row]) for the rows in `expert_rows`.
void CpuModel::run_expert(const ExpertWeights& w, std::size_t expert) {
  const std::int64_t hidden = config_.hidden;
  const std::int64_t wide = config_.experts.intermediate;
  const auto count = static_cast<std::int64_t>(routing.expert_rows.size());
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const float* from =
          routing.input.data() + routing.expert_rows[static_cast<std::size_t>(i)] * hidden;
      std::copy_n(from, hidden, routing.gathered.data() + i * hidden);
    }
  });
  rows.assign(routing.gathered.data(), count, hidden);
  const std::array products{ops::Product{&w.gate[expert], gate.data(), wide},
                            ops::Product{&w.up[expert], up.data(), wide}};
  ops::matmul(rows, products, pool);
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    ew.gelu_tanh_mul(gate.data() + first * wide, up.data() + first * wide, (last - first) * wide,
                     gate.data() + first * wide);
  });
  rows.assign(gate.data(), count, wide);
  ops::matmul(rows, {&w.down[expert], routing.output.data(), hidden}, pool);
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      float* out = routing.output.data() + i * hidden;
      float* sum = routing.sum.data() + routing.expert_rows[static_cast<std::size_t>(i)] * hidden;
      ew.scale(out, routing.expert_weights[static_cast<std::size_t>(i)], hidden, out);
      ew.add(sum, out, hidden, sum);
    }
  });
}

/// normed = norm(normed) + norm(sum over experts); x is still the state before the MLP.
void CpuModel::add_experts(const LayerWeights& w, std::int64_t count) {
  const std::int64_t hidden = config_.hidden;
  const std::int64_t used = config_.experts.used;
  const ExpertWeights& experts = w.experts;
  route(w, count);
  if (pool.leaves_out()) return;
  grow(routing.gathered, count * hidden);
  grow(routing.output, count * hidden);
  grow(routing.sum, count * hidden);
  grow(gate, count * config_.experts.intermediate);
  grow(up, count * config_.experts.intermediate);
  norm_rows(x, experts.norm, count, routing.input);
  std::fill_n(routing.sum.begin(), count * hidden, 0.0f);
  for (std::size_t expert = 0; expert < experts.gate.size(); ++expert) {
    routing.expert_rows.clear();
    routing.expert_weights.clear();
    for (std::int64_t i = 0; i < count * used; ++i) {
      if (routing.chosen[static_cast<std::size_t>(i)] != static_cast<std::int32_t>(expert))
        continue;
      routing.expert_rows.push_back(static_cast<std::int32_t>(i / used));
      routing.expert_weights.push_back(routing.weights[static_cast<std::size_t>(i)]);
    }
    if (!routing.expert_rows.empty()) run_expert(experts, expert);
  }
  norm_rows(routing.sum, experts.post_norm, count, routing.output);
  norm_rows(normed, experts.dense_post_norm, count, normed);
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    float* at = normed.data() + first * hidden;
    ew.add(at, routing.output.data() + first * hidden, (last - first) * hidden, at);
  });
}

}  // namespace segue::model
