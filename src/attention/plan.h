// SPDX-License-Identifier: Apache-2.0
// plan(): which workgroup reduces which run of keys for which rows. A pure host function of shapes,
// lengths and device facts; called once per step and KV group. A Plan is a value that every backend
// executes alike, that prints itself and that can be tested without a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/policy.h"
#include "attention/shape.h"
#include "core/json.h"

namespace segue::attention {

struct Kernel;

/// Row tiles of a step, at most.
inline constexpr std::int64_t kMostTiles = (std::int64_t{1} << 24) - 1;

/// Consecutive rows of one sequence that share a unit size and are computed together.
struct RowTile {
  std::int32_t sequence = 0;
  std::int32_t row_first = 0;  // within the sequence's rows of this step
  std::int32_t rows = 0;
  std::int32_t unit = 0;        // keys per unit; unit u covers positions [u * unit, (u + 1) * unit)
  std::int32_t unit_first = 0;  // first unit that any row of the tile sees
  std::int32_t unit_last = 0;   // one past the last
  std::int64_t position = 0;    // of the tile's first row (depth + row_first)
  std::int64_t token = 0;       // of the tile's first row in the packed rows of the step
};

/// One workgroup's work, issued in the order of Plan::items (dearest tiles first): a row tile, one
/// kv head, a run of units (a segment). Segments of a tile are equally long, or shrink towards its
/// end where workgroups differ in speed and the tile is alone. A segment that starts at the tile's
/// first unit folds its units in place: one partial per row and head, or the final result when it
/// also is the last. Every other segment stores a partial per unit, because the fold goes left to
/// right.
struct WorkItem {
  std::int32_t tile = 0;
  std::int32_t kv_head = 0;
  std::int32_t unit_first = 0;
  std::int32_t unit_last = 0;
  std::int64_t partial =
      -1;  // index of its first partial; -1: the segment is the whole tile, results are final

  std::int32_t units() const { return unit_last - unit_first; }
};

/// The merge of one (row tile, kv head): items [item_first, item_last) in ascending unit order.
/// Partial (row r, head g within the group) of stored run s of an item has index
/// item.partial + (s * tile.rows + r) * group + g, with s = 0 for a folded first segment, else unit
/// - item.unit_first.
struct Reduction {
  std::int32_t tile = 0;
  std::int32_t kv_head = 0;
  std::int32_t item_first = 0;
  std::int32_t item_last = 0;
};

/// What was decided for one sequence, for the record.
struct SequenceChoice {
  Path path = Path::kSegmented;
  std::int32_t segments = 1;    // of its last row tile, per kv head
  std::int32_t workgroups = 0;  // all its items
  std::int64_t keys = 0;  // that its rows read (window-relative), each counted once per row tile
};

struct Plan {
  Shape shape;
  Policy policy = Policy::kSegue;
  const Kernel* kernel = nullptr;
  std::string kernel_reason;
  std::vector<RowTile> tiles;
  std::vector<WorkItem> items;
  std::vector<Reduction> reductions;
  std::vector<SequenceChoice> sequences;
  Verdict verdict;        // of the policy; with `segue`, path and reason say what the split came to
  std::int64_t rows = 0;  // packed rows of the step
  std::int64_t partials =
      0;  // entries of the partial buffers: m and l are one float each, o head_dim floats
  std::int64_t kv_bytes = 0;    // K and V bytes that the items read
  std::int64_t operations = 0;  // multiply-adds x 2 over visible keys

  int rounds = 1;  // segments that one workgroup takes of a split tile, one after the other
  std::vector<std::int32_t> tile_segments;  // [tiles] segments per kv head
  std::vector<std::int32_t> tile_order;     // [tiles] the order in which their items are issued
  std::vector<std::uint64_t> sort_keys;     // [tiles] scratch of planning

  int workgroups() const { return static_cast<int>(items.size()); }
  std::int64_t workspace_bytes() const {
    return partials * (std::int64_t{2} + shape.head_dim) * static_cast<std::int64_t>(sizeof(float));
  }
};

struct PlanInput {
  Shape shape;
  std::span<const SequenceRows> sequences;
  Policy policy = Policy::kSegue;
  int decode_rows = 1;     // 1 + k that the engine was started with (pr45450's clause reads it)
  int force_segments = 0;  // > 0: this many segments per (row tile, kv head); tests and `exactness`
  std::int64_t max_partials = -1;  // capacity of the workspace; -1: unlimited
  bool fit_partials = false;  // `segue` splits fewer tiles, the dearest first, instead of failing
  const Kernel* kernel =
      nullptr;  // forced kernel; null: the first of the table that supports the shape
};

/// Fills `out`, reusing its storage (no allocation in the steady state). Fails when the workspace
/// would overflow (the message has both sizes), when no kernel supports the shape, or when a forced
/// kernel does not.
Status plan(const PlanInput& input, const DeviceFacts& device, Plan& out);

/// A table for people.
std::string to_text(const Plan& plan);
/// With tiles, items and reductions unless `summary`.
core::Json to_json(const Plan& plan, bool summary = false);

}  // namespace segue::attention
