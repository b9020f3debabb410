// SPDX-License-Identifier: Apache-2.0
// The cost formula behind choose_segments(). One formula, no tables.
#include "attention/split.h"

#include <algorithm>
#include <limits>

#include "attention/unit.h"

namespace segue::attention {
namespace {

constexpr double kEvenEnough = 1.02;   // makespan over the ideal at which no candidate is looked at
constexpr double kAloneGain = 0.9;     // of an even share, by a workgroup alone where several fit
constexpr double kFedAloneGain = 1.1;  // the same with deeper rings and a warp each for K and V
constexpr int kLittle = 8;  // up to 1/8 of a unit's keys are too few for a segment of their own
constexpr double kAlike = 1.25;  // cost of the dearest tile over that of the cheapest, up to which
                                 // whole rounds of tiles end together
constexpr double kSharing = 1.35;  // gain of a workgroup beside which another one could run
constexpr double kDoubt = 1.08;    // of a makespan in which that gain counts
constexpr int kFinest = 4;  // segments per workgroup at most, when one tile is the whole step

/// A workgroup alone on a multiprocessor is the faster way to read it.
bool alone_is_fed(const Shape& shape, const DeviceFacts& device) {
  return device.family == GpuFamily::kSm90 && shape.layout == kv::Layout::kSwizzled8 &&
         shape.head_dim == 128;
}

struct TileCost {
  int units = 0;     // without a last one of a few keys
  double unit = 0;   // of one unit
  double merge = 0;  // of one stored partial
  double start = 0;  // of one item

  TileCost(const Shape& shape, const DeviceFacts& device, const RowTile& tile) {
    const double rows = static_cast<double>(tile.rows) * shape.group();
    units = tile.unit_last - tile.unit_first;
    // Just past a power of two the last unit has a few keys. A GPU makes no segment for them if
    // that would be one item more than it runs at once, which takes a round of its own: the last
    // one takes them along (cut() in plan.cc rounds down). Where a workgroup is better alone,
    // one item more than there are multiprocessors is such a one too.
    const std::int64_t last =
        tile.position + tile.rows - std::int64_t{tile.unit} * (tile.unit_last - 1);
    const bool little = last <= std::min<std::int64_t>(kUnitSlack, tile.unit / kLittle);
    const int items = shape.kv_heads * units;
    const int alone = alone_is_fed(shape, device) ? device.workgroups / device.residents : items;
    if (device.kind == DeviceKind::kCuda && little &&
        (items > device.workgroups || (items > alone && items - shape.kv_heads <= alone)))
      units = std::max(units - 1, 1);
    const double key = std::max<double>(device.reading_rows, rows);
    unit = tile.unit * key;
    merge = device.merge_keys * rows;
    start = device.item_keys * key;
  }

  int segments(double target) const {
    if (target >= unit * units) return 1;
    const int units_each = std::max(1, static_cast<int>(target / unit + 0.999));
    return (units + units_each - 1) / units_each;
  }
};

/// What a candidate comes to for the whole step.
struct Estimate {
  double total = 0;
  double largest = 0;  // item
  double items = 0;
  double merges = 0;

  void add(const TileCost& tile, int segments, int kv_heads) {
    const int longest = (tile.units + segments - 1) / segments;
    const int stored = segments > 1 ? tile.units - tile.units / segments + 1 : 0;
    const double item = longest * tile.unit + tile.start;
    total += kv_heads * (tile.units * tile.unit + segments * tile.start);
    merges += kv_heads * stored * tile.merge;
    largest = std::max(largest, item);
    items += static_cast<double>(kv_heads) * segments;
  }

  /// With what is added at the end of the step alone: how unevenly equal work ends, and the merges.
  double with_merges(double time, double last_item, const DeviceFacts& device) const {
    return time + device.imbalance * last_item + merges / device.workgroups;
  }

  double makespan(const Shape& shape, const DeviceFacts& device) const {
    const double gain = alone_is_fed(shape, device) ? kFedAloneGain : kAloneGain;
    const double workgroups = device.workgroups;
    // A workgroup alone where several fit has their bandwidth.
    const bool alone = items <= workgroups / device.residents;
    double time = alone ? largest / std::max(gain * device.residents, 1.0) : largest;
    if (items > workgroups) {
      const double rounds =
          static_cast<double>(static_cast<std::int64_t>((items + workgroups - 1) / workgroups));
      const double bound =
          total / workgroups + largest * (1 - 1 / workgroups);  // any order of handing out
      time = std::min(rounds * largest, bound);
    }
    return with_merges(time, largest, device);
  }
};

/// Which tiles are split, and how finely.
struct Split {
  double makespan = 0;
  double target = std::numeric_limits<double>::infinity();  // of an item; longer tiles are split
  std::size_t whole = 0;  // so many tiles, in the order of issue, are not
};

/// A few tiles more than fill the device take a round of their own, in which most of it is idle.
/// So, where tiles are alike: those that fill whole rounds are not split, and those issued after
/// them are, to end with them. A round is all workgroups at once; where one of them on a
/// multiprocessor is well fed, also one on each. (Elsewhere two on a multiprocessor make up for a
/// round that is not full: (16, 8, 256) lost 3 to 5 % at 56 sequences, 2026-11.)
Split split_the_last(const Shape& shape, const DeviceFacts& device, std::span<const RowTile> tiles,
                     std::span<const std::int32_t> order) {
  Split best{.makespan = std::numeric_limits<double>::infinity()};
  const bool fed = device.residents == 1 || alone_is_fed(shape, device);
  const auto items = static_cast<int>(tiles.size()) * shape.kv_heads;
  for (int share = 1; fed && share <= device.residents; ++share) {
    const int round = device.workgroups / share;
    const int rounds = items / round;
    const auto whole = static_cast<std::size_t>(rounds * round / shape.kv_heads);
    if (whole == 0 || whole == tiles.size()) continue;
    Estimate first;
    double rest = 0;
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      const TileCost cost(shape, device, tiles[static_cast<std::size_t>(order[i])]);
      if (i < whole) {
        first.add(cost, 1, shape.kv_heads);
      } else {
        rest += shape.kv_heads * cost.units * cost.unit;
      }
    }
    const double filled =
        first.largest * (rounds / share + (rounds % share > 0 ? 1 / kSharing : 0));
    for (int finer = 1; finer <= kFinest; ++finer) {
      const double target = rest / (static_cast<double>(round) * finer);
      Estimate estimate = first;
      estimate.largest = 0;
      for (const std::int32_t index : order.subspan(whole)) {
        const TileCost cost(shape, device, tiles[static_cast<std::size_t>(index)]);
        estimate.add(cost, cost.segments(target), shape.kv_heads);
      }
      const double spread =
          estimate.total / device.workgroups + estimate.largest * (1 - 1.0 / device.workgroups);
      const double makespan =
          estimate.with_merges(std::max(filled, spread), estimate.largest, device) *
          (share > 1 ? kDoubt : 1);
      if (makespan < best.makespan) best = {makespan, target, whole};
    }
  }
  return best;
}

}  // namespace

int choose_segments(const Shape& shape, const DeviceFacts& device, std::span<const RowTile> tiles,
                    std::span<const std::int32_t> order, std::vector<std::int32_t>& segments) {
  segments.assign(tiles.size(), 1);
  if (device.workgroups <= 1 || tiles.empty()) return 1;

  Estimate whole;
  double work = 0;
  double smallest = std::numeric_limits<double>::infinity();
  for (const RowTile& tile : tiles) {
    const TileCost cost(shape, device, tile);
    whole.add(cost, 1, shape.kv_heads);
    work += shape.kv_heads * cost.units * cost.unit;
    smallest = std::min(smallest, cost.units * cost.unit + cost.start);
  }
  Split best{.makespan = whole.makespan(shape, device)};
  if (best.makespan * device.workgroups <= kEvenEnough * work) return 1;
  int chosen = 1;
  for (int finer = 1; finer <= kFinest; ++finer) {
    const double candidate = work / (static_cast<double>(device.workgroups) * finer);
    if (candidate >= whole.largest) continue;
    Estimate estimate;
    for (const RowTile& tile : tiles) {
      const TileCost cost(shape, device, tile);
      estimate.add(cost, cost.segments(candidate), shape.kv_heads);
    }
    if (const double makespan = estimate.makespan(shape, device); makespan < best.makespan) {
      best = {.makespan = makespan, .target = candidate};
      chosen = finer;
    }
  }
  if (whole.largest <= kAlike * smallest) {
    const Split last = split_the_last(shape, device, tiles, order);
    if (last.makespan < best.makespan) {
      best = last;
      chosen = 1;
    }
  }
  if (best.target == std::numeric_limits<double>::infinity()) return 1;
  for (std::size_t i = best.whole; i < tiles.size(); ++i) {
    const auto index = static_cast<std::size_t>(order[i]);
    segments[index] = TileCost(shape, device, tiles[index]).segments(best.target);
  }
  return chosen;
}

std::int64_t most_items(const DeviceFacts& device, std::int64_t tiles_and_heads) {
  if (device.workgroups <= 1) return tiles_and_heads;
  // Every split leaves at most one segment shorter than the target; 1 % for its rounding.
  const std::int64_t full = std::int64_t{kFinest} * device.workgroups;
  return full + full / 100 + 1 + tiles_and_heads;
}

}  // namespace segue::attention
