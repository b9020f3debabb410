// SPDX-License-Identifier: Apache-2.0
// The three grades of core/tolerance.h.
#include "core/tolerance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "core/check.h"

namespace segue::core {
namespace {

constexpr double kDerivedFactor = 8;
constexpr double kRelativeFactor = 2;
constexpr double kUnderflow = 0x1p-120;

/// "[2, 0, 5]", or "[17]" without a shape.
std::string coordinates(std::size_t index, std::span<const std::int64_t> shape) {
  if (shape.empty()) return fmt::format("[{}]", index);
  std::vector<std::int64_t> at(shape.size());
  auto rest = static_cast<std::int64_t>(index);
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    at[axis] = rest % shape[axis];
    rest /= shape[axis];
  }
  return fmt::format("[{}]", fmt::join(at, ", "));
}

std::string hex(std::span<const std::byte> element) {
  std::string digits = "0x";
  for (std::size_t i = element.size(); i-- > 0;) {
    digits += fmt::format("{:02x}", static_cast<unsigned>(element[i]));
  }
  if (element.size() != sizeof(float)) return digits;
  float value;
  std::memcpy(&value, element.data(), sizeof(value));
  return fmt::format("{} ({} as float)", digits, value);
}

bool same_kind(double found, double reference) {
  if (std::isnan(reference)) return std::isnan(found);
  if (std::isinf(reference)) return found == reference;
  return std::isfinite(found);
}

/// The first element that is NaN or infinite where the other is not.
std::optional<Verdict> wrong_kind(std::span<const float> found, std::span<const double> reference,
                                  std::span<const std::int64_t> shape) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (same_kind(found[i], reference[i])) continue;
    return Verdict{false, std::numeric_limits<double>::infinity(),
                   fmt::format("at {}: found {}, the reference is {}", coordinates(i, shape),
                               found[i], reference[i])};
  }
  return std::nullopt;
}

/// Error over allowed error; 0 for two equal or two non-finite values of one kind.
double ratio(double found, double reference, double allowed) {
  const double error = std::isfinite(reference) ? std::abs(found - reference) : 0;
  if (error == 0) return 0;
  return allowed > 0 ? error / allowed : std::numeric_limits<double>::infinity();
}

struct Worst {
  double error = 0;
  std::size_t at = 0;
};

Worst worst_error(std::span<const float> found, std::span<const double> reference) {
  Worst worst;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!std::isfinite(reference[i])) continue;
    const double error = std::abs(found[i] - reference[i]);
    if (error > worst.error) worst = {error, i};
  }
  return worst;
}

}  // namespace

double unit_roundoff(KvType type) {
  switch (type) {
    case KvType::kF32: return 0x1p-24;
    case KvType::kF16: return 0x1p-11;
    case KvType::kBF16: return 0x1p-8;
  }
  CHECK(false);
}

double unit_underflow(KvType type) {
  switch (type) {
    case KvType::kF32: return 0x1p-150;
    case KvType::kF16: return 0x1p-25;
    case KvType::kBF16: return 0x1p-134;
  }
  CHECK(false);
}

Verdict exact_bytes(std::span<const std::byte> found, std::span<const std::byte> expected,
                    std::size_t element_bytes, std::span<const std::int64_t> shape) {
  if (found.size() != expected.size()) {
    return {false, 0,
            fmt::format("found {} elements, expected {}", found.size() / element_bytes,
                        expected.size() / element_bytes)};
  }
  std::size_t differing = 0;
  std::size_t first = 0;
  for (std::size_t at = 0; at < found.size(); at += element_bytes) {
    if (std::memcmp(found.data() + at, expected.data() + at, element_bytes) == 0) continue;
    if (differing++ == 0) first = at;
  }
  const std::size_t count = found.size() / element_bytes;
  if (differing == 0) return {true, 0, fmt::format("all {} elements equal", count)};
  return {false, 0,
          fmt::format("{} of {} elements differ, the first at {}: found {}, expected {}", differing,
                      count, coordinates(first / element_bytes, shape),
                      hex(found.subspan(first, element_bytes)),
                      hex(expected.subspan(first, element_bytes)))};
}

double derived_bound(const DerivedTerms& terms, double eps_out, double eps_acc) {
  return eps_out * std::abs(terms.reference) + kUnderflow +
         kDerivedFactor * eps_acc * (1 + terms.score_sum) * terms.absolute_sum;
}

double summation_bound(std::int64_t terms, double absolute_sum) {
  return static_cast<double>(terms + 4) * unit_roundoff(KvType::kF32) * absolute_sum;
}

double function_bound(int operations, double condition, double reference) {
  return (operations + condition) * unit_roundoff(KvType::kF32) * std::fabs(reference) +
         static_cast<double>(std::numeric_limits<float>::min());
}

Verdict within_bounds(std::span<const float> found, std::span<const double> reference,
                      std::span<const double> bounds, std::span<const std::int64_t> shape) {
  CHECK(found.size() == reference.size() && found.size() == bounds.size());
  if (auto wrong = wrong_kind(found, reference, shape)) return *std::move(wrong);
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double here = ratio(found[i], reference[i], bounds[i]);
    if (here > worst) {
      worst = here;
      at = i;
    }
  }
  if (worst == 0) return {true, 0, "equal to the reference"};
  return {worst <= 1, worst,
          fmt::format("worst error / bound {:.3g} at {}: found {}, reference {}, bound {:.3g}",
                      worst, coordinates(at, shape), found[at], reference[at], bounds[at])};
}

Verdict within_twice(std::span<const float> found, std::span<const float> plain,
                     std::span<const double> reference, double eps_out,
                     std::span<const std::int64_t> shape) {
  CHECK(found.size() == reference.size() && found.size() == plain.size());
  if (auto wrong = wrong_kind(found, reference, shape)) return *std::move(wrong);
  double largest = 0;
  for (const double value : reference) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const Worst ours = worst_error(found, reference);
  const Worst theirs = worst_error(plain, reference);
  const double allowed = kRelativeFactor * theirs.error + eps_out * largest;
  const double worst = ratio(ours.error, 0, allowed);
  return {worst <= 1, worst,
          fmt::format("largest error {:.3g} at {}, {:.3g} allowed (plain implementation: {:.3g})",
                      ours.error, coordinates(ours.at, shape), allowed, theirs.error)};
}

}  // namespace segue::core
