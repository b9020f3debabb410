// SPDX-License-Identifier: Apache-2.0
// What attention is asked to do: the shape of a layer, the rows of a step, the device's facts.
// Plain values.
#pragma once

#include <cstdint>
#include <string>

#include "kv/view.h"
#include "segue/error.h"
#include "segue/types.h"

namespace segue::attention {

/// The shape of one KV group: layers that share a pool and therefore a plan.
struct Shape {
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // a row at position p sees keys p - window + 1 .. p; 0: all keys up to p
  KvType kv = KvType::kBF16;
  kv::Layout layout = kv::Layout::kTiled16;
  int page_size = 16;

  int group() const { return q_heads / kv_heads; }
  /// First key that a row at `position` sees, and how many it sees.
  std::int64_t first_key(std::int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  std::int64_t visible_keys(std::int64_t position) const {
    return position + 1 - first_key(position);
  }
  /// Bytes of K and V of one key, all kv heads.
  std::int64_t key_bytes() const {
    return std::int64_t{2} * kv_heads * head_dim * kv_type_bytes(kv);
  }
};

/// Refuses what no kernel can run: heads that do not divide, head_dim outside {64, 80, 96, 128,
/// 256, 512}, group outside 1..16, page size no multiple of 8 or above 2^20,
/// negative window.
Status validate(const Shape& shape);

/// Pages with nothing between their elements, in the shape's layout; without a pool.
kv::View dense_view(const Shape& shape);

/// The rows of one sequence in a step. Row i sits at position depth + i.
struct SequenceRows {
  std::int64_t depth = 0;  // keys in the cache before the step
  int rows = 0;            // 0: a padding sequence
  bool prefill = false;    // prompt tokens (prefill family) or generated tokens (decode family)

  std::int64_t kv_len() const { return depth + rows; }
};

using DeviceKind = Device;
/// Kernels written for one kind of GPU; gpu.h says which GPU has which.
enum class GpuFamily : std::uint8_t { kNone, kSm80, kSm90 };

/// Everything planning may know about a device; read once, never queried while planning.
struct DeviceFacts {
  DeviceKind kind = DeviceKind::kCpu;
  GpuFamily family = GpuFamily::kNone;  // of the kernels that these facts are for
  std::string name;
  int workgroups = 1;       // that run at once: threads on a CPU, resident blocks on a GPU
  int residents = 1;        // of them that share one multiprocessor's bandwidth
  int multiprocessors = 1;  // threads on a CPU; `pr47520` uses it
  int max_tile_rows = 64;   // rows x group of one row tile (the M side)
  int min_unit = 64;        // unit rule: keys of the smallest unit, a multiple of unit_granule
  int unit_granule = 16;    // unit rule: see attention/unit.h
  int unit_steps = 4;
  int target_units = 32;  // unit rule: units of a row at any depth, for layers of many kv heads ...
  int window_units = 32;  // ... the same for layers with a window ...
  int target_items = 128;  // ... and (unit, kv head) pairs of a row, for layers of few
  int coarse_keys = 0;     // unit rule: rows that see no more keys than this have fewer units ...
  int coarse_items = 64;   // ... max(16, coarse_items / kv_heads); 0 keys: no such rows
  int prefill_unit = 0;    // smallest unit of prompt rows; 0: theirs are the generated rows' units
  int reading_rows =
      8;  // rows x group whose arithmetic takes as long as reading the keys from memory
  // Measured on AVX-512 with head_dim 256 in 2026-11: starting a work item costs 4 to 5 keys;
  // storing and merging a partial 3 to 8 keys of its row while partials fit the second-level cache,
  // 12 to 20 beyond.
  double item_keys = 5;
  double merge_keys = 12;
  bool uneven = false;      // workgroups differ in speed: segments of a lone tile shrink
  double imbalance = 0.04;  // part of a workgroup's time by which equal work may end apart
};

/// The facts of the CPU with a pool of `threads`. Units are coarser than a GPU's, whatever the kv
/// heads: 32 of at least 128 keys (docs/kernels/units.md says what finer ones cost).
DeviceFacts cpu_device(int threads);

}  // namespace segue::attention
