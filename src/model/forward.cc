// SPDX-License-Identifier: Apache-2.0
// The step around the layers: one attention plan per KV group, the embedding, the head.
#include "model/forward.h"

#include <cmath>
#include <utility>

namespace segue::model {

LanguageModel::Impl::Impl(core::ThreadPool& pool_in, core::IsaLevel isa_in)
    : pool(pool_in),
      isa(isa_in),
      ew(ops::elementwise(isa_in)),
      rows(isa_in),
      device(cpu_device(pool_in.threads())) {}

void LanguageModel::Impl::prepare_rope() {
  for (const LayerKind& kind : config.kinds) {
    std::vector<float> frequencies(static_cast<std::size_t>(kind.rotary / 2));
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / kind.rotary_span;
      double frequency = std::pow(kind.rope_theta, exponent) / kind.rope_factor;
      if (kind.rope_freqs && !weights.rope_factors.empty())
        frequency /= static_cast<double>(weights.rope_factors[i]);
      frequencies[i] = static_cast<float>(frequency);
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
    const LayerKind& group = config.kinds[kind];
    const kv::PoolSpec& pool_spec = input.cache->spec(static_cast<int>(kind));
    attention::PlanInput plan_input;
    plan_input.shape = {config.q_heads, group.kv_heads,   group.head_dim,     group.window,
                        pool_spec.type, pool_spec.layout, pool_spec.page_size};
    plan_input.sequences = sequence_rows;
    plan_input.policy = input.policy;
    plan_input.decode_rows = input.decode_rows;
    plan_input.kernel = input.kernel;
    attention::Plan& plan = plans[kind];
    if (Status status = attention::plan(plan_input, facts, plan); !status.ok()) return status;
    grow(partial_m, plan.partials);
    grow(partial_l, plan.partials);
    grow(partial_o, plan.partials * group.head_dim);
    tables[kind].clear();
    for (const SequenceInput& sequence : input.sequences) {
      tables[kind].push_back(input.cache->table(sequence.id, static_cast<int>(kind)));
    }
    grow(cos_sin[kind], count * group.rotary);
    ops::rope_table(positions.data(), count, inv_freq[kind].data(), group.rotary / 2, 1.0f,
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

/// Final norm and logits of the rows that asked; returns how many. Their normed rows stay.
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
  const std::int64_t vocab = config.vocab;
  grow(logits, wanted * vocab);
  rows.assign(normed.data(), wanted, hidden);
  ops::matmul(rows, {&weights.head(), logits.data(), vocab}, pool);
  if (config.final_softcap > 0) {
    constexpr std::int64_t kPart = 16 * 1024;
    const std::int64_t total = wanted * vocab;
    pool.for_each((total + kPart - 1) / kPart, [&](std::int64_t part, int) {
      float* at = logits.data() + part * kPart;
      ew.softcap(at, config.final_softcap, std::min(kPart, total - part * kPart), at);
    });
  }
  return wanted;
}

}  // namespace segue::model
