// SPDX-License-Identifier: Apache-2.0
// Flattening and uploading.
#include "attention/cuda/device_plan.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "device/cuda/check.h"

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

}  // namespace

void flatten(const Plan& plan, std::span<const std::int32_t> table_first,
             std::span<const kv::PageTable> tables, FlatPlan& out) {
  const int group = plan.shape.group();
  out.items.clear();
  out.reductions.clear();
  out.tile_rows = 0;
  out.runs = 0;
  out.partials = plan.partials;
  for (const WorkItem& work : plan.items) {
    const RowTile& tile = plan.tiles[static_cast<std::size_t>(work.tile)];
    const auto sequence = static_cast<std::size_t>(tile.sequence);
    const std::int64_t partials = std::int64_t{tile.rows} * group;
    out.tile_rows = std::max(out.tile_rows, tile.rows * group);
    Item item{};
    item.position = narrow(tile.position);
    item.rows = tile.rows;
    item.kv_head = work.kv_head;
    item.unit = tile.unit;
    item.key_begin = narrow(
        std::max(std::int64_t{work.unit_first} * tile.unit, plan.shape.first_key(tile.position)));
    item.key_end =
        narrow(std::min(std::int64_t{work.unit_last} * tile.unit, tile.position + tile.rows));
    item.table = table_first[sequence];
    item.table_count = tables[sequence].count;
    item.token = narrow(tile.token);
    item.partial = narrow(std::max<std::int64_t>(work.partial, 0));
    const bool several = work.units() > 1;
    if (work.partial >= 0) {
      item.emit = several && work.unit_first == tile.unit_first ? Emit::kFold : Emit::kStore;
    } else if (!several) {
      item.emit = Emit::kFinal;
    } else {
      item.emit = Emit::kFoldFinal;
      item.partial = narrow(out.partials);
      out.partials += partials;
    }
    out.items.push_back(item);
  }
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

Capacity capacity_of(const Plan& plan, std::span<const kv::PageTable> tables) {
  FlatPlan flat;
  const std::vector<std::int32_t> first(tables.size(), 0);
  flatten(plan, first, tables, flat);
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

DevicePlan::DevicePlan(const Capacity& capacity, int head_dim)
    : capacity_(capacity), head_dim_(head_dim) {
  items_at_ = aligned(sizeof(Counts));
  reductions_at_ = items_at_ + aligned(static_cast<std::size_t>(capacity.items) * sizeof(Item));
  tables_at_ =
      reductions_at_ + aligned(static_cast<std::size_t>(capacity.reductions) * sizeof(Reduction));
  list_bytes_ =
      tables_at_ + aligned(static_cast<std::size_t>(capacity.table_entries) * sizeof(std::int32_t));
  device::cuda_check(cudaMallocHost(reinterpret_cast<void**>(&staging_), list_bytes_));
  lists_ = device::Buffer(list_bytes_);
  partials_ = device::Buffer(static_cast<std::size_t>(capacity.partials) *
                                 static_cast<std::size_t>(head_dim + 2) * sizeof(float) +
                             2 * kAlignment);
}

DevicePlan::~DevicePlan() { static_cast<void>(cudaFreeHost(staging_)); }

Status DevicePlan::upload(const Plan& plan, std::span<const kv::PageTable> tables,
                          const device::Stream& stream) {
  table_first_.resize(tables.size());
  std::int64_t entries = 0;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    table_first_[i] = narrow(entries);
    entries += tables[i].count;
  }
  flatten(plan, table_first_, tables, flat_);
  const bool fits = static_cast<int>(flat_.items.size()) <= capacity_.items &&
                    static_cast<int>(flat_.reductions.size()) <= capacity_.reductions &&
                    flat_.tile_rows <= capacity_.tile_rows && flat_.runs <= capacity_.runs &&
                    flat_.partials <= capacity_.partials && entries <= capacity_.table_entries;
  if (!fits) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("the attention plan exceeds its buffers: {} of {} items, {} of {} "
                             "reductions, {} of {} rows a tile, {} of {} partials, {} of {} page "
                             "table entries",
                             flat_.items.size(), capacity_.items, flat_.reductions.size(),
                             capacity_.reductions, flat_.tile_rows, capacity_.tile_rows,
                             flat_.partials, capacity_.partials, entries, capacity_.table_entries)};
  }
  const Counts counts{static_cast<std::int32_t>(flat_.items.size()),
                      static_cast<std::int32_t>(flat_.reductions.size())};
  std::memcpy(staging_, &counts, sizeof(counts));
  std::memcpy(staging_ + items_at_, flat_.items.data(), flat_.items.size() * sizeof(Item));
  std::memcpy(staging_ + reductions_at_, flat_.reductions.data(),
              flat_.reductions.size() * sizeof(Reduction));
  for (std::size_t i = 0; i < tables.size(); ++i) {
    std::memcpy(staging_ + tables_at_ + static_cast<std::size_t>(table_first_[i]) * 4,
                tables[i].pages, static_cast<std::size_t>(tables[i].count) * 4);
  }
  device::copy_to_device(lists_.as<>(), staging_,
                         tables_at_ + static_cast<std::size_t>(entries) * 4, stream);
  return {};
}

void DevicePlan::fill(Arguments& args) const {
  std::byte* const lists = lists_.as<>();
  args.counts = reinterpret_cast<const Counts*>(lists);
  args.items = reinterpret_cast<const Item*>(lists + items_at_);
  args.reductions = reinterpret_cast<const Reduction*>(lists + reductions_at_);
  args.tables = reinterpret_cast<const std::int32_t*>(lists + tables_at_);
  const auto partials = static_cast<std::size_t>(capacity_.partials);
  args.partial_o = partials_.as<float>();
  args.partial_m = args.partial_o + partials * static_cast<std::size_t>(head_dim_);
  args.partial_l = args.partial_m + partials;
}

}  // namespace segue::attention::cuda
