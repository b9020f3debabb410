// SPDX-License-Identifier: Apache-2.0
#include "model/step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"

namespace segue::model {

std::int64_t row_count(const StepInput& input) {
  std::int64_t count = 0;
  for (const SequenceInput& sequence : input.sequences) {
    DCHECK(sequence.logits <= static_cast<int>(sequence.tokens.size()));
    count += static_cast<std::int64_t>(sequence.tokens.size());
  }
  return count;
}

std::int64_t logits_count(const StepInput& input) {
  std::int64_t count = 0;
  for (const SequenceInput& sequence : input.sequences) count += sequence.logits;
  return count;
}

Error step_cancelled() { return {ErrorCode::kCancelled, "interrupted in a step"}; }

void StepRows::set(const StepInput& input) {
  sequences.clear();
  positions.clear();
  for (const SequenceInput& sequence : input.sequences) {
    const auto rows = static_cast<int>(sequence.tokens.size());
    sequences.push_back({sequence.depth, rows, sequence.prefill});
    for (int row = 0; row < rows; ++row)
      positions.push_back(static_cast<std::int32_t>(sequence.depth + row));
  }
}

attention::PlanInput plan_input(const StepInput& input, const Config& config, int kind,
                                std::span<const attention::SequenceRows> sequences) {
  const LayerKind& group = config.kinds[static_cast<std::size_t>(kind)];
  const kv::PoolSpec& pool = input.cache->spec(kind);
  attention::PlanInput out;
  out.shape = {config.q_heads, group.kv_heads, group.head_dim, group.window,
               pool.type,      pool.layout,    pool.page_size};
  out.sequences = sequences;
  out.policy = input.policy;
  out.decode_rows = input.decode_rows;
  out.kernel = input.kernel;
  return out;
}

std::vector<std::vector<float>> rope_frequencies(const Config& config,
                                                 const std::vector<float>& factors) {
  std::vector<std::vector<float>> all;
  for (const LayerKind& kind : config.kinds) {
    std::vector<float> frequencies(static_cast<std::size_t>(kind.rotary / 2));
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / kind.rotary_span;
      double frequency = std::pow(kind.rope_theta, exponent) / kind.rope_factor;
      if (kind.rope_freqs && !factors.empty()) frequency /= static_cast<double>(factors[i]);
      frequencies[i] = static_cast<float>(frequency);
    }
    all.push_back(std::move(frequencies));
  }
  return all;
}

std::vector<GroupRecord> group_records(const Config& config) {
  std::vector<GroupRecord> records;
  for (int kind = 0; kind < static_cast<int>(config.kinds.size()); ++kind) {
    const auto layers = std::ranges::count(config.layers, kind, &Layer::kind);
    records.push_back({nullptr, static_cast<int>(layers), 0});
  }
  return records;
}

}  // namespace segue::model
