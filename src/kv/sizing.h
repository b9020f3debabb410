// SPDX-License-Identifier: Apache-2.0
// How many pages and bytes a KV cache needs, worked out before anything is allocated: pools are
// sized at start, and what does not fit is refused with the numbers. Pure arithmetic,
// overflow-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "device/device.h"
#include "kv/view.h"
#include "segue/error.h"

namespace segue::kv {

/// Tokens of a page unless the caller chooses: one smallest attention unit, 64 KiB of K and V at
/// head_dim 256 in bf16.
inline constexpr int kDefaultPageSize = 64;

/// One pool: all layers that share (kv heads, head dim, type, window, layout). A page id is valid
/// for all its layers.
struct PoolSpec {
  std::string name;  // for messages and reports: "global", "sliding"
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // a row at position p sees keys p - window + 1 .. p; 0: all keys
  KvType type = KvType::kBF16;
  Layout layout = Layout::kTiled16;
  int page_size = kDefaultPageSize;        // tokens, a multiple of 8
  const device::Stream* stream = nullptr;  // of the GPU whose memory it is; null: host memory
  int pages = 0;                           // filled by size_pools() or by the caller
};

/// What the pools must hold at once.
struct Demand {
  int sequences = 1;
  std::int64_t tokens = 0;  // largest length of a sequence, generated tokens and drafts included
  int max_rows = 1;  // largest block of rows in flight per sequence: the prefill chunk or 1 + k
  int drafts = 0;    // of `tokens`, those that are no part of the context; messages leave them out
};

/// Refuses what no pool can have: counts out of range, a page size or head dim that is no multiple
/// of 8.
Status validate(const PoolSpec& spec);

/// "640 bytes", "96.0 MiB", "20.0 GiB": sizes in messages.
std::string bytes_text(std::int64_t bytes);

/// Bytes of one page in one layer, K and V of all kv heads; in all layers of the pool; of all
/// pages. Saturates instead of overflowing.
std::int64_t page_bytes_per_layer(const PoolSpec& spec);
std::int64_t page_bytes(const PoolSpec& spec);
std::int64_t pool_bytes(const PoolSpec& spec);

/// Largest number of pages that one sequence holds in this pool. For a windowed pool: the window,
/// the block in flight and one page, because neither end is aligned.
std::int64_t pages_per_sequence(const PoolSpec& spec, std::int64_t tokens, int max_rows);

/// Fills `pages` of every spec for `demand` and returns the specs. kNoMemory when all pools
/// together exceed `budget_bytes`; the message has the need per pool, the budget and the longest
/// context that would fit, `drafts` beside it.
Result<std::vector<PoolSpec>> size_pools(
    std::vector<PoolSpec> specs, const Demand& demand,
    std::int64_t budget_bytes = std::numeric_limits<std::int64_t>::max());

}  // namespace segue::kv
