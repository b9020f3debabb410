// SPDX-License-Identifier: Apache-2.0
// The assistant's forward pass on the CPU, in the same operators and with the same planner as the
// target's. A row of a plan sees the keys up to its own position; a draft sees those before it, so
// it is planned one position earlier than it is rotated to.
#include "model/assistant.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/assistant_weights.h"
#include "model/forward.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/rows.h"

namespace segue::model {
namespace {

/// One kind of layer of the assistant in the step at hand.
struct KindState {
  std::vector<float> inv_freq;  // [rotary / 2]
  std::vector<float> cos_sin;   // [rows, 2, rotary / 2]
  attention::Plan plan;
  std::vector<kv::PageTable> tables;  // [rows]
  kv::View keys;                      // of the layer of the target that is read
};

}  // namespace

struct Assistant::Impl {
  Impl(const LanguageModel& target_in, core::ThreadPool& pool_in, core::IsaLevel isa)
      : target(target_in), pool(pool_in), ew(ops::elementwise(isa)), rows(isa) {}

  const LanguageModel& target;
  core::ThreadPool& pool;
  const ops::Elementwise& ew;
  AssistantConfig config;
  AssistantWeights weights;
  std::vector<int> reads;        // [kinds] the kind of the target whose K and V are read
  std::vector<KindState> kinds;  // of the assistant
  ops::Rows rows;
  std::int64_t count = 0;  // sequences of the step

  std::vector<float> concatenated, x, normed, q, attended, gate, up;  // [count, width each]
  std::vector<float> hidden, logits, scores;
  std::vector<float> partial_m, partial_l, partial_o;
  std::vector<std::int32_t> best;  // [centroids] by score

  void prepare_rope();
  Status plan(const kv::Cache& cache, std::span<const AssistantSequence> sequences, int kind,
              int workgroups);
  void residual(const std::vector<float>& post_norm);
  void attention_block(const AssistantLayer& w, int kind);
  void mlp_block(const AssistantLayer& w);
  void head();
  void centroid_head(std::int64_t row);
};

void Assistant::Impl::prepare_rope() {
  kinds.resize(config.text.kinds.size());
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const LayerKind& facts = config.text.kinds[kind];
    std::vector<float>& frequencies = kinds[kind].inv_freq;
    frequencies.resize(static_cast<std::size_t>(facts.rotary / 2));
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / facts.rotary_span;
      double frequency = std::pow(facts.rope_theta, exponent) / facts.rope_factor;
      if (facts.rope_freqs && !weights.rope_factors.empty())
        frequency /= static_cast<double>(weights.rope_factors[i]);
      frequencies[i] = static_cast<float>(frequency);
    }
  }
}

Status Assistant::Impl::plan(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
                             int kind, int workgroups) {
  const auto index = static_cast<std::size_t>(kind);
  const LayerKind& facts = config.text.kinds[index];
  KindState& state = kinds[index];
  const KvPlace place = target.last_kv_layer(reads[index]);
  const kv::PoolSpec& spec = cache.spec(place.pool);
  std::vector<attention::SequenceRows> row_of;
  std::vector<std::int32_t> positions;
  state.tables.clear();
  for (const AssistantSequence& sequence : sequences) {
    CHECK(sequence.depth >= 1);
    row_of.push_back({sequence.depth - 1, 1, false});
    positions.push_back(static_cast<std::int32_t>(sequence.depth));
    state.tables.push_back(cache.table(sequence.id, place.pool));
  }
  state.keys = cache.view(place.pool, place.layer);
  attention::PlanInput input;
  input.shape = {config.text.q_heads, facts.kv_heads, facts.head_dim, facts.window,
                 spec.type,           spec.layout,    spec.page_size};
  input.sequences = row_of;
  attention::DeviceFacts device = device_facts(target.place(), input.shape, nullptr);
  if (workgroups > 0) device.workgroups = workgroups;
  if (Status status = attention::plan(input, device, state.plan); !status.ok()) return status;
  grow(partial_m, state.plan.partials);
  grow(partial_l, state.plan.partials);
  grow(partial_o, state.plan.partials * facts.head_dim);
  grow(state.cos_sin, count * facts.rotary);
  ops::rope_table(positions.data(), count, state.inv_freq.data(), facts.rotary / 2, 1.0f,
                  state.cos_sin.data());
  return {};
}

/// x += norm(normed).
void Assistant::Impl::residual(const std::vector<float>& post_norm) {
  ew.rms_norm(normed.data(), config.text.hidden, post_norm.data(), config.text.rms_eps, count,
              config.text.hidden, normed.data(), config.text.hidden);
  ew.add(x.data(), normed.data(), count * config.text.hidden, x.data());
}

void Assistant::Impl::attention_block(const AssistantLayer& w, int kind) {
  const LayerKind& facts = config.text.kinds[static_cast<std::size_t>(kind)];
  KindState& state = kinds[static_cast<std::size_t>(kind)];
  const std::int64_t hidden_size = config.text.hidden;
  const std::int64_t q_size = w.q.outputs();
  const int dim = facts.head_dim;
  grow(q, count * q_size);
  grow(attended, count * q_size);
  ew.rms_norm(x.data(), hidden_size, w.attention_norm.data(), config.text.rms_eps, count,
              hidden_size, normed.data(), hidden_size);
  rows.assign(normed.data(), count, hidden_size);
  ops::matmul(rows, {&w.q, q.data(), q_size}, pool);
  ew.rms_norm(q.data(), dim, w.q_norm.data(), config.text.rms_eps, count * config.text.q_heads, dim,
              q.data(), dim);
  ew.rope(q.data(), q_size, state.cos_sin.data(), count,
          facts.rope(config.text.q_heads, config.text.rope_pairs));
  attention::Params params;
  params.plan = &state.plan;
  params.q = q.data();
  params.out = attended.data();
  params.kv = state.keys;
  params.tables = state.tables.data();
  params.scale = 1.0f;
  params.partial_m = partial_m.data();
  params.partial_l = partial_l.data();
  params.partial_o = partial_o.data();
  attention::Stream stream{&pool};
  state.plan.kernel->launch(params, stream);
  rows.assign(attended.data(), count, q_size);
  ops::matmul(rows, {&w.o, normed.data(), hidden_size}, pool);
  residual(w.post_attention_norm);
}

void Assistant::Impl::mlp_block(const AssistantLayer& w) {
  const std::int64_t hidden_size = config.text.hidden;
  const std::int64_t wide = w.gate.outputs();
  grow(gate, count * wide);
  grow(up, count * wide);
  ew.rms_norm(x.data(), hidden_size, w.ffn_norm.data(), config.text.rms_eps, count, hidden_size,
              normed.data(), hidden_size);
  rows.assign(normed.data(), count, hidden_size);
  const std::array products{ops::Product{&w.gate, gate.data(), wide},
                            ops::Product{&w.up, up.data(), wide}};
  ops::matmul(rows, products, pool);
  ew.gelu_tanh_mul(gate.data(), up.data(), count * wide, gate.data());
  rows.assign(gate.data(), count, wide);
  ops::matmul(rows, {&w.down, normed.data(), hidden_size}, pool);
  residual(w.post_ffn_norm);
}

/// Tokens of the best centroids only: their rows of the head, one product each.
void Assistant::Impl::centroid_head(std::int64_t row) {
  const auto per_centroid = config.text.vocab / config.centroids;
  const float* y = normed.data() + row * config.text.hidden;
  float* out = logits.data() + row * config.text.vocab;
  const float* score = scores.data() + row * config.centroids;
  std::fill(out, out + config.text.vocab, -std::numeric_limits<float>::infinity());
  best.resize(static_cast<std::size_t>(config.centroids));
  std::iota(best.begin(), best.end(), 0);
  std::partial_sort(best.begin(), best.begin() + config.centroid_top, best.end(),
                    [score](std::int32_t a, std::int32_t b) {
                      return score[a] != score[b] ? score[a] > score[b] : a < b;
                    });
  pool.for_each(config.centroid_top, [&](std::int64_t chosen, int) {
    std::vector<float> weight(static_cast<std::size_t>(config.text.hidden));
    const std::int64_t first = best[static_cast<std::size_t>(chosen)] * per_centroid;
    for (std::int64_t i = first; i < first + per_centroid; ++i) {
      const std::int32_t token = weights.ordering[static_cast<std::size_t>(i)];
      weights.head.dequantize_row(token, weight.data());
      float sum = 0;
      for (std::int64_t d = 0; d < config.text.hidden; ++d)
        sum += weight[static_cast<std::size_t>(d)] * y[d];
      out[token] = sum;
    }
  });
}

/// The last norm, the vector that goes on, and the logits.
void Assistant::Impl::head() {
  grow(hidden, count * config.backbone);
  grow(logits, count * config.text.vocab);
  ew.rms_norm(x.data(), config.text.hidden, weights.output_norm.data(), config.text.rms_eps, count,
              config.text.hidden, normed.data(), config.text.hidden);
  rows.assign(normed.data(), count, config.text.hidden);
  ops::matmul(rows, {&weights.post, hidden.data(), config.backbone}, pool);
  if (config.centroids == 0) {
    ops::matmul(rows, {&weights.head, logits.data(), config.text.vocab}, pool);
    return;
  }
  grow(scores, count * config.centroids);
  ops::matmul(rows, {&weights.centroids, scores.data(), config.centroids}, pool);
  for (std::int64_t row = 0; row < count; ++row) centroid_head(row);
}

Assistant::Assistant(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Assistant::~Assistant() = default;

Result<std::unique_ptr<Assistant>> Assistant::load(const std::string& path,
                                                   const LanguageModel& target,
                                                   core::ThreadPool& pool,
                                                   const WeightOptions& options) {
  Result<LoadedAssistant> loaded = load_assistant(path, options, pool);
  if (!loaded.ok()) return loaded.error();
  const Result<std::vector<int>> reads = fit(loaded->config, target.config());
  if (!reads.ok()) return reads.error();
  auto impl = std::make_unique<Impl>(target, pool, options.isa);
  impl->config = std::move(loaded->config);
  impl->weights = std::move(loaded->weights);
  impl->reads = *reads;
  impl->prepare_rope();
  return std::unique_ptr<Assistant>(new Assistant(std::move(impl)));
}

const AssistantConfig& Assistant::config() const { return impl_->config; }
std::int64_t Assistant::weight_bytes() const { return impl_->weights.memory.bytes(); }

Status Assistant::begin(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
                        int workgroups) {
  Impl& m = *impl_;
  m.count = std::ssize(sequences);
  for (int kind = 0; kind < static_cast<int>(m.kinds.size()); ++kind) {
    if (Status status = m.plan(cache, sequences, kind, workgroups); !status.ok()) return status;
  }
  return {};
}

Assistant::Output Assistant::step(std::span<const std::int32_t> tokens, const float* hidden) {
  Impl& m = *impl_;
  CHECK(std::ssize(tokens) == m.count);
  const std::int64_t backbone = m.config.backbone;
  grow(m.concatenated, m.count * 2 * backbone);
  grow(m.x, m.count * m.config.text.hidden);
  grow(m.normed, m.count * m.config.text.hidden);
  for (std::int64_t row = 0; row < m.count; ++row) {
    float* both = m.concatenated.data() + row * 2 * backbone;
    m.target.embed_token(tokens[static_cast<std::size_t>(row)], both);
    std::copy_n(hidden + row * backbone, backbone, both + backbone);
  }
  m.rows.assign(m.concatenated.data(), m.count, 2 * backbone);
  ops::matmul(m.rows, {&m.weights.pre, m.x.data(), m.config.text.hidden}, m.pool);
  for (std::size_t layer = 0; layer < m.weights.layers.size(); ++layer) {
    const AssistantLayer& w = m.weights.layers[layer];
    m.attention_block(w, m.config.text.layers[layer].kind);
    m.mlp_block(w);
    m.ew.scale(m.x.data(), w.scalar[0], m.count * m.config.text.hidden, m.x.data());
  }
  m.head();
  return {m.logits.data(), m.hidden.data()};
}

}  // namespace segue::model
