// SPDX-License-Identifier: Apache-2.0
// Cells: is `--spec auto` ever slower than no speculation, or than the best fixed k? Every cell is
// a depth, a batch and an acceptance profile; off, every fixed k and a controller that knows
// nothing take turns in slices of a few tokens. An oracle drafts the target's own tokens with the
// profile's probabilities. What a cell yields are two ratios with their 95 % bounds.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "lab/stats.h"
#include "segue/error.h"
#include "segue/types.h"
#include "speculate/oracle_drafter.h"

namespace segue::lab {

/// Acceptance as a function of draft position and context, for a cell whose first generated token
/// follows `depth` keys.
struct CellProfile {
  std::string name;
  std::function<speculate::AcceptanceProfile(std::int64_t depth)> at;
};

/// "0.46": that probability everywhere. "falling": 0.93 at depth 100 to 0.5 at 86,000, straight in
/// the logarithm. "alternating": 0.9 and 0.1, changing every 50 tokens. kUsage for anything else.
Result<CellProfile> parse_cell_profile(const std::string& text);

struct CellOptions {
  std::vector<std::int64_t> depths;
  std::vector<CellProfile> profiles;
  std::vector<std::int64_t> batches;
  std::vector<std::int64_t> fixed;  // k of the fixed alternatives
  int rounds = 2;                   // each with a controller that starts cold
  int tokens = 256;                 // per sequence, alternative and round
  Device device = Device::kCpu;
  KvType kv = KvType::kBF16;
  int threads = 0;  // 0: all CPUs of this process
  std::function<void(double fraction)> load_progress;
  std::function<void(double fraction)> progress;
  std::function<bool()> cancelled;  // asked between slices, and between tensors while loading
};

/// Tokens are those that k drafts of the profile yield on average, not those that a slice was lucky
/// to get: luck is no property of the choice of k. Times are without what other programs took.
/// {cells: [{depth, batch, profile, alternatives: [..], best_fixed, to_off, to_best}], device_name,
/// threads, interrupted} on the model at `path`. Interrupted: the cells are of the rounds that
/// finished. Refused before the model is loaded: a depth that does not fit its context (kUsage),
/// what does not run on the device.
Result<core::Json> run_cells(const std::string& path, CellOptions options);

/// The cells as a table for people.
std::string cells_table(const core::Json& document);

}  // namespace segue::lab
