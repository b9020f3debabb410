// SPDX-License-Identifier: Apache-2.0
#include "speculate/oracle_drafter.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace segue::speculate {
namespace {

/// Uniform in [0, 1) as a function of its arguments (splitmix64: Steele et al. 2014).
double uniform(std::uint64_t seed, std::uint64_t context_tokens, std::uint64_t draft_position) {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15ull * (context_tokens * 64 + draft_position + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

}  // namespace

AcceptanceProfile fixed_acceptance(std::vector<double> probabilities) {
  return [values = std::move(probabilities)](int draft_position, std::int64_t) {
    if (values.empty()) return 0.0;
    return values[std::min(values.size() - 1, static_cast<std::size_t>(draft_position))];
  };
}

OracleDrafter::OracleDrafter(AcceptanceProfile profile, std::int32_t vocabulary, Drafter* paid)
    : profile_(std::move(profile)), vocabulary_(vocabulary), paid_(paid) {
  CHECK(vocabulary >= 2);
}

void OracleDrafter::record(std::int64_t sequence, std::vector<std::int32_t> tokens,
                           std::uint64_t seed) {
  records_.insert_or_assign(sequence, Record{std::move(tokens), seed});
}

int OracleDrafter::replay(const Record& record, std::span<const std::int32_t> context,
                          std::span<std::int32_t> out) const {
  if (context.size() >= record.tokens.size()) return 0;
  const std::size_t count = std::min(out.size(), record.tokens.size() - context.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t truth = record.tokens[context.size() + i];
    const bool right = uniform(record.seed, context.size(), i) <
                       profile_(static_cast<int>(i), static_cast<std::int64_t>(context.size()));
    out[i] = right ? truth : (truth + 1) % vocabulary_;
  }
  return static_cast<int>(count);
}

void OracleDrafter::draft(std::span<DraftJob> jobs) {
  if (paid_ != nullptr) paid_->draft(jobs);
  for (DraftJob& job : jobs) {
    const auto found = records_.find(job.sequence);
    job.draft = {found == records_.end() ? 0 : replay(found->second, job.context, job.out), 0};
  }
}

}  // namespace segue::speculate
