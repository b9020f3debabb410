// SPDX-License-Identifier: Apache-2.0
// How many segments each row tile gets under `segue`: from the work of the whole step and the
// workgroups that the device holds, never from thresholds on rows or batch. Affects speed only,
// never a bit of any result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/plan.h"
#include "attention/shape.h"

namespace segue::attention {

/// "Segmented" of the modelled policies: this many segments, whatever there is to do.
inline constexpr int kModelSegments = 16;

/// Fills segments[tile], per kv head, each between 1 and the tile's units; returns how many a
/// workgroup is meant to take one after the other (1 without a split).
///
/// The cost of a unit is unit * max(reading_rows, rows * group): its reading or its arithmetic, in
/// rows times keys. Candidates are "no split" and "split what exceeds total /
/// (workgroups * c)" for c = 1, 2, 3, 4, and the same of those tiles alone that are issued when
/// whole rounds of workgroups are full; each is charged its stored partials and its items' starts,
/// and the candidate with the smallest estimated makespan wins, the coarser one on a tie. `order`:
/// that in which the tiles are issued, the dearest first.
int choose_segments(const Shape& shape, const DeviceFacts& device, std::span<const RowTile> tiles,
                    std::span<const std::int32_t> order, std::vector<std::int32_t>& segments);

/// The largest number of items, all kv heads counted, that choose_segments() makes of
/// `tiles_and_heads` (row tile, kv head) pairs.
std::int64_t most_items(const DeviceFacts& device, std::int64_t tiles_and_heads);

}  // namespace segue::attention
