// SPDX-License-Identifier: Apache-2.0
// The planner: row tiles from unit classes, segments from the policy, items and reductions from
// both.
#include "attention/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/kernel.h"
#include "attention/split.h"
#include "attention/unit.h"
#include "core/append.h"
#include "core/check.h"

namespace segue::attention {
namespace {

/// Where only the KV type is in the way.
std::string other_kv(const Kernel& kernel, Shape shape) {
  std::string types;
  for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    shape.kv = kv;
    if (!kernel.supports(shape)) continue;
    types += fmt::format("{}{}", types.empty() ? "" : ", ", kv_type_name(kv));
  }
  return types.empty() ? types : fmt::format("; it does with KV (--kv) of {}", types);
}

/// Where the layout leaves only the reference, which is written to be right, not to be fast.
void describe_reference(const DeviceFacts& device, Shape shape, std::string& reason) {
  const kv::Layout given = shape.layout;
  core::append(reason, ", which is the slow reference");
  const char* before = "; a fast kernel serves this shape in layout ";
  for (const kv::Layout layout : {kv::Layout::kTiled16, kv::Layout::kTokenMajor,
                                  kv::Layout::kHeadMajor, kv::Layout::kSwizzled8}) {
    shape.layout = layout;
    if (layout == given) continue;
    for (const Kernel* kernel : kernels()) {
      if (kernel == &kReference || kernel->device != device.kind || !kernel->supports(shape))
        continue;
      core::append(reason, "{}{}", before, kv::layout_name(layout));
      before = ", ";
      break;
    }
  }
}

Status choose_kernel(const PlanInput& input, const DeviceFacts& device, Plan& out) {
  if (input.kernel != nullptr) {
    if (!input.kernel->supports(input.shape)) {
      return Error{
          ErrorCode::kUsage,
          fmt::format(
              "kernel '{}' does not support ({},{},{}) with {} KV, {} layout, page size {}{}",
              input.kernel->name, input.shape.q_heads, input.shape.kv_heads, input.shape.head_dim,
              kv_type_name(input.shape.kv), kv::layout_name(input.shape.layout),
              input.shape.page_size, other_kv(*input.kernel, input.shape))};
    }
    CHECK(input.kernel->family == device.family || input.kernel->family == GpuFamily::kNone);
    out.kernel = input.kernel;
    core::assign(out.kernel_reason, "forced");
    return {};
  }
  for (const Kernel* kernel : kernels()) {
    const bool fits = device.kind != DeviceKind::kCuda || kernel->family == device.family;
    if (kernel->device != device.kind || !fits || !kernel->supports(input.shape)) continue;
    out.kernel = kernel;
    core::assign(out.kernel_reason, "first of the table that supports the shape on this machine");
    if (kernel == &kReference) describe_reference(device, input.shape, out.kernel_reason);
    return {};
  }
  return Error{ErrorCode::kUnsupported,
               "no kernel of this build supports the attention shape on this device"};
}

/// Tiles of one sequence: rows of one unit class, in runs as equal as possible under the tile
/// limit.
void add_tiles(const Shape& shape, const UnitRule& rule, int max_rows, int sequence,
               const SequenceRows& rows, std::int64_t token, std::vector<RowTile>& tiles) {
  for (int first = 0; first < rows.rows;) {
    const std::int64_t keys = shape.visible_keys(rows.depth + first);
    const int unit = unit_size(rule, keys);
    const std::int64_t limit = unit_limit(rule, unit);
    int end = rows.rows;
    if (shape.window == 0 ||
        shape.window > limit) {  // else all later rows see at most the window: the same class
      end = static_cast<int>(std::min<std::int64_t>(rows.rows, first + (limit - keys) + 1));
    }
    const int count = (end - first + max_rows - 1) / max_rows;
    for (int i = 0; i < count; ++i) {
      RowTile tile;
      tile.sequence = sequence;
      tile.row_first = first + static_cast<int>(std::int64_t{end - first} * i / count);
      tile.rows =
          first + static_cast<int>(std::int64_t{end - first} * (i + 1) / count) - tile.row_first;
      tile.unit = unit;
      tile.position = rows.depth + tile.row_first;
      tile.token = token + tile.row_first;
      tile.unit_first = static_cast<std::int32_t>(shape.first_key(tile.position) / tile.unit);
      tile.unit_last = static_cast<std::int32_t>((tile.position + tile.rows - 1) / tile.unit + 1);
      tiles.push_back(tile);
    }
    first = end;
  }
}

/// Where the segments of a tile lie: `count` runs of equal length from unit `origin` on, as far as
/// the tile sees them.
struct Cut {
  int origin = 0;
  int count = 1;
  int units = 0;    // from the origin to the tile's end
  int at_once = 0;  // > 0: at most `count` shrinking segments, so many of a length (see shrink())

  int begin(int segment) const {
    return origin + static_cast<int>(std::int64_t{units} * segment / count);
  }
};

Cut cut(const RowTile& tile, int segments, bool over_whole_length) {
  Cut result;
  result.origin = over_whole_length ? 0 : tile.unit_first;
  result.units = tile.unit_last - result.origin;
  result.count = std::clamp(segments, 1, result.units);
  return result;
}

/// Segments for workgroups of unequal speed (factoring: Flynn Hummel, Schonberg and Flynn 1992).
/// `at_once` of them share three quarters of what is left, then of what is left after that; the
/// last take the rest. A workgroup may be a third slower than another and all still end together,
/// with few starts and the longest possible segment folded in place.
void shrink(const RowTile& tile, int tile_index, const Cut& segments,
            std::vector<WorkItem>& items) {
  int allowed = segments.count;
  for (int unit = tile.unit_first; unit < tile.unit_last;) {
    const int left = tile.unit_last - unit;
    const int takers = std::min(segments.at_once, allowed);
    const int size = allowed <= segments.at_once ? (left + takers - 1) / takers
                                                 : std::max(1, 3 * left / (4 * takers));
    for (int i = 0; i < takers && unit < tile.unit_last; ++i, --allowed) {
      const int end = std::min(unit + size, tile.unit_last);
      items.push_back({tile_index, 0, unit, end, -1});
      unit = end;
    }
  }
}

/// Items of one tile and its first kv head, partials numbered from 0; returns the partials.
std::int64_t cut_tile(const RowTile& tile, int tile_index, int group, const Cut& segments,
                      std::vector<WorkItem>& items) {
  const std::size_t first = items.size();
  if (segments.at_once > 0) {
    shrink(tile, tile_index, segments, items);
  } else {
    int unit = tile.unit_first;
    for (int i = 1; i <= segments.count; ++i) {
      const int end = i < segments.count ? segments.begin(i) : tile.unit_last;
      if (end <= unit) continue;  // in front of the window
      items.push_back({tile_index, 0, unit, end, -1});
      unit = end;
    }
  }
  if (items.size() - first == 1) return 0;
  std::int64_t partials = 0;
  for (std::size_t i = first; i < items.size(); ++i) {
    items[i].partial = partials;
    partials += std::int64_t{i == first ? 1 : items[i].units()} * tile.rows * group;
  }
  return partials;
}

/// Items and reductions of all kv heads of a tile; returns the segments of each.
int add_items(const RowTile& tile, int tile_index, const Cut& segments, Plan& out) {
  const std::size_t first = out.items.size();
  const std::int64_t partials = cut_tile(tile, tile_index, out.shape.group(), segments, out.items);
  const std::size_t count = out.items.size() - first;
  for (int head = 0; head < out.shape.kv_heads; ++head) {
    const std::size_t begin = first + static_cast<std::size_t>(head) * count;
    if (head > 0) {
      out.items.resize(begin + count);
      for (std::size_t i = 0; i < count; ++i) {
        WorkItem& item = out.items[begin + i];
        item = out.items[first + i];
        item.kv_head = head;
        if (count > 1) item.partial += head * partials;
      }
    }
    if (count > 1) {
      out.reductions.push_back({tile_index, head, static_cast<std::int32_t>(begin),
                                static_cast<std::int32_t>(begin + count)});
    }
  }
  for (std::size_t i = first; count > 1 && i < out.items.size(); ++i) {
    out.items[i].partial += out.partials;
  }
  out.partials += partials * out.shape.kv_heads;
  return static_cast<int>(count);
}

/// Dearest items first, so that the last to be handed out are cheap ones; ties in order. Sorts
/// numbers that hold the cost (split.h) above and the index below.
void order_tiles(const DeviceFacts& device, Plan& out) {
  constexpr int kIndexBits = 24;
  constexpr std::uint64_t kIndex = (std::uint64_t{1} << kIndexBits) - 1;
  static_assert(kMostTiles <= static_cast<std::int64_t>(kIndex));
  constexpr std::uint64_t kMostCost = (std::uint64_t{1} << (64 - kIndexBits)) - 1;
  CHECK(out.tiles.size() <= static_cast<std::size_t>(kMostTiles));
  out.tile_order.resize(out.tiles.size());
  out.sort_keys.resize(out.tiles.size());
  for (std::size_t i = 0; i < out.tiles.size(); ++i) {
    const RowTile& tile = out.tiles[i];
    const auto keys = static_cast<std::uint64_t>(tile.unit_last - tile.unit_first) *
                      static_cast<std::uint64_t>(tile.unit);
    const int rows = std::max(device.reading_rows, tile.rows * out.shape.group());
    out.sort_keys[i] = (kMostCost - keys * static_cast<std::uint64_t>(rows)) << kIndexBits | i;
  }
  std::sort(out.sort_keys.begin(), out.sort_keys.end());
  for (std::size_t i = 0; i < out.tiles.size(); ++i) {
    out.tile_order[i] = static_cast<std::int32_t>(out.sort_keys[i] & kIndex);
  }
}

/// Of all rows of a tile: each sees one key more than the row before it, up to the window.
std::int64_t visible_keys(const Shape& shape, const RowTile& tile) {
  const std::int64_t first = shape.visible_keys(tile.position);
  const std::int64_t growing =
      shape.window > 0 ? std::min<std::int64_t>(tile.rows, shape.window - first + 1) : tile.rows;
  return growing * first + growing * (growing - 1) / 2 + (tile.rows - growing) * shape.window;
}

void count_work(const RowTile& tile, Plan& out) {
  const Shape& shape = out.shape;
  const std::int64_t last = tile.position + tile.rows - 1;
  const std::int64_t keys = last + 1 - shape.first_key(tile.position);
  out.kv_bytes += keys * shape.key_bytes();
  out.sequences[static_cast<std::size_t>(tile.sequence)].keys += keys;
  out.operations += visible_keys(shape, tile) * shape.q_heads * shape.head_dim *
                    4;  // q.k and p.v, two operations each
}

void choose_path(const PlanInput& input, const DeviceFacts& device, const StepFacts& step,
                 Plan& out) {
  out.rounds = 1;
  evaluate(input.policy, input.shape, device, step, out.verdict);
  if (input.force_segments > 0) {
    out.tile_segments.assign(out.tiles.size(), input.force_segments);
    core::assign(out.verdict.reason, "{} segments a tile and kv head are forced",
                 input.force_segments);
    out.verdict.path = input.force_segments > 1 ? Path::kSegmented : Path::kWhole;
  } else if (out.verdict.path == Path::kWhole) {
    out.tile_segments.assign(out.tiles.size(), 1);
  } else if (input.policy == Policy::kSegue) {
    const int rounds =
        choose_segments(input.shape, device, out.tiles, out.tile_order, out.tile_segments);
    // Of several pairs all would have their long segments, the last one's too late.
    if (device.uneven && out.tiles.size() * static_cast<std::size_t>(input.shape.kv_heads) == 1) {
      out.rounds = rounds;
    }
  } else {
    out.tile_segments.assign(out.tiles.size(), kModelSegments);
  }
}

/// Partials that a tile stores when every kv head has this many segments of equal length.
std::int64_t stored_partials(const Shape& shape, const RowTile& tile, int segments) {
  const int units = tile.unit_last - tile.unit_first;
  const int count = std::min(segments, units);
  if (count <= 1) return 0;
  return std::int64_t{units - units / count + 1} * tile.rows * shape.q_heads;
}

/// Gives tiles fewer segments, the cheapest tiles first, until all fits; says whether it had to.
bool fit_partials(const PlanInput& input, Plan& out) {
  if (!input.fit_partials || input.max_partials < 0 || input.policy != Policy::kSegue) return false;
  std::int64_t left = input.max_partials;
  bool limited = false;
  for (const std::int32_t index : out.tile_order) {
    const RowTile& tile = out.tiles[static_cast<std::size_t>(index)];
    std::int32_t& segments = out.tile_segments[static_cast<std::size_t>(index)];
    while (stored_partials(input.shape, tile, segments) > left) {
      segments /= 2;
      limited = true;
    }
    left -= stored_partials(input.shape, tile, segments);
  }
  return limited;
}

void describe_split(const PlanInput& input, const DeviceFacts& device, bool limited, Plan& out) {
  if (input.policy != Policy::kSegue || input.force_segments > 0) return;
  out.verdict.path = out.reductions.empty() ? Path::kWhole : Path::kSegmented;
  core::assign(
      out.verdict.reason,
      "segue: no clause about rows or batch; {} workgroups, {} at once; {} of {} tiles x kv heads "
      "are split",
      out.items.size(), device.workgroups, out.reductions.size(),
      out.tiles.size() * static_cast<std::size_t>(out.shape.kv_heads));
  if (limited) {
    core::append(out.verdict.reason, "; the workspace of {} partials has no room for more",
                 input.max_partials);
  }
}

Status check_workspace(const PlanInput& input, const Plan& out) {
  if (input.max_partials < 0 || out.partials <= input.max_partials) return {};
  const std::int64_t entry =
      (std::int64_t{2} + out.shape.head_dim) * static_cast<std::int64_t>(sizeof(float));
  return Error{
      ErrorCode::kNoMemory,
      fmt::format(
          "the attention plan needs {} partials ({} bytes); the workspace holds {} ({} bytes)",
          out.partials, out.partials * entry, input.max_partials, input.max_partials * entry)};
}

}  // namespace

Status plan(const PlanInput& input, const DeviceFacts& device, Plan& out) {
  if (Status status = validate(input.shape); !status.ok()) return status;
  if (Status status = choose_kernel(input, device, out); !status.ok()) return status;
  out.shape = input.shape;
  out.policy = input.policy;
  out.tiles.clear();
  out.items.clear();
  out.reductions.clear();
  out.sequences.assign(input.sequences.size(), {});
  out.rows = 0;
  out.partials = 0;
  out.kv_bytes = 0;
  out.operations = 0;

  StepFacts step{.max_rows = 0, .sequences = 0, .decode_rows = input.decode_rows};
  const UnitRule rules[2] = {unit_rule(input.shape, device), unit_rule(input.shape, device, true)};
  const int max_rows = std::max(device.max_tile_rows / input.shape.group(), 1);
  for (std::size_t i = 0; i < input.sequences.size(); ++i) {
    const SequenceRows& rows = input.sequences[i];
    DCHECK(rows.rows >= 0 && rows.depth >= 0);
    add_tiles(input.shape, rules[rows.prefill ? 1 : 0], max_rows, static_cast<int>(i), rows,
              out.rows, out.tiles);
    out.rows += rows.rows;
    step.max_rows = std::max(step.max_rows, rows.rows);
    step.sequences += rows.rows > 0 ? 1 : 0;
  }
  order_tiles(device, out);
  choose_path(input, device, step, out);
  const bool limited = fit_partials(input, out);
  if (limited) out.rounds = 1;

  const bool over_whole_length =
      input.force_segments == 0 && out.verdict.path == Path::kSegmented &&
      (input.policy == Policy::kStock || input.policy == Policy::kPr47520);
  for (const std::int32_t index : out.tile_order) {
    const RowTile& tile = out.tiles[static_cast<std::size_t>(index)];
    std::int32_t& segments = out.tile_segments[static_cast<std::size_t>(index)];
    Cut segment_cut = cut(tile, segments, over_whole_length);
    if (out.rounds > 1 && segment_cut.count > 1) {
      segment_cut.at_once = (segment_cut.count + out.rounds - 1) / out.rounds;
    }
    segments = add_items(tile, index, segment_cut, out);
  }
  for (std::size_t i = 0; i < out.tiles.size(); ++i) {
    SequenceChoice& choice = out.sequences[static_cast<std::size_t>(out.tiles[i].sequence)];
    const std::int32_t segments = out.tile_segments[i];
    if (choice.workgroups == 0) choice.path = Path::kWhole;
    if (segments > 1) choice.path = Path::kSegmented;
    choice.segments = segments;
    choice.workgroups += segments * input.shape.kv_heads;
    count_work(out.tiles[i], out);
  }
  describe_split(input, device, limited, out);
  return check_workspace(input, out);
}

}  // namespace segue::attention
