// SPDX-License-Identifier: Apache-2.0
// The judge of plans. Written against the contract, not against the planner's code.
#include "attention/plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/unit.h"

namespace segue::attention {
namespace {

std::string check_tile_rows(const Plan& plan, const RowTile& tile, const SequenceRows& rows,
                            const UnitRule& rule) {
  const Shape& shape = plan.shape;
  if (tile.position != rows.depth + tile.row_first) return "its position is not depth + row_first";
  for (int row = 0; row < tile.rows; ++row) {
    const std::int64_t position = tile.position + row;
    if (tile.unit != unit_size(rule, shape.visible_keys(position))) {
      return fmt::format("its row {} sees {} keys, whose unit size is {}, not {}", row,
                         shape.visible_keys(position),
                         unit_size(rule, shape.visible_keys(position)), tile.unit);
    }
    const std::int64_t unit = tile.unit;
    if (shape.first_key(position) < tile.unit_first * unit || position >= tile.unit_last * unit) {
      return fmt::format("its row {} sees keys outside units {} to {}", row, tile.unit_first,
                         tile.unit_last);
    }
  }
  if (shape.first_key(tile.position) / tile.unit != tile.unit_first)
    return "no row sees its first unit";
  if ((tile.position + tile.rows - 1) / tile.unit + 1 != tile.unit_last)
    return "no row sees its last unit";
  return "";
}

std::string check_tiles(const Plan& plan, std::span<const SequenceRows> sequences,
                        const DeviceFacts& device) {
  const int max_rows = std::max(device.max_tile_rows / plan.shape.group(), 1);
  std::size_t next = 0;
  std::int64_t token = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const UnitRule rule = unit_rule(plan.shape, device, sequences[i].prefill);
    for (int row = 0; row < sequences[i].rows; ++next) {
      if (next >= plan.tiles.size())
        return fmt::format("row {} of sequence {} is in no tile", row, i);
      const RowTile& tile = plan.tiles[next];
      if (tile.sequence != static_cast<int>(i) || tile.row_first != row || tile.rows < 1 ||
          tile.row_first + tile.rows > sequences[i].rows || tile.token != token) {
        return fmt::format("tile {} does not continue sequence {} at row {}", next, i, row);
      }
      if (tile.rows > max_rows)
        return fmt::format("tile {} has {} rows of at most {}", next, tile.rows, max_rows);
      if (std::string wrong = check_tile_rows(plan, tile, sequences[i], rule); !wrong.empty()) {
        return fmt::format("tile {}: {}", next, wrong);
      }
      row += tile.rows;
      token += tile.rows;
    }
  }
  if (next != plan.tiles.size()) return "there are more tiles than rows";
  if (token != plan.rows)
    return fmt::format("the plan says {} rows, the step has {}", plan.rows, token);
  return "";
}

/// Runs of items of one (tile, kv head), and the partials that they own.
std::string check_items(const Plan& plan) {
  std::vector<int> seen(plan.tiles.size() * static_cast<std::size_t>(plan.shape.kv_heads), 0);
  std::vector<std::pair<std::int64_t, std::int64_t>> owned;
  std::size_t reduction = 0;
  for (std::size_t first = 0; first < plan.items.size();) {
    const WorkItem& head = plan.items[first];
    if (head.tile < 0 || static_cast<std::size_t>(head.tile) >= plan.tiles.size() ||
        head.kv_head < 0 || head.kv_head >= plan.shape.kv_heads) {
      return fmt::format("item {} names tile {} and kv head {}", first, head.tile, head.kv_head);
    }
    const RowTile& tile = plan.tiles[static_cast<std::size_t>(head.tile)];
    ++seen[static_cast<std::size_t>(head.tile) * static_cast<std::size_t>(plan.shape.kv_heads) +
           static_cast<std::size_t>(head.kv_head)];
    std::size_t end = first;
    int unit = tile.unit_first;
    for (; end < plan.items.size() && plan.items[end].tile == head.tile &&
           plan.items[end].kv_head == head.kv_head;
         ++end) {
      const WorkItem& item = plan.items[end];
      if (item.unit_first != unit || item.unit_last <= item.unit_first) {
        return fmt::format("item {} has units {} to {}; unit {} is next", end, item.unit_first,
                           item.unit_last, unit);
      }
      unit = item.unit_last;
    }
    if (unit != tile.unit_last)
      return fmt::format("items from {} on stop at unit {} of {}", first, unit, tile.unit_last);
    if (end - first == 1) {
      if (head.partial != -1)
        return fmt::format("item {} is a whole tile and owns partials", first);
    } else {
      if (reduction >= plan.reductions.size())
        return fmt::format("items from {} on have no reduction", first);
      const Reduction& merge = plan.reductions[reduction++];
      if (merge.tile != head.tile || merge.kv_head != head.kv_head ||
          merge.item_first != static_cast<std::int32_t>(first) ||
          merge.item_last != static_cast<std::int32_t>(end)) {
        return fmt::format("reduction {} is not that of items {} to {}", reduction - 1, first, end);
      }
      for (std::size_t i = first; i < end; ++i) {
        const std::int64_t runs = i == first ? 1 : plan.items[i].units();
        owned.emplace_back(plan.items[i].partial, runs * tile.rows * plan.shape.group());
      }
    }
    first = end;
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] != 1) return fmt::format("(tile, kv head) {} is issued {} times", i, seen[i]);
  }
  if (reduction != plan.reductions.size()) return "there are reductions without items";
  std::sort(owned.begin(), owned.end());
  std::int64_t next = 0;
  for (const auto& [index, count] : owned) {
    if (index != next)
      return fmt::format("partials {} to {} are owned by nobody or twice", next, index);
    next += count;
  }
  if (next != plan.partials)
    return fmt::format("the plan says {} partials, items own {}", plan.partials, next);
  return "";
}

std::string check_record(const Plan& plan, std::span<const SequenceRows> sequences) {
  if (plan.sequences.size() != sequences.size())
    return "the record has another number of sequences";
  std::vector<int> items(sequences.size(), 0);
  for (const WorkItem& item : plan.items) {
    ++items[static_cast<std::size_t>(plan.tiles[static_cast<std::size_t>(item.tile)].sequence)];
  }
  std::int64_t keys = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (plan.sequences[i].workgroups != items[i]) {
      return fmt::format("sequence {} has {} items, its record says {}", i, items[i],
                         plan.sequences[i].workgroups);
    }
    keys += plan.sequences[i].keys;
  }
  if (plan.kv_bytes != keys * plan.shape.key_bytes()) return "kv_bytes is not the keys' bytes";
  return "";
}

}  // namespace

std::string check_plan(const Plan& plan, std::span<const SequenceRows> sequences,
                       const DeviceFacts& device) {
  if (std::string wrong = check_tiles(plan, sequences, device); !wrong.empty()) return wrong;
  if (std::string wrong = check_items(plan); !wrong.empty()) return wrong;
  return check_record(plan, sequences);
}

}  // namespace segue::attention
