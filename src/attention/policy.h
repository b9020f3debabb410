// SPDX-License-Identifier: Apache-2.0
// Policies: the rule that picks the path, as data. A policy is a list of named clauses evaluated on
// the step; the first that fires sends the step to the whole path. `segue` has no clause about rows
// or batch; the others are models of another engine's gate and run our kernels with that engine's
// choice.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/shape.h"

namespace segue::attention {

enum class Policy : std::uint8_t {
  kSegue,
  kStock,
  kPr45450,
  kPr47520,
  kBatchInvariant,
  kWhole,
  kSegmented
};
enum class Path : std::uint8_t { kWhole, kSegmented };

std::string_view policy_name(Policy policy);
std::string_view path_name(Path path);
/// The message lists the allowed names.
Result<Policy> parse_policy(std::string_view name);

/// One clause with the values it was evaluated on. A fired clause forces the whole path.
struct Clause {
  std::string name;    // as that engine spells it: "max_seqlen_q > 1"
  std::string values;  // "max_seqlen_q = 2"
  bool fired = false;
};

/// Facts about a step that clauses read.
struct StepFacts {
  int max_rows = 1;     // max_seqlen_q
  int sequences = 1;    // num_seqs (padding sequences not counted)
  int decode_rows = 1;  // decode_query_len = 1 + k that the engine was started with
};

struct Verdict {
  Path path = Path::kSegmented;
  std::vector<Clause> clauses;  // all of them, in order, evaluated
  std::string reason;           // one sentence for people

  /// Name of the first clause that fires; empty: none does.
  std::string_view fired() const;
};

/// Into storage that is reused from step to step.
void evaluate(Policy policy, const Shape& shape, const DeviceFacts& device, const StepFacts& step,
              Verdict& out);

}  // namespace segue::attention
