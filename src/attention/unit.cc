// SPDX-License-Identifier: Apache-2.0
// The unit rule in integer arithmetic.
#include "attention/unit.h"

#include <algorithm>
#include <bit>

#include "core/check.h"

namespace segue::attention {
namespace {

constexpr std::int64_t kSlack =
    64;  // keys by which a class reaches past target_units units: room for a verify block
constexpr std::int64_t kKeyTile = 16;

}  // namespace

UnitRule unit_rule(const Shape& shape, const DeviceFacts& device) {
  return {device.min_unit, std::max(device.target_units, device.target_items / shape.kv_heads)};
}

int unit_size(const UnitRule& rule, std::int64_t keys) {
  DCHECK(rule.min_unit >= kKeyTile && rule.min_unit % kKeyTile == 0 && rule.target_units >= 1);
  const std::int64_t reach = std::max<std::int64_t>(keys - kSlack, 1);
  const std::int64_t need = (reach + rule.target_units - 1) / rule.target_units;
  if (need <= rule.min_unit) return rule.min_unit;
  // 2^e * min_unit <= need - 1 < 2^(e+1) * min_unit, so the answer is m quarters of that with m
  // in 5..8.
  const auto ratio = static_cast<std::uint64_t>((need - 1) / rule.min_unit);
  const std::int64_t base = std::int64_t{rule.min_unit} << (std::bit_width(ratio) - 1);
  for (std::int64_t quarters = 5; quarters < 8; ++quarters) {
    const std::int64_t size = (base * quarters / 4 + kKeyTile - 1) / kKeyTile * kKeyTile;
    if (size >= need) return static_cast<int>(size);
  }
  return static_cast<int>(2 * base);
}

std::int64_t class_limit(const UnitRule& rule, std::int64_t keys) {
  return std::int64_t{unit_size(rule, keys)} * rule.target_units + kSlack;
}

}  // namespace segue::attention
