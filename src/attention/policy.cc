// SPDX-License-Identifier: Apache-2.0
// The clauses of every policy, as data. Spelled as in the engine that each policy models, so that a
// user can find them there; no code of that engine is used.
#include "attention/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/append.h"

namespace segue::attention {
namespace {

struct Named {
  Policy policy;
  std::string_view name;
};
constexpr std::array kPolicies{
    Named{Policy::kSegue, "segue"},
    Named{Policy::kStock, "stock"},
    Named{Policy::kPr45450, "pr45450"},
    Named{Policy::kPr47520, "pr47520"},
    Named{Policy::kBatchInvariant, "batch_invariant"},
    Named{Policy::kWhole, "whole"},
    Named{Policy::kSegmented, "segmented"},
};

struct Scene {
  const Shape& shape;
  const DeviceFacts& device;
  const StepFacts& step;
};

/// One line of a policy: a name, and a test that writes the values it looked at and says whether it
/// fires.
struct Rule {
  std::string_view name;
  bool (*fires)(const Scene&, std::string& values);
};

bool many_rows(const Scene& s, std::string& values) {
  core::assign(values, "max_seqlen_q = {}", s.step.max_rows);
  return s.step.max_rows > 1;
}

bool more_rows_than_decode(const Scene& s, std::string& values) {
  core::assign(values, "max_seqlen_q = {}, decode_query_len = {}", s.step.max_rows,
               s.step.decode_rows);
  return s.step.max_rows > s.step.decode_rows;
}

bool many_sequences(const Scene& s, std::string& values) {
  const int threshold = 128 / s.shape.kv_heads;
  core::assign(values, "num_seqs = {}, seq_threshold_3D = 128 // {} kv heads = {}",
               s.step.sequences, s.shape.kv_heads, threshold);
  return s.step.sequences > threshold;
}

bool many_sequences_for_device(const Scene& s, std::string& values) {
  const int threshold = s.device.multiprocessors / s.shape.kv_heads;
  core::assign(values, "num_seqs = {}, seq_threshold_3D = {} multiprocessors // {} kv heads = {}",
               s.step.sequences, s.device.multiprocessors, s.shape.kv_heads, threshold);
  return s.step.sequences > threshold;
}

bool batch_invariant_off(const Scene&, std::string& values) {
  core::assign(values, "is_batch_invariant = false");
  return false;
}

bool batch_invariant_on(const Scene&, std::string& values) {
  core::assign(values, "is_batch_invariant = true");
  return true;
}

bool forced(const Scene&, std::string& values) {
  core::assign(values, "policy = whole");
  return true;
}

constexpr std::array kStockRules{
    Rule{"max_seqlen_q > 1", many_rows},
    Rule{"num_seqs > seq_threshold_3D", many_sequences},
    Rule{"is_batch_invariant", batch_invariant_off},
};
constexpr std::array kPr45450Rules{
    Rule{"max_seqlen_q > decode_query_len", more_rows_than_decode},
    Rule{"num_seqs > seq_threshold_3D", many_sequences},
    Rule{"is_batch_invariant", batch_invariant_off},
};
constexpr std::array kPr47520Rules{
    Rule{"max_seqlen_q > 1", many_rows},
    Rule{"num_seqs > seq_threshold_3D", many_sequences_for_device},
    Rule{"is_batch_invariant", batch_invariant_off},
};
constexpr std::array kBatchInvariantRules{Rule{"is_batch_invariant", batch_invariant_on}};
constexpr std::array kWholeRules{Rule{"forced", forced}};

std::span<const Rule> rules(Policy policy) {
  switch (policy) {
    case Policy::kStock: return kStockRules;
    case Policy::kPr45450: return kPr45450Rules;
    case Policy::kPr47520: return kPr47520Rules;
    case Policy::kBatchInvariant: return kBatchInvariantRules;
    case Policy::kWhole: return kWholeRules;
    case Policy::kSegue:
    case Policy::kSegmented: return {};
  }
  return {};
}

}  // namespace

std::string_view policy_name(Policy policy) {
  for (const Named& entry : kPolicies) {
    if (entry.policy == policy) return entry.name;
  }
  return "?";
}

std::string_view path_name(Path path) { return path == Path::kWhole ? "whole" : "segmented"; }

Result<Policy> parse_policy(std::string_view name) {
  std::string allowed;
  for (const Named& entry : kPolicies) {
    if (entry.name == name) return entry.policy;
    if (!allowed.empty()) allowed += ", ";
    allowed += entry.name;
  }
  return Error{ErrorCode::kUsage,
               fmt::format("unknown policy '{}'; allowed are {}", name, allowed)};
}

std::string_view Verdict::fired() const {
  const auto first = std::ranges::find_if(clauses, &Clause::fired);
  return first != clauses.end() ? std::string_view(first->name) : std::string_view();
}

void evaluate(Policy policy, const Shape& shape, const DeviceFacts& device, const StepFacts& step,
              Verdict& out) {
  const Scene scene{shape, device, step};
  const std::span<const Rule> list = rules(policy);
  out.path = Path::kSegmented;
  out.clauses.resize(list.size());
  const Clause* first = nullptr;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Clause& clause = out.clauses[i];
    clause.name.assign(list[i].name);
    clause.fired = list[i].fires(scene, clause.values);
    if (clause.fired && first == nullptr) first = &clause;
  }
  if (first != nullptr) {
    out.path = Path::kWhole;
    core::assign(out.reason, "{}: clause '{}' fires ({})", policy_name(policy), first->name,
                 first->values);
  } else if (list.empty()) {
    core::assign(out.reason, "{}: no clause about rows or batch", policy_name(policy));
  } else {
    core::assign(out.reason, "{}: no clause fires", policy_name(policy));
  }
}

}  // namespace segue::attention
