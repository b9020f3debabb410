// SPDX-License-Identifier: Apache-2.0
// Request and Completion: what goes into the engine and what comes out. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "segue/types.h"

namespace segue {

struct Request {
  std::string prompt;
  bool parse_special =
      false;  // control tokens spelled in `prompt` become those tokens (chat templates)
  std::vector<std::int32_t> prompt_tokens;  // used as they are instead of `prompt` when not empty
  std::int64_t max_tokens = -1;             // -1: until a stop token or the end of the context
  Sampling sampling;
  SpecMode spec = SpecMode::kAuto;
  int draft_tokens = 0;           // largest k, 1 to 8; 0: 4, and 8 for auto
  std::vector<std::string> stop;  // generation ends before the first of these texts
  bool ignore_eos = false;
  bool logits_hash = false;
  std::function<void(std::string_view text)>
      on_text;  // complete UTF-8, as soon as it is final; may be empty
};

/// Largest k of its steps: draft_tokens, or what a 0 stands for; 0 with speculation off.
int most_drafts(const Request& request);

enum class FinishReason : std::uint8_t {
  kStop,      // the model ended its turn
  kStopText,  // one of Request::stop
  kLength,    // max_tokens
  kContext,   // the context is full
  kCancelled,
};

constexpr std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kStopText: return "stop_text";
    case FinishReason::kLength: return "length";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "?";
}

/// Speculation in the steps that had depth_from to depth_to - 1 keys in the cache before them.
struct DepthStats {
  std::int64_t depth_from = 0;
  std::int64_t depth_to = 0;  // 0: no end
  std::int64_t steps = 0;
  std::vector<std::int64_t> drafted_per_position;
  std::vector<std::int64_t> accepted_per_position;
};

/// Speculation and speed of one request. Per-position vectors end at the last position ever
/// drafted.
struct GenerationStats {
  std::int64_t steps = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  std::vector<std::int64_t> drafted_per_position;  // steps that verified a draft at this position
  std::vector<std::int64_t> accepted_per_position;
  std::vector<DepthStats> by_depth;       // the same counts; depths that no step had are left out
  std::vector<std::int64_t> k_histogram;  // decode steps by k
  double mean_acceptance_length = 1.0;    // tokens per step that verified at least one draft
  double tokens_per_step = 0;             // of all decode steps; 0: there was none
  double prefill_s = 0;                   // first prompt row in to first token out
  double decode_s = 0;                    // first token out to last token out
  double prefill_tokens_per_s = 0;        // 0: nothing was prefilled, there is no rate
  double decode_tokens_per_s = 0;         // 0: fewer than two tokens, there is no rate
  double draft_s = 0;
  double verify_s = 0;
  double other_s = 0;
  /// Against no speculation, by the step times measured so far; 0 while no step without drafts
  /// was, or fewer than 30 with.
  double speedup_over_off = 0;
  bool speedup_estimated = false;    // fewer than 30 steps without drafts were measured
  int usual_k = 0;                   // of most steps with drafts
  double usual_acceptance = 0;       // at every draft position, that yields the tokens they gave
  double break_even_acceptance = 0;  // the same at which usual_k drafts pay; 2: none does
};

struct Completion {
  std::vector<std::int32_t> tokens;  // generated, without the stop token
  std::string text;
  std::int64_t prompt_tokens = 0;
  std::int64_t lost_bytes = 0;  // of Request::prompt: no token of the vocabulary has them
  FinishReason finish_reason = FinishReason::kLength;
  GenerationStats stats;
  std::uint64_t logits_hash = 0;  // of the raw f32 logits of emitted rows, when asked for
};

}  // namespace segue
