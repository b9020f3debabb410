// SPDX-License-Identifier: Apache-2.0
// Range: what a number on the command line or in a request may be. The check, the message and
// --help all read it.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace segue::cli {

template <class T>
struct Range {
  T low, high;
  T multiple_of = 1;  // of whole numbers

  bool has(T value) const {
    if constexpr (std::integral<T>) {
      if (value % multiple_of != 0) return false;
    }
    return value >= low && value <= high;  // not NaN
  }
  /// "0 to 8", "multiples of 8 from 0 to 64".
  std::string text() const {
    return multiple_of == 1 ? fmt::format("{} to {}", low, high)
                            : fmt::format("multiples of {} from {} to {}", multiple_of, low, high);
  }
  /// What is said of `found`, which is none of them.
  std::string refusal(std::string_view found) const {
    const bool say_whole = std::integral<T> && multiple_of == 1;
    return fmt::format("{} is not allowed; allowed: {}{}", found,
                       say_whole ? "whole numbers from " : "", text());
  }
};

/// Those that several commands share, and that a flag of `run` and a field of `batch` share.
namespace ranges {
inline constexpr Range<int> kThreads{0, 1024};
inline constexpr Range<int> kPageSize{0, 1 << 16, 8};
inline constexpr Range<int> kPrefillChunk{1, 1 << 16};
inline constexpr Range<std::int64_t> kDepth{1, std::int64_t{1} << 24};
inline constexpr Range<std::int64_t> kMaxTokens{-1, std::int64_t{1} << 30};
inline constexpr Range<double> kTemperature{0, 1e6};
inline constexpr Range<int> kTopK{0, 1 << 30};
inline constexpr Range<double> kTopP{1e-9, 1};
inline constexpr Range<double> kMinP{0, 1};
inline constexpr Range<double> kRepeatPenalty{1e-3, 1e3};
inline constexpr Range<int> kRepeatLastN{-1, 1 << 30};
inline constexpr Range<int> kDraftTokens{0, 8};
inline constexpr Range<std::int64_t> kSeed{0, INT64_MAX};  // what JSON holds exactly
}  // namespace ranges

}  // namespace segue::cli
