// SPDX-License-Identifier: Apache-2.0
// A Plan on the device: flattened into the kernels' items and reductions and uploaded with the page
// tables in one copy. Buffers have a fixed capacity, so that a captured graph replays with another
// plan: blocks past the live counts return at once.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/arguments.h"
#include "attention/plan.h"
#include "device/device.h"
#include "kv/view.h"
#include "segue/error.h"

namespace segue::attention::cuda {

/// Sizes that a captured graph is bound to.
struct Capacity {
  int items = 0;
  int reductions = 0;
  int tile_rows = 0;               // rows x group of the largest row tile
  int runs = 0;                    // partials of the longest reduction, per row and head
  std::int64_t partials = 0;       // partials and fold scratch together
  std::int64_t table_entries = 0;  // of all page tables
};

/// The flattened plan, on the host.
struct FlatPlan {
  std::vector<Item> items;
  std::vector<Reduction> reductions;
  std::vector<Item> turns;  // scratch
  int tile_rows = 0;
  int runs = 0;
  bool folds = false;  // some item has several units of which it folds the first ones
  std::int64_t partials = 0;
};

/// What the grids of a layer's launches follow from: blocks past a plan's counts return at once.
struct Grid {
  int items = 0;
  int reductions = 0;
  int tile_rows = 0;
  int runs = 0;
  bool folds = false;
};
Grid grid_of(const FlatPlan& live);

/// `live` or a little more, for a graph that is to replay with many plans: sizes in coarse steps,
/// the same choice of kernels, at most twice the blocks and no more items than there is room for.
Grid in_steps(const Grid& live, int most_items, int multiprocessors);

/// Where the page table of a sequence lies among all page tables.
struct TableRange {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

/// `tables[i]` belongs to sequence i. Reuses the storage of `out`.
void flatten(const Plan& plan, std::span<const TableRange> tables, FlatPlan& out);

/// What `plan` needs; capacities of several plans combine by the larger of each.
Capacity capacity_of(const Plan& plan, std::span<const kv::PageTable> tables);
Capacity larger(const Capacity& a, const Capacity& b);

class DevicePlan {
 public:
  /// Allocates the lists, and the partials unless they come with every launch
  /// (DeviceParams::partials).
  DevicePlan(const Capacity& capacity, int head_dim, bool own_partials = true);
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  /// Flattens and enqueues one copy; page tables are host memory and travel along. Fails when the
  /// plan exceeds the capacity; the message has both. Not while the stream is captured.
  Status upload(const Plan& plan, std::span<const kv::PageTable> tables,
                const device::Stream& stream);
  /// As above, but the page tables are device memory, [sequences, table_stride], and come with
  /// every launch (DeviceParams::tables).
  Status upload(const Plan& plan, std::int32_t table_stride, const device::Stream& stream);

  const Capacity& capacity() const { return capacity_; }
  const FlatPlan& live() const { return flat_; }
  /// Bytes of the memory behind DeviceParams::partials.
  std::size_t partial_bytes() const;
  /// Fills the lists, tables and partials of a launch; null for what this object owns.
  void fill(Arguments& args, float* partials = nullptr, const std::int32_t* tables = nullptr) const;

 private:
  /// A copy of the lists on its way to the device: uploads do not wait for the one before.
  struct Slot {
    device::PinnedBuffer lists;
    device::Event copied;
    bool used = false;
  };

  Status check(std::int64_t table_entries) const;
  Slot& next_slot();
  void send(Slot& slot, std::size_t bytes, const device::Stream& stream);

  Capacity capacity_;
  int head_dim_;
  FlatPlan flat_;
  std::vector<TableRange> ranges_;
  std::size_t items_at_ = 0, reductions_at_ = 0, tables_at_ = 0, list_bytes_ = 0;
  std::array<Slot, 4> slots_;
  std::size_t next_slot_ = 0;
  device::Buffer lists_;     // Counts, items, reductions, tables
  device::Buffer partials_;  // o, m, l
};

}  // namespace segue::attention::cuda
