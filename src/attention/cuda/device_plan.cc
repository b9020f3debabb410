// SPDX-License-Identifier: Apache-2.0
// Flattening and uploading.
#include "attention/cuda/device_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "core/check.h"

namespace segue::attention::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int32_t narrow(std::int64_t value) {
  CHECK(value >= 0 && value <= std::numeric_limits<std::int32_t>::max());
  return static_cast<std::int32_t>(value);
}

/// Does the sequence have other row tiles, which read the same keys?
bool shares_keys(const Plan& plan, std::int32_t tile) {
  const auto of = [&](std::int32_t i) {
    return i < 0 || i >= static_cast<std::int32_t>(plan.tiles.size())
               ? -1
               : plan.tiles[static_cast<std::size_t>(i)].sequence;
  };
  return of(tile) == of(tile - 1) || of(tile) == of(tile + 1);
}

/// Items of two row tiles of one sequence that follow each other take turns, so that one finds in
/// the L2 what the other has just read. `work` and `items` list the same items.
void take_turns(const Plan& plan, std::vector<Item>& items, std::vector<Item>& both) {
  const std::vector<WorkItem>& work = plan.items;
  const auto end_of = [&](std::size_t first) {
    std::size_t end = first;
    while (end < work.size() && work[end].tile == work[first].tile) ++end;
    return end;
  };
  const auto sequence_of = [&](std::size_t i) {
    return plan.tiles[static_cast<std::size_t>(work[i].tile)].sequence;
  };
  for (std::size_t first = 0; first < work.size();) {
    const std::size_t second = end_of(first);
    if (second == work.size()) return;
    const std::size_t end = end_of(second);
    if (sequence_of(first) != sequence_of(second) || end - second != second - first) {
      first = second;
      continue;
    }
    both.clear();
    for (std::size_t i = 0; i < second - first; ++i) {
      both.push_back(items[first + i]);
      both.push_back(items[second + i]);
    }
    std::copy(both.begin(), both.end(), items.begin() + static_cast<std::ptrdiff_t>(first));
    first = end;
  }
}

}  // namespace

void flatten(const Plan& plan, std::span<const TableRange> tables, FlatPlan& out) {
  const int group = plan.shape.group();
  out.tile_rows = 0;
  out.runs = 0;
  out.folds = false;
  out.partials = plan.partials;
  CHECK(plan.rows <= std::numeric_limits<std::int32_t>::max());
  out.items.resize(plan.items.size());
  // Items of a tile follow each other: what they share is worked out once.
  Item shared{};
  std::int32_t tile_index = -1;
  std::int32_t first_key = 0;
  std::int32_t tile_first = 0;
  std::int32_t last_key = 0;
  bool rereads = false;
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const WorkItem& work = plan.items[i];
    if (work.tile != tile_index) {
      tile_index = work.tile;
      const RowTile& tile = plan.tiles[static_cast<std::size_t>(work.tile)];
      const TableRange& table = tables[static_cast<std::size_t>(tile.sequence)];
      shared.position = narrow(tile.position);
      shared.rows = tile.rows;
      shared.unit = tile.unit;
      shared.table = table.first;
      shared.table_count = table.count;
      shared.token = static_cast<std::int32_t>(tile.token);
      shared.reread = shares_keys(plan, work.tile) ? 1 : 0;
      rereads = rereads || shared.reread != 0;
      first_key = narrow(plan.shape.first_key(tile.position));
      tile_first = tile.unit_first;
      last_key = narrow(tile.position + tile.rows);
      out.tile_rows = std::max(out.tile_rows, tile.rows * group);
    }
    Item& item = out.items[i];
    item = shared;
    item.kv_head = work.kv_head;
    item.key_begin = std::max(work.unit_first * shared.unit, first_key);
    item.key_end = static_cast<std::int32_t>(
        std::min(std::int64_t{work.unit_last} * shared.unit, std::int64_t{last_key}));
    const bool several = work.units() > 1;
    out.folds = out.folds || (several && work.unit_first == tile_first);
    if (work.partial >= 0) {
      item.emit = several && work.unit_first == tile_first ? Emit::kFold : Emit::kStore;
      item.partial = static_cast<std::int32_t>(work.partial);
    } else if (!several) {
      item.emit = Emit::kFinal;
    } else {
      item.emit = Emit::kFoldFinal;
      item.partial = static_cast<std::int32_t>(out.partials);
      out.partials += std::int64_t{shared.rows} * group;
    }
  }
  CHECK(out.partials <= std::numeric_limits<std::int32_t>::max());
  if (rereads) take_turns(plan, out.items, out.turns);
  out.reductions.clear();
  for (const attention::Reduction& work : plan.reductions) {
    const RowTile& tile = plan.tiles[static_cast<std::size_t>(work.tile)];
    const std::int64_t stride = std::int64_t{tile.rows} * group;
    Reduction reduction{};
    reduction.token = narrow(tile.token);
    reduction.rows = tile.rows;
    reduction.kv_head = work.kv_head;
    reduction.partial = narrow(plan.items[static_cast<std::size_t>(work.item_first)].partial);
    for (std::int32_t i = work.item_first; i < work.item_last; ++i) {
      const WorkItem& item = plan.items[static_cast<std::size_t>(i)];
      CHECK(item.partial == reduction.partial + reduction.runs * stride);  // contiguous runs
      reduction.runs += i == work.item_first ? 1 : item.units();
    }
    out.runs = std::max(out.runs, reduction.runs);
    out.reductions.push_back(reduction);
  }
}

Grid grid_of(const FlatPlan& live) {
  return {static_cast<int>(live.items.size()), static_cast<int>(live.reductions.size()),
          live.tile_rows, live.runs, live.folds};
}

Grid in_steps(const Grid& live, int most_items, int multiprocessors) {
  const auto power = [](int count) {
    return count == 0 ? 0 : static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)));
  };
  Grid grid = live;
  grid.reductions = power(live.reductions);
  grid.tile_rows = power(live.tile_rows);  // 64, a choice of kernel too, is one
  grid.runs = power(live.runs);
  // No more than the multiprocessors is a choice of kernel (launch.cuh).
  const int waves = (live.items + multiprocessors - 1) / multiprocessors;
  const int items = waves <= 1 ? std::min(power(live.items), multiprocessors)
                               : (waves <= 4 ? waves : power(waves)) * multiprocessors;
  grid.items = std::min(items, most_items);  // kernels read the list as far as the grid
  return grid;
}

Capacity capacity_of(const Plan& plan, std::span<const kv::PageTable> tables) {
  FlatPlan flat;
  const std::vector<TableRange> ranges(tables.size());
  flatten(plan, ranges, flat);
  Capacity capacity;
  capacity.items = static_cast<int>(flat.items.size());
  capacity.reductions = static_cast<int>(flat.reductions.size());
  capacity.tile_rows = flat.tile_rows;
  capacity.runs = flat.runs;
  capacity.partials = flat.partials;
  for (const kv::PageTable& table : tables) capacity.table_entries += table.count;
  return capacity;
}

Capacity larger(const Capacity& a, const Capacity& b) {
  return {std::max(a.items, b.items),         std::max(a.reductions, b.reductions),
          std::max(a.tile_rows, b.tile_rows), std::max(a.runs, b.runs),
          std::max(a.partials, b.partials),   std::max(a.table_entries, b.table_entries)};
}

DevicePlan::DevicePlan(const Capacity& capacity, int head_dim, bool own_partials)
    : capacity_(capacity), head_dim_(head_dim) {
  items_at_ = aligned(sizeof(Counts));
  reductions_at_ = items_at_ + aligned(static_cast<std::size_t>(capacity.items) * sizeof(Item));
  tables_at_ =
      reductions_at_ + aligned(static_cast<std::size_t>(capacity.reductions) * sizeof(Reduction));
  list_bytes_ =
      tables_at_ + aligned(static_cast<std::size_t>(capacity.table_entries) * sizeof(std::int32_t));
  for (Slot& slot : slots_) slot.lists = device::PinnedBuffer(list_bytes_);
  lists_ = device::Buffer(list_bytes_);
  if (own_partials) partials_ = device::Buffer(partial_bytes());
}

std::size_t DevicePlan::partial_bytes() const {
  return aligned(static_cast<std::size_t>(capacity_.partials) *
                 static_cast<std::size_t>(head_dim_ + 2) * sizeof(float)) +
         kAlignment;
}

Status DevicePlan::check(std::int64_t table_entries) const {
  const bool fits = static_cast<int>(flat_.items.size()) <= capacity_.items &&
                    static_cast<int>(flat_.reductions.size()) <= capacity_.reductions &&
                    flat_.tile_rows <= capacity_.tile_rows && flat_.runs <= capacity_.runs &&
                    flat_.partials <= capacity_.partials &&
                    table_entries <= capacity_.table_entries;
  if (fits) return {};
  return Error{ErrorCode::kNoMemory,
               fmt::format("the attention plan exceeds its buffers: {} of {} items, {} of {} "
                           "reductions, {} of {} rows a tile, {} of {} runs, {} of {} partials, {} "
                           "of {} page table entries",
                           flat_.items.size(), capacity_.items, flat_.reductions.size(),
                           capacity_.reductions, flat_.tile_rows, capacity_.tile_rows, flat_.runs,
                           capacity_.runs, flat_.partials, capacity_.partials, table_entries,
                           capacity_.table_entries)};
}

DevicePlan::Slot& DevicePlan::next_slot() {
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  if (slot.used) slot.copied.synchronize();
  return slot;
}

void DevicePlan::send(Slot& slot, std::size_t bytes, const device::Stream& stream) {
  const Counts counts{static_cast<std::int32_t>(flat_.items.size()),
                      static_cast<std::int32_t>(flat_.reductions.size())};
  std::byte* const lists = slot.lists.data();
  std::memcpy(lists, &counts, sizeof(counts));
  std::memcpy(lists + items_at_, flat_.items.data(), flat_.items.size() * sizeof(Item));
  std::memcpy(lists + reductions_at_, flat_.reductions.data(),
              flat_.reductions.size() * sizeof(Reduction));
  device::copy_to_device(lists_.as<>(), lists, bytes, stream);
  slot.copied.record(stream);
  slot.used = true;
}

Status DevicePlan::upload(const Plan& plan, std::span<const kv::PageTable> tables,
                          const device::Stream& stream) {
  ranges_.resize(tables.size());
  std::int64_t entries = 0;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    ranges_[i] = {narrow(entries), tables[i].count};
    entries += tables[i].count;
  }
  flatten(plan, ranges_, flat_);
  if (Status status = check(entries); !status.ok()) return status;
  Slot& slot = next_slot();
  for (std::size_t i = 0; i < tables.size(); ++i) {
    std::memcpy(slot.lists.data() + tables_at_ + static_cast<std::size_t>(ranges_[i].first) * 4,
                tables[i].pages, static_cast<std::size_t>(tables[i].count) * 4);
  }
  send(slot, tables_at_ + static_cast<std::size_t>(entries) * 4, stream);
  return {};
}

Status DevicePlan::upload(const Plan& plan, std::int32_t table_stride,
                          const device::Stream& stream) {
  ranges_.resize(plan.sequences.size());
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    ranges_[i] = {narrow(static_cast<std::int64_t>(i) * table_stride), table_stride};
  }
  flatten(plan, ranges_, flat_);
  if (Status status = check(0); !status.ok()) return status;
  send(next_slot(), tables_at_, stream);
  return {};
}

void DevicePlan::fill(Arguments& args, float* partials, const std::int32_t* tables) const {
  std::byte* const lists = lists_.as<>();
  args.counts = reinterpret_cast<const Counts*>(lists);
  args.items = reinterpret_cast<const Item*>(lists + items_at_);
  args.reductions = reinterpret_cast<const Reduction*>(lists + reductions_at_);
  args.tables =
      tables != nullptr ? tables : reinterpret_cast<const std::int32_t*>(lists + tables_at_);
  const auto count = static_cast<std::size_t>(capacity_.partials);
  args.partial_o = partials != nullptr ? partials : partials_.as<float>();
  args.partial_m = args.partial_o + count * static_cast<std::size_t>(head_dim_);
  args.partial_l = args.partial_m + count;
}

}  // namespace segue::attention::cuda
