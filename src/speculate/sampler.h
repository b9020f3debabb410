// SPDX-License-Identifier: Apache-2.0
// Sampling as a function of (seed, position, logits, history): the token does not depend on whether
// its row was a decode or a verify row, nor on the drafter, the batch, the thread or the
// instruction level. The noise is Gumbel noise from a counter-based generator, so the same position
// always meets the same noise (drafter-invariant speculative decoding: Daliri et al. 2024, arXiv
// 2408.07978). No state, no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cpu.h"
#include "segue/error.h"
#include "segue/types.h"

namespace segue::speculate {

/// Refuses (kUsage) values that can never work; the message names the field, the value and the
/// allowed range.
Status validate(const Sampling& sampling);

/// One row to sample. Nothing is modified; `committed` and `drafts_before` are read by the
/// repetition penalty only.
struct SampleRow {
  std::span<const float> logits;            // [vocabulary] raw, finite or not; at least one entry
  std::span<const std::int32_t> committed;  // [tokens] of the sequence so far, prompt included
  std::span<const std::int32_t> drafts_before;  // [drafts] of this block before this row
  std::int64_t position = 0;  // of the token being sampled: committed + drafts_before tokens
  std::span<const std::int32_t> suppressed{};  // ids that never result; their logits count as -inf
  // [blocks of 64 tokens] the largest logit of each, NaN skipped (-inf if there are only such) and
  // +inf the largest finite float, where somebody knows them; empty: they are looked for.
  std::span<const float> block_maxima{};
};

struct ScoredToken {
  float score;
  std::int32_t token;
};

/// Memory that `sample` reuses: one per thread that samples. Its contents never influence a result.
struct SampleScratch {
  std::vector<float> penalised;        // [vocabulary] when a penalty is on or ids are suppressed
  std::vector<float> block_maxima;     // [blocks of 64 tokens]
  std::vector<float> selected_maxima;  // [blocks], for top-k
  std::vector<ScoredToken> candidates;
};

/// The token of one row. `sampling` must be valid. In this order: suppressed ids; repetition
/// penalty over the last `repeat_last_n` tokens of history (once per distinct token: positive
/// logits are divided, others multiplied); temperature 0: the largest penalised logit, else
/// temperature, top-k, top-p, min-p (each over what the one before it left; the most likely token
/// always stays), then the largest score plus Gumbel noise keyed by (seed, position, token). Ties,
/// also at the edge of a filter, go to the lowest id. NaN counts as -inf; if all logits are, token
/// 0 results. top-p adds up exp(score - largest) rounded to multiples of 2^-30: integers, so that
/// no order of addition matters.
std::int32_t sample(const Sampling& sampling, const SampleRow& row, SampleScratch& scratch);

/// The same at a forced instruction level, which must be available: tests compare the bits of all
/// of them.
std::int32_t sample_at(core::IsaLevel level, const Sampling& sampling, const SampleRow& row,
                       SampleScratch& scratch);

}  // namespace segue::speculate
