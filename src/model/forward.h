// SPDX-License-Identifier: Apache-2.0
// The forward pass on the CPU: weights, the activations of a step and the parts of a
// layer. Private to this folder. Everything per row runs in a fixed order; threads only divide rows
// or outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/lm.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/rows.h"

namespace segue::model {

/// Grows a buffer; never shrinks it.
template <class T>
void grow(std::vector<T>& buffer, std::int64_t size) {
  if (static_cast<std::int64_t>(buffer.size()) < size)
    buffer.resize(static_cast<std::size_t>(size));
}

struct CpuModel final : LanguageModel {
  /// LanguageModel::load on the CPU.
  static Result<std::unique_ptr<LanguageModel>> load(const Config& config, TensorSource& source,
                                                     core::ThreadPool& pool,
                                                     const LoadOptions& options);

  std::int64_t weight_bytes() const override {
    return weights.memory.bytes() + weights.per_layer_memory.bytes();
  }
  void embed_token(std::int32_t token, float* out /*[hidden]*/) const override;
  void reserve_logits(std::int64_t count) override;
  Result<StepOutput> forward(const StepInput& input) override;

  CpuModel(const Config& config_in, core::ThreadPool& pool_in, core::IsaLevel isa_in);

  core::ThreadPool& pool;
  const ops::Elementwise& ew;
  Weights weights;
  std::vector<std::vector<float>> inv_freq;  // [kinds][rotary / 2]
  ops::Rows rows;
  attention::DeviceFacts device;

  // Activations of a step; they grow to the largest step seen.
  std::vector<float> x, normed, q, k, v, attended, gate, up, logits;  // [rows, width each]
  std::vector<float> per_layer;  // [rows, layers, per_layer_input] what each layer adds to a row
  std::vector<float> partial_m, partial_l, partial_o;
  std::vector<std::vector<float>> cos_sin;         // [kinds][rows, 2, rotary / 2]
  std::vector<attention::Plan> plans;              // [kinds]
  std::vector<std::vector<kv::PageTable>> tables;  // [kinds][sequences]
  StepRows step;
  std::vector<GroupRecord> groups;

  /// The experts of a step: which rows go to which expert, and with what weight.
  struct Routing {
    std::vector<float> scores;                        // [rows, experts]
    std::vector<std::int32_t> chosen;                 // [rows, used]
    std::vector<float> weights;                       // [rows, used]
    std::vector<std::int32_t> expert_rows;            // rows of the expert at hand
    std::vector<float> expert_weights;                // their weights
    std::vector<float> input, gathered, output, sum;  // [rows, hidden each]
  } routing;

  /// Rows that one task of a row-wise operation takes; fewer than this run on the calling thread.
  static constexpr std::int64_t kRowBlock = 16;

  /// fn(first, last) over blocks of rows.
  template <class F>
  void for_rows(std::int64_t count, F&& fn) {
    if (count <= kRowBlock) return fn(std::int64_t{0}, count);
    pool.for_each((count + kRowBlock - 1) / kRowBlock, [&](std::int64_t task, int) {
      fn(task * kRowBlock, std::min(count, (task + 1) * kRowBlock));
    });
  }

  // forward.cc: the step around the layers.
  Status plan_step(const StepInput& input, std::int64_t count);
  void embed(const StepInput& input, std::int64_t count);
  std::int64_t head(const StepInput& input);

  // layer.cc: attention and MLP of one layer.
  void run_layer(const StepInput& input, int layer, std::int64_t count);
  void norm_rows(const std::vector<float>& in, const std::vector<float>& weight, std::int64_t count,
                 std::vector<float>& out);
  void attention_block(const StepInput& input, int layer, std::int64_t count);
  void position_queries(int layer, std::int64_t count);
  void store_keys(const StepInput& input, int layer, std::int64_t count);
  void attend(const StepInput& input, int layer);
  void dense_mlp(const LayerWeights& w, std::int64_t count);
  void residual(const std::vector<float>& post_norm, std::int64_t count);

  // per_layer.cc: the embedding that every layer adds.
  void prepare_per_layer(const StepInput& input, std::int64_t count);
  void add_per_layer(int layer, std::int64_t count);

  // experts.cc: adds the experts' part to the dense MLP's output in `normed`.
  void add_experts(const LayerWeights& w, std::int64_t count);
  void route(const LayerWeights& w, std::int64_t count);
  void run_expert(const ExpertWeights& w, std::size_t expert);
};

}  // namespace segue::model
