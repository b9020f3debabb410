// SPDX-License-Identifier: Apache-2.0
// The unit rule in integer arithmetic.
#include "attention/unit.h"

#include <algorithm>
#include <bit>

#include "core/check.h"

namespace segue::attention {
namespace {

constexpr int kCoarseUnits = 16;

}  // namespace

UnitRule unit_rule(const Shape& shape, const DeviceFacts& device, bool prefill) {
  if (prefill && device.prefill_unit > 0) {
    return {.min_unit = device.prefill_unit,
            .target_units = device.target_units,
            .granule = device.unit_granule,
            .steps = device.unit_steps};
  }
  const int units = shape.window > 0 ? device.window_units : device.target_units;
  UnitRule rule{device.min_unit, std::max(units, device.target_items / shape.kv_heads),
                device.unit_granule, device.unit_steps};
  if (shape.window == 0 && device.coarse_keys > 0) {
    rule.coarse_units =
        std::min(std::max(kCoarseUnits, device.coarse_items / shape.kv_heads), rule.target_units);
    rule.coarse_unit = unit_size(rule, device.coarse_keys * rule.target_units / rule.coarse_units);
  }
  return rule;
}

int unit_size(const UnitRule& rule, std::int64_t keys) {
  DCHECK(rule.min_unit >= rule.granule && rule.min_unit % rule.granule == 0 && rule.granule >= 1 &&
         rule.target_units >= 1 && rule.steps >= 1);
  const std::int64_t reach = std::max<std::int64_t>(keys - kUnitSlack, 1);
  std::int64_t need = (reach + rule.target_units - 1) / rule.target_units;
  if (rule.coarse_unit > 0) {
    need =
        std::max(need, std::min<std::int64_t>((reach + rule.coarse_units - 1) / rule.coarse_units,
                                              rule.coarse_unit));
  }
  if (need <= rule.min_unit) return rule.min_unit;
  // 2^e * min_unit <= need - 1 < 2^(e+1) * min_unit: the answer is one of the steps between the
  // two.
  const auto ratio = static_cast<std::uint64_t>((need - 1) / rule.min_unit);
  const std::int64_t base = std::int64_t{rule.min_unit} << (std::bit_width(ratio) - 1);
  for (std::int64_t step = rule.steps + 1; step < 2 * rule.steps; ++step) {
    const std::int64_t size =
        (base * step / rule.steps + rule.granule - 1) / rule.granule * rule.granule;
    if (size >= need) return static_cast<int>(size);
  }
  return static_cast<int>(2 * base);
}

std::int64_t unit_limit(const UnitRule& rule, int unit) {
  const int units = unit < rule.coarse_unit ? rule.coarse_units : rule.target_units;
  return std::int64_t{unit} * units + kUnitSlack;
}

}  // namespace segue::attention
