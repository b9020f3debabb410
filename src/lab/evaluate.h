// SPDX-License-Identifier: Apache-2.0
// Evaluation: a model's logits over a fixed text, as perplexity and against a reference: distributions recorded from
// another engine, or the same file with dequantised weights in f32.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/json.h"
#include "engine/runtime.h"
#include "segue/error.h"
#include "segue/types.h"

namespace segue::lab {

struct EvaluateOptions {
  KvType kv = KvType::kBF16;
  const core::Json* recorded = nullptr;     // tests/golden/logits: log_sum_exp, top_ids, top_logprobs per position
  engine::Runtime* float_reference = nullptr;
  std::function<void(double fraction)> progress;
};

/// {positions, perplexity, mean_logprob, recorded: {top1_agreement, mean_kl, max_kl}, float_reference: {the same}}.
/// Position i predicts token i + 1; KL is that of the reference from this model, over the recorded tokens and one
/// bucket for the rest, or over the whole vocabulary for the float reference.
Result<core::Json> evaluate(engine::Runtime& runtime, std::span<const std::int32_t> tokens,
                            const EvaluateOptions& options);

/// The tokens that a recorded reference was made from.
Result<std::vector<std::int32_t>> recorded_tokens(const core::Json& recorded);

}  // namespace segue::lab
