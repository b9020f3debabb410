// SPDX-License-Identifier: Apache-2.0
// The step around the layers: one attention plan per KV group, the embedding, the head.
#include "model/forward.h"

#include <algorithm>

namespace segue::model {

CpuModel::CpuModel(const Config& config_in, core::ThreadPool& pool_in, core::IsaLevel isa_in)
    : LanguageModel(config_in, Place{Device::kCpu, pool_in.threads(), {}}),
      pool(pool_in),
      ew(ops::elementwise(isa_in)),
      rows(isa_in),
      device(attention::cpu_device(pool_in.threads())) {}

Status CpuModel::plan_step(const StepInput& input, std::int64_t count) {
  step.set(input);
  attention::DeviceFacts facts = device;
  if (input.workgroups > 0) facts.workgroups = input.workgroups;
  for (std::size_t kind = 0; kind < config_.kinds.size(); ++kind) {
    const LayerKind& group = config_.kinds[kind];
    attention::Plan& plan = plans[kind];
    if (Status status = attention::plan(
            plan_input(input, config_, static_cast<int>(kind), step.sequences), facts, plan);
        !status.ok()) {
      return status;
    }
    grow(partial_m, plan.partials);
    grow(partial_l, plan.partials);
    grow(partial_o, plan.partials * group.head_dim);
    tables[kind].clear();
    for (const SequenceInput& sequence : input.sequences) {
      tables[kind].push_back(input.cache->table(sequence.id, static_cast<int>(kind)));
    }
    grow(cos_sin[kind], count * group.rotary);
    ops::rope_table(step.positions.data(), count, inv_freq[kind].data(), group.rotary / 2, 1.0f,
                    cos_sin[kind].data());
    groups[kind].plan = &plan;
    groups[kind].attention_us = 0;
  }
  return {};
}

void CpuModel::embed(const StepInput& input, std::int64_t count) {
  grow(x, count * config_.hidden);
  std::int64_t row = 0;
  for (const SequenceInput& sequence : input.sequences) {
    for_rows(static_cast<std::int64_t>(sequence.tokens.size()), [&](std::int64_t first,
                                                                    std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        float* out = x.data() + (row + i) * config_.hidden;
        weights.embedding.dequantize_row(sequence.tokens[static_cast<std::size_t>(i)], out);
        if (config_.embedding_scale != 1.0f)
          ew.scale(out, config_.embedding_scale, config_.hidden, out);
      }
    });
    row += static_cast<std::int64_t>(sequence.tokens.size());
  }
}

/// Final norm and logits of the rows that asked; returns how many. Their normed rows stay.
std::int64_t CpuModel::head(const StepInput& input) {
  const std::int64_t hidden = config_.hidden;
  std::int64_t wanted = 0;
  std::int64_t row = 0;
  for (const SequenceInput& sequence : input.sequences) {
    row += static_cast<std::int64_t>(sequence.tokens.size());
    for (int i = sequence.logits; i > 0; --i) {
      ew.rms_norm(x.data() + (row - i) * hidden, hidden, weights.output_norm.data(),
                  config_.rms_eps, 1, hidden, normed.data() + wanted * hidden, hidden);
      ++wanted;
    }
  }
  if (wanted == 0) return 0;
  const std::int64_t vocab = config_.vocab;
  grow(logits, wanted * vocab);
  rows.assign(normed.data(), wanted, hidden);
  ops::matmul(rows, {&weights.head(), logits.data(), vocab}, pool);
  if (config_.final_softcap > 0) {
    constexpr std::int64_t kPart = 16 * 1024;
    const std::int64_t total = wanted * vocab;
    pool.for_each((total + kPart - 1) / kPart, [&](std::int64_t part, int) {
      float* at = logits.data() + part * kPart;
      ew.softcap(at, config_.final_softcap, std::min(kPart, total - part * kPart), at);
    });
  }
  return wanted;
}

}  // namespace segue::model
