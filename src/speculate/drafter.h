// SPDX-License-Identifier: Apache-2.0
// Drafter: proposes the next tokens of one sequence. The one virtual interface of speculation; a
// drafter can be wrong, late or silent, and can never change the output (see accept.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace segue::speculate {

inline constexpr int kMaxDraft = 16;  // largest k anywhere
inline constexpr int kDraftGrades = 3;

/// What a drafter wrote. Grades are the drafter's own classes of confidence, 0 the lowest, below
/// kDraftGrades: the controller learns the acceptance of each apart.
struct Draft {
  int tokens = 0;
  int grade = 0;
};

/// State of one sequence: make one drafter per sequence. Deterministic: the same calls give the
/// same drafts.
class Drafter {
 public:
  virtual ~Drafter() = default;
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  virtual std::string_view name() const = 0;

  /// Writes up to out.size() proposals for the tokens that follow `context` (prompt and all
  /// committed tokens, the newest included). From call to call the context only grows. Returns how
  /// many were written; 0 is a fine answer.
  virtual Draft draft(std::span<const std::int32_t> context, std::span<std::int32_t> out) = 0;

  /// Told after every step of the sequence how many of the last draft's tokens were accepted, for
  /// drafters with a cache of their own. `context` as it is after the step.
  virtual void observe(std::span<const std::int32_t> context, int accepted);
};

}  // namespace segue::speculate
