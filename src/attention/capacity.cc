// SPDX-License-Identifier: Apache-2.0
// Bounds from the rules of unit.cc, split.cc and plan.cc.
#include "attention/capacity.h"

#include <algorithm>

#include "attention/split.h"
#include "attention/unit.h"

namespace segue::attention {
namespace {

/// Row tiles of all sequences: rows of one unit class in runs of at most `max_rows`. Limits of
/// classes are at least granule * target_units (coarse_units) keys apart, in the prefill family
/// too.
std::int64_t most_tiles(const UnitRule& rule, int max_rows, int sequences, std::int64_t rows) {
  const int units = rule.coarse_unit > 0 ? rule.coarse_units : rule.target_units;
  const std::int64_t spacing = std::int64_t{rule.granule} * units;
  return std::min(rows, rows / max_rows + rows / spacing + std::int64_t{2} * sequences);
}

/// Units that one tile sees, whose rows are all of one class: the class with most of them. Keys
/// begin on a boundary until the window moves.
std::int64_t most_units(const Shape& shape, const UnitRule& rule, int tile_rows,
                        std::int64_t kv_len) {
  const bool moves = shape.window > 0 && kv_len > shape.window;
  const std::int64_t most_keys = moves ? shape.window : kv_len;
  std::int64_t most = 1;
  for (std::int64_t keys = 1; keys <= most_keys;) {
    const int unit = unit_size(rule, keys);
    const std::int64_t last = std::min(unit_limit(rule, unit), most_keys);
    most = std::max(most, (last + unit - 1) / unit);
    if (moves && last == most_keys) {
      const std::int64_t span = last + tile_rows - 1;
      most = std::max(most, (span + unit - 2) / unit + 1);
    }
    keys = last + 1;
  }
  return most;
}

}  // namespace

PlanCapacity plan_capacity(const Shape& shape, const DeviceFacts& device, Policy policy,
                           const StepLimits& limits) {
  const std::int64_t all_rows = std::int64_t{limits.sequences} * limits.rows_per_sequence;
  const std::int64_t rows = limits.rows > 0 ? std::min(limits.rows, all_rows) : all_rows;
  const UnitRule rule = unit_rule(shape, device);
  const int max_rows = std::max(device.max_tile_rows / shape.group(), 1);
  const int tile_rows = std::min(max_rows, limits.rows_per_sequence);
  const std::int64_t units =
      std::max(most_units(shape, rule, tile_rows, limits.kv_len),
               most_units(shape, unit_rule(shape, device, true), tile_rows, limits.kv_len));

  PlanCapacity capacity;
  capacity.tiles = most_tiles(rule, max_rows, limits.sequences, rows);
  capacity.tile_rows = tile_rows * shape.group();
  capacity.reductions = capacity.tiles * shape.kv_heads;
  capacity.runs = units;
  capacity.partials = rows * shape.q_heads * units;
  switch (policy) {
    case Policy::kSegue: capacity.items = most_items(device, capacity.reductions); break;
    case Policy::kWhole:
    case Policy::kBatchInvariant: capacity.items = capacity.reductions; break;
    case Policy::kStock:
    case Policy::kPr45450:
    case Policy::kPr47520:
    case Policy::kSegmented: capacity.items = capacity.reductions * kModelSegments; break;
  }
  capacity.items = std::min(capacity.items, capacity.reductions * units);
  return capacity;
}

}  // namespace segue::attention
