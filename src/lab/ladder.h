// SPDX-License-Identifier: Apache-2.0
// The ladder: decode rate of a real model at a list of depths for several speculation settings and
// policies, in one run. Alternatives start from the same cache and take turns in slices of a few
// tokens, so that the machine's drift meets all of them alike.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention/policy.h"
#include "core/json.h"
#include "segue/error.h"
#include "segue/types.h"

namespace segue::lab {

/// "off", "auto", "ngram:4", "mtp:4", "draft:4".
struct LadderSpec {
  std::string name;
  SpecMode mode = SpecMode::kOff;
  int draft_tokens = 0;  // largest k
};

/// "off, auto, and ngram:K, ..": what parse_ladder_spec takes.
std::string ladder_spec_forms();
/// kUsage; the message lists the forms.
Result<LadderSpec> parse_ladder_spec(const std::string& text);

struct LadderOptions {
  std::vector<std::int64_t> depths;
  std::vector<LadderSpec> specs;
  std::vector<attention::Policy> policies;
  int rounds = 3;
  int tokens = 64;   // per alternative, depth and round
  std::string text;  // filler; repeated to the depth. Empty: synthetic tokens
  std::vector<double> synthetic_acceptance;  // by draft position; empty: the real drafter's
  std::string assistant;                     // as in RuntimeOptions
  std::string draft_model;
  Device device = Device::kCpu;
  KvType kv = KvType::kBF16;
  int page_size = 0;
  int prefill_chunk = 512;
  int threads = 0;  // 0: all CPUs of this process
  std::function<void(double fraction)> load_progress;
  std::function<void(double fraction)> progress;
  std::function<bool()> cancelled;  // asked between slices, and between tensors while loading
};

/// {rows: [...], device_name, threads, page_size, interrupted}, as `segue ladder` documents it, on
/// the model file at `path`. `off` is added to the specs when missing: ratios need it. Interrupted:
/// the rows are of the rounds that finished. kUsage, before the model is loaded, for depths that it
/// does not reach and drafters that there are not.
Result<core::Json> run_ladder(const std::string& path, LadderOptions options);

/// The rows as a table for people.
std::string ladder_table(const core::Json& ladder);

}  // namespace segue::lab
