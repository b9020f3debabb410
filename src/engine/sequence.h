// SPDX-License-Identifier: Apache-2.0
// Sequence: one request in flight. Its committed tokens, its place in the cache, the drafters
// that serve it and what it has emitted. Plain state; the loop moves it forward.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/hash.h"
#include "engine/output.h"
#include "kv/cache.h"
#include "segue/request.h"
#include "segue/types.h"
#include "speculate/drafter.h"
#include "speculate/statistics.h"

namespace segue::engine {

struct Sequence {
  std::int64_t key = 0;  // unique in its loop; the controller knows it by this
  kv::SequenceId cache_id;
  std::vector<std::int32_t>
      tokens;  // prompt, then everything emitted; the newest has no K and V yet
  std::int64_t prompt_tokens = 0;
  std::int64_t lost_bytes = 0;                        // of the prompt's text
  std::int64_t limit = 0;                             // largest tokens.size()
  FinishReason limit_reason = FinishReason::kLength;  // what reaching the limit means
  Sampling sampling;
  SpecMode spec = SpecMode::kOff;
  int max_draft = 0;  // largest k
  bool ignore_eos = false;
  bool hash_logits = false;
  std::vector<speculate::Drafter*> drafters;  // that may draft for it; none: no speculation
  std::vector<float> hidden;  // the target's final hidden row of the newest cached token, where a
                              // drafter wants it
  std::unique_ptr<Output> output;  // null: nobody reads the text

  speculate::Statistics stats;
  core::Hash64 hash;
  std::optional<FinishReason> finished;
  double prefill_started_us = 0;
  double first_token_us = 0;
  double last_token_us = 0;

  std::int64_t generated() const {
    return static_cast<std::int64_t>(tokens.size()) - prompt_tokens;
  }
  bool in_prefill(std::int64_t cached) const { return cached < prompt_tokens && generated() == 0; }
};

}  // namespace segue::engine
