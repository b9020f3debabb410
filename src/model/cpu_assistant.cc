// SPDX-License-Identifier: Apache-2.0
// The assistant's forward pass on the CPU, in the same operators and with the same planner as the
// target's.
#include "model/assistant_step.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
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

class CpuAssistant final : public Assistant {
 public:
  CpuAssistant(AssistantParts parts, core::IsaLevel isa);

  std::int64_t weight_bytes() const override { return weights_.memory.bytes(); }
  Status begin(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
               int workgroups) override;
  Result<Output> step(std::span<const std::int32_t> tokens, const float* hidden) override;

 private:
  const Config& text() const { return config().text; }
  Status plan(const kv::Cache& cache, std::span<const AssistantSequence> sequences, int kind,
              int workgroups);
  void residual(const std::vector<float>& post_norm);
  void attention_block(const AssistantLayer& w, int kind);
  void mlp_block(const AssistantLayer& w);
  void head();
  void centroid_head(std::int64_t row);

  const LanguageModel& target_;
  core::ThreadPool& pool_;
  const ops::Elementwise& ew_;
  AssistantWeights weights_;
  std::vector<int> reads_;        // [kinds] the kind of the target whose K and V are read
  std::vector<KindState> kinds_;  // of the assistant
  ops::Rows rows_;
  DraftRows step_;
  std::int64_t count_ = 0;  // sequences of the step

  std::vector<float> concatenated_, x_, normed_, q_, attended_, gate_, up_;  // [count, width each]
  std::vector<float> hidden_, logits_, scores_;
  std::vector<float> partial_m_, partial_l_, partial_o_;
  std::vector<std::int32_t> best_;  // [centroids] by score
};

CpuAssistant::CpuAssistant(AssistantParts parts, core::IsaLevel isa)
    : Assistant(std::move(parts.loaded.config)),
      target_(parts.target),
      pool_(parts.pool),
      ew_(ops::elementwise(isa)),
      weights_(std::move(parts.loaded.weights)),
      reads_(std::move(parts.reads)),
      rows_(isa) {
  for (std::vector<float>& frequencies : rope_frequencies(text(), weights_.rope_factors))
    kinds_.emplace_back().inv_freq = std::move(frequencies);
}

Status CpuAssistant::plan(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
                          int kind, int workgroups) {
  const auto index = static_cast<std::size_t>(kind);
  const LayerKind& facts = text().kinds[index];
  KindState& state = kinds_[index];
  const KvPlace place = target_.last_kv_layer(reads_[index]);
  state.tables.clear();
  for (const AssistantSequence& sequence : sequences)
    state.tables.push_back(cache.table(sequence.id, place.pool));
  state.keys = cache.view(place.pool, place.layer);
  const attention::PlanInput input =
      draft_plan_input(config(), kind, cache.spec(place.pool), step_);
  attention::DeviceFacts device = device_facts(target_.place(), input.shape, nullptr);
  if (workgroups > 0) device.workgroups = workgroups;
  if (Status status = attention::plan(input, device, state.plan); !status.ok()) return status;
  grow(partial_m_, state.plan.partials);
  grow(partial_l_, state.plan.partials);
  grow(partial_o_, state.plan.partials * facts.head_dim);
  grow(state.cos_sin, count_ * facts.rotary);
  ops::rope_table(step_.positions.data(), count_, state.inv_freq.data(), facts.rotary / 2, 1.0f,
                  state.cos_sin.data());
  return {};
}

/// x += norm(normed).
void CpuAssistant::residual(const std::vector<float>& post_norm) {
  ew_.rms_norm(normed_.data(), text().hidden, post_norm.data(), text().rms_eps, count_,
               text().hidden, normed_.data(), text().hidden);
  ew_.add(x_.data(), normed_.data(), count_ * text().hidden, x_.data());
}

void CpuAssistant::attention_block(const AssistantLayer& w, int kind) {
  const LayerKind& facts = text().kinds[static_cast<std::size_t>(kind)];
  KindState& state = kinds_[static_cast<std::size_t>(kind)];
  const std::int64_t hidden_size = text().hidden;
  const std::int64_t q_size = w.q.outputs();
  const int dim = facts.head_dim;
  grow(q_, count_ * q_size);
  grow(attended_, count_ * q_size);
  ew_.rms_norm(x_.data(), hidden_size, w.attention_norm.data(), text().rms_eps, count_, hidden_size,
               normed_.data(), hidden_size);
  rows_.assign(normed_.data(), count_, hidden_size);
  ops::matmul(rows_, {&w.q, q_.data(), q_size}, pool_);
  ew_.rms_norm(q_.data(), dim, w.q_norm.data(), text().rms_eps, count_ * text().q_heads, dim,
               q_.data(), dim);
  ew_.rope(q_.data(), q_size, state.cos_sin.data(), count_,
           facts.rope(text().q_heads, text().rope_pairs));
  attention::Params params;
  params.plan = &state.plan;
  params.q = q_.data();
  params.out = attended_.data();
  params.kv = state.keys;
  params.tables = state.tables.data();
  params.scale = 1.0f;
  params.partial_m = partial_m_.data();
  params.partial_l = partial_l_.data();
  params.partial_o = partial_o_.data();
  attention::Stream stream{&pool_};
  state.plan.kernel->launch(params, stream);
  rows_.assign(attended_.data(), count_, q_size);
  ops::matmul(rows_, {&w.o, normed_.data(), hidden_size}, pool_);
  residual(w.post_attention_norm);
}

void CpuAssistant::mlp_block(const AssistantLayer& w) {
  const std::int64_t hidden_size = text().hidden;
  const std::int64_t wide = w.gate.outputs();
  grow(gate_, count_ * wide);
  grow(up_, count_ * wide);
  ew_.rms_norm(x_.data(), hidden_size, w.ffn_norm.data(), text().rms_eps, count_, hidden_size,
               normed_.data(), hidden_size);
  rows_.assign(normed_.data(), count_, hidden_size);
  const std::array products{ops::Product{&w.gate, gate_.data(), wide},
                            ops::Product{&w.up, up_.data(), wide}};
  ops::matmul(rows_, products, pool_);
  ew_.gelu_tanh_mul(gate_.data(), up_.data(), count_ * wide, gate_.data());
  rows_.assign(gate_.data(), count_, wide);
  ops::matmul(rows_, {&w.down, normed_.data(), hidden_size}, pool_);
  residual(w.post_ffn_norm);
}

/// Tokens of the best centroids only: their rows of the head, one product each.
void CpuAssistant::centroid_head(std::int64_t row) {
  const auto per_centroid = text().vocab / config().centroids;
  const float* y = normed_.data() + row * text().hidden;
  float* out = logits_.data() + row * text().vocab;
  const float* score = scores_.data() + row * config().centroids;
  std::fill(out, out + text().vocab, -std::numeric_limits<float>::infinity());
  best_.resize(static_cast<std::size_t>(config().centroids));
  std::iota(best_.begin(), best_.end(), 0);
  std::partial_sort(best_.begin(), best_.begin() + config().centroid_top, best_.end(),
                    [score](std::int32_t a, std::int32_t b) {
                      return score[a] != score[b] ? score[a] > score[b] : a < b;
                    });
  pool_.for_each(config().centroid_top, [&](std::int64_t chosen, int) {
    std::vector<float> weight(static_cast<std::size_t>(text().hidden));
    const std::int64_t first = best_[static_cast<std::size_t>(chosen)] * per_centroid;
    for (std::int64_t i = first; i < first + per_centroid; ++i) {
      const std::int32_t token = weights_.ordering[static_cast<std::size_t>(i)];
      weights_.head.dequantize_row(token, weight.data());
      float sum = 0;
      for (std::int64_t d = 0; d < text().hidden; ++d)
        sum += weight[static_cast<std::size_t>(d)] * y[d];
      out[token] = sum;
    }
  });
}

/// The last norm, the vector that goes on, and the logits.
void CpuAssistant::head() {
  grow(hidden_, count_ * config().backbone);
  grow(logits_, count_ * text().vocab);
  ew_.rms_norm(x_.data(), text().hidden, weights_.output_norm.data(), text().rms_eps, count_,
               text().hidden, normed_.data(), text().hidden);
  rows_.assign(normed_.data(), count_, text().hidden);
  ops::matmul(rows_, {&weights_.post, hidden_.data(), config().backbone}, pool_);
  if (config().centroids == 0) {
    ops::matmul(rows_, {&weights_.head, logits_.data(), text().vocab}, pool_);
    return;
  }
  grow(scores_, count_ * config().centroids);
  ops::matmul(rows_, {&weights_.centroids, scores_.data(), config().centroids}, pool_);
  for (std::int64_t row = 0; row < count_; ++row) centroid_head(row);
}

Status CpuAssistant::begin(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
                           int workgroups) {
  count_ = std::ssize(sequences);
  step_.set(sequences);
  for (int kind = 0; kind < static_cast<int>(kinds_.size()); ++kind) {
    if (Status status = plan(cache, sequences, kind, workgroups); !status.ok()) return status;
  }
  return {};
}

Result<Assistant::Output> CpuAssistant::step(std::span<const std::int32_t> tokens,
                                             const float* hidden) {
  CHECK(std::ssize(tokens) == count_);
  const std::int64_t backbone = config().backbone;
  grow(concatenated_, count_ * 2 * backbone);
  grow(x_, count_ * text().hidden);
  grow(normed_, count_ * text().hidden);
  for (std::int64_t row = 0; row < count_; ++row) {
    float* both = concatenated_.data() + row * 2 * backbone;
    target_.embed_token(tokens[static_cast<std::size_t>(row)], both);
    std::copy_n(hidden + row * backbone, backbone, both + backbone);
  }
  rows_.assign(concatenated_.data(), count_, 2 * backbone);
  ops::matmul(rows_, {&weights_.pre, x_.data(), text().hidden}, pool_);
  for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const AssistantLayer& w = weights_.layers[layer];
    attention_block(w, text().layers[layer].kind);
    mlp_block(w);
    ew_.scale(x_.data(), w.scalar[0], count_ * text().hidden, x_.data());
  }
  head();
  return Output{logits_.data(), hidden_.data()};
}

}  // namespace

std::unique_ptr<Assistant> cpu_assistant(AssistantParts parts, core::IsaLevel isa) {
  return std::make_unique<CpuAssistant>(std::move(parts), isa);
}

}  // namespace segue::model
