// SPDX-License-Identifier: Apache-2.0
// The forward pass of dense decoder models (Gemma 3, llama) on the CPU: products through ops,
// attention through one plan per KV group and step. Everything per row runs in a fixed order;
// threads only divide rows or outputs.
#include "model/lm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/clock.h"
#include "kv/write.h"
#include "model/weights.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/rows.h"

namespace segue::model {
namespace {

/// Rows that one task of a row-wise operation takes; fewer than this run on the calling thread.
constexpr std::int64_t kRowBlock = 16;

template <class T>
void grow(std::vector<T>& buffer, std::int64_t size) {
  if (static_cast<std::int64_t>(buffer.size()) < size)
    buffer.resize(static_cast<std::size_t>(size));
}

}  // namespace

attention::DeviceFacts cpu_device(int threads) { return attention::cpu_device(threads); }

struct LanguageModel::Impl {
  Impl(core::ThreadPool& pool_in, core::IsaLevel isa_in)
      : pool(pool_in),
        isa(isa_in),
        ew(ops::elementwise(isa_in)),
        rows(isa_in),
        device(cpu_device(pool_in.threads())) {}

  core::ThreadPool& pool;
  core::IsaLevel isa;
  const ops::Elementwise& ew;
  Config config;
  Weights weights;
  std::vector<std::vector<float>> inv_freq;  // [kinds][rope_dims / 2]
  ops::Rows rows;
  attention::DeviceFacts device;

  // Activations of a step; they grow to the largest step seen.
  std::vector<float> x, normed, q, k, v, attended, gate, up, logits;  // [rows, width each]
  std::vector<float> partial_m, partial_l, partial_o;
  std::vector<std::vector<float>> cos_sin;         // [kinds][rows, 2, rope_dims / 2]
  std::vector<std::int32_t> positions;             // [rows]
  std::vector<attention::Plan> plans;              // [kinds]
  std::vector<std::vector<kv::PageTable>> tables;  // [kinds][sequences]
  std::vector<attention::SequenceRows> sequence_rows;
  std::vector<GroupRecord> groups;

  template <class F>
  void for_rows(std::int64_t count, F&& fn) {
    if (count <= kRowBlock) return fn(std::int64_t{0}, count);
    pool.for_each((count + kRowBlock - 1) / kRowBlock, [&](std::int64_t task, int) {
      fn(task * kRowBlock, std::min(count, (task + 1) * kRowBlock));
    });
  }

  void prepare_rope();
  Status plan_step(const StepInput& input, std::int64_t count);
  void embed(const StepInput& input, std::int64_t count);
  void attention_block(const StepInput& input, int layer, std::int64_t count);
  void position_and_store(const StepInput& input, int layer, std::int64_t count);
  void attend(const StepInput& input, int layer);
  void mlp_block(int layer, std::int64_t count);
  void residual(const std::vector<float>& post_norm, std::int64_t count);
  std::int64_t head(const StepInput& input);
};

void LanguageModel::Impl::prepare_rope() {
  const int half = config.rope_dims / 2;
  for (const LayerKind& kind : config.kinds) {
    std::vector<float> frequencies(static_cast<std::size_t>(half));
    for (int i = 0; i < half; ++i) {
      double frequency = std::pow(kind.rope_theta, -2.0 * i / config.rope_dims) / kind.rope_factor;
      if (!weights.rope_factors.empty())
        frequency /= weights.rope_factors[static_cast<std::size_t>(i)];
      frequencies[static_cast<std::size_t>(i)] = static_cast<float>(frequency);
    }
    inv_freq.push_back(std::move(frequencies));
  }
}

Status LanguageModel::Impl::plan_step(const StepInput& input, std::int64_t count) {
  sequence_rows.clear();
  positions.clear();
  for (const SequenceInput& sequence : input.sequences) {
    const auto rows_here = static_cast<int>(sequence.tokens.size());
    sequence_rows.push_back({sequence.depth, rows_here, sequence.prefill});
    for (int row = 0; row < rows_here; ++row) {
      positions.push_back(static_cast<std::int32_t>(sequence.depth + row));
    }
  }
  attention::DeviceFacts facts = device;
  if (input.workgroups > 0) facts.workgroups = input.workgroups;
  for (std::size_t kind = 0; kind < config.kinds.size(); ++kind) {
    const kv::PoolSpec& pool_spec = input.cache->spec(static_cast<int>(kind));
    attention::PlanInput plan_input;
    plan_input.shape = {config.q_heads,
                        config.kinds[kind].kv_heads,
                        config.kinds[kind].head_dim,
                        config.kinds[kind].window,
                        pool_spec.type,
                        pool_spec.layout,
                        pool_spec.page_size};
    plan_input.sequences = sequence_rows;
    plan_input.policy = input.policy;
    plan_input.decode_rows = input.decode_rows;
    plan_input.kernel = input.kernel;
    attention::Plan& plan = plans[kind];
    if (Status status = attention::plan(plan_input, facts, plan); !status.ok()) return status;
    grow(partial_m, plan.partials);
    grow(partial_l, plan.partials);
    grow(partial_o, plan.partials * config.kinds[kind].head_dim);
    tables[kind].clear();
    for (const SequenceInput& sequence : input.sequences) {
      tables[kind].push_back(input.cache->table(sequence.id, static_cast<int>(kind)));
    }
    grow(cos_sin[kind], count * config.rope_dims);
    ops::rope_table(positions.data(), count, inv_freq[kind].data(), config.rope_dims / 2, 1.0f,
                    cos_sin[kind].data());
    groups[kind].plan = &plan;
    groups[kind].attention_us = 0;
  }
  return {};
}

void LanguageModel::Impl::embed(const StepInput& input, std::int64_t count) {
  grow(x, count * config.hidden);
  std::int64_t row = 0;
  for (const SequenceInput& sequence : input.sequences) {
    for_rows(static_cast<std::int64_t>(sequence.tokens.size()), [&](std::int64_t first,
                                                                    std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        float* out = x.data() + (row + i) * config.hidden;
        weights.embedding.dequantize_row(sequence.tokens[static_cast<std::size_t>(i)], out);
        if (config.embedding_scale != 1.0f)
          ew.scale(out, config.embedding_scale, config.hidden, out);
      }
    });
    row += static_cast<std::int64_t>(sequence.tokens.size());
  }
}

/// Norms per head, RoPE, and K and V into the cache.
void LanguageModel::Impl::position_and_store(const StepInput& input, int layer,
                                             std::int64_t count) {
  const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  const int kind = config.layer_kind[static_cast<std::size_t>(layer)];
  const LayerKind& facts = config.kinds[static_cast<std::size_t>(kind)];
  const std::int64_t q_size = w.q.outputs();
  const std::int64_t kv_size = w.k.outputs();
  const int dim = facts.head_dim;
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    float* q_rows = q.data() + first * q_size;
    float* k_rows = k.data() + first * kv_size;
    const std::int64_t n = last - first;
    if (config.qk_norm) {
      ew.rms_norm(q_rows, dim, w.q_norm.data(), config.rms_eps, n * config.q_heads, dim, q_rows,
                  dim);
      ew.rms_norm(k_rows, dim, w.k_norm.data(), config.rms_eps, n * facts.kv_heads, dim, k_rows,
                  dim);
    }
    const float* angles = cos_sin[static_cast<std::size_t>(kind)].data() + first * config.rope_dims;
    ew.rope(q_rows, q_size, angles, n, config.q_heads, dim, config.rope_dims, config.rope_pairs);
    ew.rope(k_rows, kv_size, angles, n, facts.kv_heads, dim, config.rope_dims, config.rope_pairs);
  });
  // A layer's index within its pool: layers of one kind in order.
  const auto begin = config.layer_kind.begin();
  const auto pool_layer = static_cast<int>(std::count(begin, begin + layer, kind));
  const kv::View view = input.cache->view(kind, pool_layer);
  std::int64_t row = 0;
  for (std::size_t s = 0; s < input.sequences.size(); ++s) {
    const SequenceInput& sequence = input.sequences[s];
    const kv::PageTable& table = tables[static_cast<std::size_t>(kind)][s];
    const auto rows_here = static_cast<std::int64_t>(sequence.tokens.size());
    for_rows(rows_here, [&](std::int64_t first, std::int64_t last) {
      kv::write_rows(view, table, sequence.depth + first, last - first,
                     {k.data() + (row + first) * kv_size, v.data() + (row + first) * kv_size,
                      kv_size, kv_size});
    });
    row += rows_here;
  }
}

void LanguageModel::Impl::attend(const StepInput& input, int layer) {
  const auto kind = static_cast<std::size_t>(config.layer_kind[static_cast<std::size_t>(layer)]);
  const attention::Plan& plan = plans[kind];
  const auto begin = config.layer_kind.begin();
  const auto pool_layer =
      static_cast<int>(std::count(begin, begin + layer, static_cast<int>(kind)));
  attention::Params params;
  params.plan = &plan;
  params.q = q.data();
  params.out = attended.data();
  params.kv = input.cache->view(static_cast<int>(kind), pool_layer);
  params.tables = tables[kind].data();
  params.scale = config.attention_scale;
  params.partial_m = partial_m.data();
  params.partial_l = partial_l.data();
  params.partial_o = partial_o.data();
  attention::Stream stream{&pool};
  const double start = core::now_us();
  plan.kernel->launch(params, stream);
  groups[kind].attention_us += core::now_us() - start;
}

/// x += post_norm(normed), or x += normed without post norms.
void LanguageModel::Impl::residual(const std::vector<float>& post_norm, std::int64_t count) {
  const std::int64_t hidden = config.hidden;
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    float* branch = normed.data() + first * hidden;
    if (!post_norm.empty()) {
      ew.rms_norm(branch, hidden, post_norm.data(), config.rms_eps, last - first, hidden, branch,
                  hidden);
    }
    ew.add(x.data() + first * hidden, branch, (last - first) * hidden, x.data() + first * hidden);
  });
}

void LanguageModel::Impl::attention_block(const StepInput& input, int layer, std::int64_t count) {
  const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  const std::int64_t hidden = config.hidden;
  grow(normed, count * hidden);
  grow(q, count * w.q.outputs());
  grow(attended, count * w.q.outputs());
  grow(k, count * w.k.outputs());
  grow(v, count * w.v.outputs());
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    ew.rms_norm(x.data() + first * hidden, hidden, w.attention_norm.data(), config.rms_eps,
                last - first, hidden, normed.data() + first * hidden, hidden);
  });
  rows.assign(normed.data(), count, hidden);
  const std::array products{ops::Product{&w.q, q.data(), w.q.outputs()},
                            ops::Product{&w.k, k.data(), w.k.outputs()},
                            ops::Product{&w.v, v.data(), w.v.outputs()}};
  ops::matmul(rows, products, pool);
  position_and_store(input, layer, count);
  attend(input, layer);
  rows.assign(attended.data(), count, w.o.inputs());
  ops::matmul(rows, {&w.o, normed.data(), hidden}, pool);
  residual(w.post_attention_norm, count);
}

void LanguageModel::Impl::mlp_block(int layer, std::int64_t count) {
  const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  const std::int64_t hidden = config.hidden;
  const std::int64_t wide = config.intermediate;
  grow(gate, count * wide);
  grow(up, count * wide);
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    ew.rms_norm(x.data() + first * hidden, hidden, w.ffn_norm.data(), config.rms_eps, last - first,
                hidden, normed.data() + first * hidden, hidden);
  });
  rows.assign(normed.data(), count, hidden);
  const std::array products{ops::Product{&w.gate, gate.data(), wide},
                            ops::Product{&w.up, up.data(), wide}};
  ops::matmul(rows, products, pool);
  const auto activate = config.activation == Activation::kGeluTanh ? ew.gelu_tanh_mul : ew.silu_mul;
  for_rows(count, [&](std::int64_t first, std::int64_t last) {
    activate(gate.data() + first * wide, up.data() + first * wide, (last - first) * wide,
             gate.data() + first * wide);
  });
  rows.assign(gate.data(), count, wide);
  ops::matmul(rows, {&w.down, normed.data(), hidden}, pool);
  residual(w.post_ffn_norm, count);
}

/// Final norm and logits of the rows that asked; returns how many.
std::int64_t LanguageModel::Impl::head(const StepInput& input) {
  const std::int64_t hidden = config.hidden;
  std::int64_t wanted = 0;
  std::int64_t row = 0;
  for (const SequenceInput& sequence : input.sequences) {
    row += static_cast<std::int64_t>(sequence.tokens.size());
    for (int i = sequence.logits; i > 0; --i) {
      ew.rms_norm(x.data() + (row - i) * hidden, hidden, weights.output_norm.data(), config.rms_eps,
                  1, hidden, normed.data() + wanted * hidden, hidden);
      ++wanted;
    }
  }
  if (wanted == 0) return 0;
  grow(logits, wanted * config.vocab);
  rows.assign(normed.data(), wanted, hidden);
  ops::matmul(rows, {&weights.head(), logits.data(), config.vocab}, pool);
  return wanted;
}

LanguageModel::LanguageModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LanguageModel::~LanguageModel() = default;

Result<std::unique_ptr<LanguageModel>> LanguageModel::load(const gguf::File& file,
                                                           core::ThreadPool& pool,
                                                           const LoadOptions& options) {
  Result<Config> config = config_from_gguf(file);
  if (!config.ok()) return config.error();
  auto impl = std::make_unique<Impl>(pool, options.isa);
  impl->config = *config;
  Result<Weights> weights =
      load_weights(file, impl->config, {options.isa, options.dequantise}, pool, options.progress);
  if (!weights.ok()) return weights.error();
  impl->weights = std::move(weights).value();
  impl->prepare_rope();
  const std::size_t kinds = impl->config.kinds.size();
  impl->plans.resize(kinds);
  impl->tables.resize(kinds);
  impl->cos_sin.resize(kinds);
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    const auto layers = std::count(impl->config.layer_kind.begin(), impl->config.layer_kind.end(),
                                   static_cast<int>(kind));
    impl->groups.push_back({nullptr, static_cast<int>(layers), 0});
  }
  return std::unique_ptr<LanguageModel>(new LanguageModel(std::move(impl)));
}

const Config& LanguageModel::config() const { return impl_->config; }
core::IsaLevel LanguageModel::isa() const { return impl_->isa; }
std::int64_t LanguageModel::weight_bytes() const { return impl_->weights.memory.bytes(); }
const attention::DeviceFacts& LanguageModel::device() const { return impl_->device; }

std::vector<kv::PoolSpec> LanguageModel::pool_specs(KvType type, int page_size) const {
  std::vector<kv::PoolSpec> specs;
  for (std::size_t kind = 0; kind < impl_->config.kinds.size(); ++kind) {
    const LayerKind& facts = impl_->config.kinds[kind];
    specs.push_back({facts.name, impl_->groups[kind].layers, facts.kv_heads, facts.head_dim,
                     facts.window, type, kv::Layout::kTiled16, page_size, 0});
  }
  return specs;
}

attention::Shape LanguageModel::attention_shape(int kind, KvType type, int page_size) const {
  const LayerKind& facts = impl_->config.kinds[static_cast<std::size_t>(kind)];
  return {impl_->config.q_heads, facts.kv_heads, facts.head_dim, facts.window, type,
          kv::Layout::kTiled16,  page_size};
}

KvPlace LanguageModel::last_kv_layer(int kind) const {
  return {kind, impl_->groups[static_cast<std::size_t>(kind)].layers - 1};
}

void LanguageModel::embed_token(std::int32_t token, float* out) const {
  const Impl& m = *impl_;
  m.weights.embedding.dequantize_row(token, out);
  if (m.config.embedding_scale != 1.0f)
    m.ew.scale(out, m.config.embedding_scale, m.config.hidden, out);
}

Result<StepOutput> LanguageModel::forward(const StepInput& input) {
  Impl& m = *impl_;
  std::int64_t count = 0;
  for (const SequenceInput& sequence : input.sequences) {
    DCHECK(sequence.logits <= static_cast<int>(sequence.tokens.size()));
    count += static_cast<std::int64_t>(sequence.tokens.size());
  }
  if (Status status = m.plan_step(input, count); !status.ok()) return status.error();
  m.embed(input, count);
  for (int layer = 0; layer < m.config.layers; ++layer) {
    m.attention_block(input, layer, count);
    m.mlp_block(layer, count);
  }
  StepOutput output;
  output.rows = m.head(input);
  output.logits = m.logits.data();
  output.hidden = m.normed.data();
  output.groups = m.groups;
  return output;
}

}  // namespace segue::model
