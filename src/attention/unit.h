// SPDX-License-Identifier: Apache-2.0
// Units: the smallest runs of keys that are reduced on their own. A row's unit size is a function
// of the number of keys that this row sees and of facts fixed when the cache is created, never of
// the step: so the bits of a row do not depend on the batch, on the rows beside it or on how work
// is split.
#pragma once

#include <cstdint>

#include "attention/shape.h"

namespace segue::attention {

struct UnitRule {
  int min_unit = 64;      // a multiple of the granule
  int target_units = 32;  // largest number of units of a row (plus one where the window does not
                          // start on a boundary)
  int granule = 16;       // every unit is a multiple of it: the kernels' tile of keys
  int steps = 4;          // sizes from one power of two (times min_unit) to the next
  int coarse_units =
      0;                // units below coarse_unit keys: no more of them than this (0: no such rule)
  int coarse_unit = 0;  // one of the sizes; coarse_units <= target_units
};

/// Keys by which a class reaches past its number of units: room for a verify block.
inline constexpr std::int64_t kUnitSlack = 64;

/// The rule of a layer: max(target_units, target_items / kv_heads) units, so that a lone sequence
/// fills the machine. Layers without a window have fewer at up to coarse_keys, where partials weigh
/// more than idle workgroups. Prompt rows (`prefill`) come in numbers: their units are larger.
UnitRule unit_rule(const Shape& shape, const DeviceFacts& device, bool prefill = false);

/// Unit size in keys for a row that sees `keys` keys: the smallest min_unit * 2^e * (1 + i /
/// steps), i in 0..steps - 1, rounded up to the granule, whose target_units-fold reaches keys - 64,
/// and whose coarse_units-fold does where the size is below coarse_unit.
/// The 64 (kUnitSlack) keeps a depth of 2^n and the verify block after it in one class. Never
/// decreases with keys.
int unit_size(const UnitRule& rule, std::int64_t keys);

/// The largest number of keys that has this unit size.
std::int64_t unit_limit(const UnitRule& rule, int unit);
/// The largest number of keys that still has the unit size of `keys`.
inline std::int64_t class_limit(const UnitRule& rule, std::int64_t keys) {
  return unit_limit(rule, unit_size(rule, keys));
}

}  // namespace segue::attention
