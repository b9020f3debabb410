// SPDX-License-Identifier: Apache-2.0
// A Plan on the device: flattened into the kernels' items and reductions and uploaded with the page
// tables in one copy. Buffers have a fixed capacity, so that a captured graph replays with another
// plan: blocks past the live counts return at once.
#pragma once

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
  int tile_rows = 0;
  int runs = 0;
  std::int64_t partials = 0;
};

/// `table_first[i]` is where sequence i's page table starts. Reuses the storage of `out`.
void flatten(const Plan& plan, std::span<const std::int32_t> table_first,
             std::span<const kv::PageTable> tables, FlatPlan& out);

/// What `plan` needs; capacities of several plans combine by the larger of each.
Capacity capacity_of(const Plan& plan, std::span<const kv::PageTable> tables);
Capacity larger(const Capacity& a, const Capacity& b);

class DevicePlan {
 public:
  /// Allocates the lists and the partials.
  DevicePlan(const Capacity& capacity, int head_dim);
  ~DevicePlan();
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  /// Flattens and enqueues one copy; page tables are host memory. The previous upload must have
  /// been reached by its stream. Fails when the plan exceeds the capacity; the message has both.
  Status upload(const Plan& plan, std::span<const kv::PageTable> tables,
                const device::Stream& stream);

  const Capacity& capacity() const { return capacity_; }
  const FlatPlan& live() const { return flat_; }
  /// Fills the lists, tables and partials of a launch.
  void fill(Arguments& args) const;

 private:
  Capacity capacity_;
  int head_dim_;
  FlatPlan flat_;
  std::vector<std::int32_t> table_first_;
  std::size_t items_at_ = 0, reductions_at_ = 0, tables_at_ = 0, list_bytes_ = 0;
  std::byte* staging_ = nullptr;  // pinned, as lists_
  device::Buffer lists_;          // Counts, items, reductions, tables
  device::Buffer partials_;       // m, l, o
};

}  // namespace segue::attention::cuda
