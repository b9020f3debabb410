// SPDX-License-Identifier: Apache-2.0
// LanguageModel on the CPU, as others see it; the parts of the step are in forward.h.
#include <memory>
#include <utility>

#include "model/forward.h"

namespace segue::model {

Result<std::unique_ptr<LanguageModel>> CpuModel::load(const Config& config, TensorSource& source,
                                                      core::ThreadPool& pool,
                                                      const LoadOptions& options) {
  auto model = std::make_unique<CpuModel>(config, pool, options.isa);
  Result<Weights> weights = load_weights(
      source, config, {options.isa, options.dequantise, options.cancelled}, pool, options.progress);
  if (!weights.ok()) return weights.error();
  model->weights = std::move(weights).value();
  model->inv_freq = rope_frequencies(config, model->weights.rope_factors);
  const std::size_t kinds = config.kinds.size();
  model->plans.resize(kinds);
  model->tables.resize(kinds);
  model->cos_sin.resize(kinds);
  model->groups = group_records(config);
  return std::unique_ptr<LanguageModel>(std::move(model));
}

void CpuModel::embed_token(std::int32_t token, float* out) const {
  weights.embedding.dequantize_row(token, out);
  if (config_.embedding_scale != 1.0f) ew.scale(out, config_.embedding_scale, config_.hidden, out);
}

void CpuModel::reserve_logits(std::int64_t count) { grow(logits, count * config_.vocab); }

Result<StepOutput> CpuModel::forward(const StepInput& input) {
  const std::int64_t count = row_count(input);
  const core::ThreadPool::Cancellation cancellation(pool, input.cancelled);
  if (Status status = plan_step(input, count); !status.ok()) return status.error();
  embed(input, count);
  if (config_.per_layer_input > 0) prepare_per_layer(input, count);
  for (int layer = 0; layer < config_.layer_count() && !cancellation.requested(); ++layer)
    run_layer(input, layer, count);
  if (cancellation.requested()) return step_cancelled();  // what the head reads may not be there
  StepOutput output;
  output.rows = head(input);
  if (cancellation.requested()) return step_cancelled();
  output.logits = logits.data();
  output.hidden = normed.data();
  output.groups = groups;
  return output;
}

}  // namespace segue::model
