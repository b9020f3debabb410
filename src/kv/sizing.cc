// SPDX-License-Identifier: Apache-2.0
// Pool arithmetic. Sums and products saturate at the largest int64, which exceeds every budget.
#include "kv/sizing.h"

#include <algorithm>

#include <fmt/format.h>

namespace segue::kv {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMax : product;
}

std::int64_t plus(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMax : sum;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

Status require(bool holds, const PoolSpec& spec, std::string_view field, std::int64_t found,
               std::string_view allowed) {
  if (holds) return {};
  return Error{ErrorCode::kUsage, fmt::format("KV pool '{}': {} is {}, allowed is {}", spec.name,
                                              field, found, allowed)};
}

std::int64_t pages_for(const PoolSpec& spec, const Demand& demand, std::int64_t tokens) {
  return times(pages_per_sequence(spec, tokens, demand.max_rows), demand.sequences);
}

std::int64_t bytes_for(const std::vector<PoolSpec>& specs, const Demand& demand,
                       std::int64_t tokens) {
  std::int64_t total = 0;
  for (const PoolSpec& spec : specs)
    total = plus(total, times(pages_for(spec, demand, tokens), page_bytes(spec)));
  return total;
}

/// The largest length in [0, demand.tokens] whose pools fit into the budget; need never falls as
/// length grows.
std::int64_t longest_fit(const std::vector<PoolSpec>& specs, const Demand& demand,
                         std::int64_t budget_bytes) {
  std::int64_t fits = 0;
  std::int64_t too_long = demand.tokens;
  while (fits + 1 < too_long) {
    const std::int64_t middle = fits + (too_long - fits) / 2;
    (bytes_for(specs, demand, middle) <= budget_bytes ? fits : too_long) = middle;
  }
  return fits;
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 10 * 1024) return fmt::format("{} bytes", bytes);
  const double mib = static_cast<double>(bytes) / (1024.0 * 1024.0);
  return mib < 10240.0 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024.0);
}

Status validate(const PoolSpec& spec) {
  const struct {
    std::string_view field;
    std::int64_t value;
    std::int64_t lowest;
    std::int64_t highest;
    std::int64_t multiple;
    std::string_view allowed;
  } rules[] = {
      {"layers", spec.layers, 1, 4096, 1, "1 to 4096"},
      {"kv heads", spec.kv_heads, 1, 4096, 1, "1 to 4096"},
      {"head dim", spec.head_dim, 8, 4096, 8, "a multiple of 8 from 8 to 4096"},
      {"window", spec.window, 0, std::numeric_limits<int>::max(), 1, "0 (all keys) or more"},
      {"page size", spec.page_size, 8, 65536, 8, "a multiple of 8 from 8 to 65536"},
      {"pages", spec.pages, 0, std::numeric_limits<int>::max(), 1, "0 or more"},
  };
  for (const auto& rule : rules) {
    const bool holds =
        rule.value >= rule.lowest && rule.value <= rule.highest && rule.value % rule.multiple == 0;
    if (Status status = require(holds, spec, rule.field, rule.value, rule.allowed); !status)
      return status;
  }
  if (spec.layout == Layout::kSwizzled8) {
    if (kv_type_bytes(spec.type) != 2) {
      return Error{ErrorCode::kUsage,
                   fmt::format("KV pool '{}': layout {} takes f16 and bf16, not {}", spec.name,
                               layout_name(spec.layout), kv_type_name(spec.type))};
    }
    return require(spec.head_dim % 64 == 0, spec, "head dim of layout swizzled8", spec.head_dim,
                   "a multiple of 64");
  }
  return {};
}

std::int64_t page_bytes_per_layer(const PoolSpec& spec) {
  const std::int64_t row_bytes = std::int64_t{spec.head_dim} * kv_type_bytes(spec.type);
  const std::int64_t k_tokens = spec.layout == Layout::kTiled16
                                    ? ceil_div(spec.page_size, kTokenTile) * kTokenTile
                                    : std::int64_t{spec.page_size};
  return (k_tokens + spec.page_size) * row_bytes * spec.kv_heads;
}

std::int64_t page_bytes(const PoolSpec& spec) {
  return times(page_bytes_per_layer(spec), spec.layers);
}

std::int64_t pool_bytes(const PoolSpec& spec) { return times(page_bytes(spec), spec.pages); }

std::int64_t pages_per_sequence(const PoolSpec& spec, std::int64_t tokens, int max_rows) {
  const std::int64_t all = ceil_div(tokens, spec.page_size);
  if (spec.window == 0) return all;
  return std::min(all, ceil_div(std::int64_t{spec.window} + max_rows, spec.page_size) + 1);
}

Result<std::vector<PoolSpec>> size_pools(std::vector<PoolSpec> specs, const Demand& demand,
                                         std::int64_t budget_bytes) {
  for (const PoolSpec& spec : specs) {
    if (Status status = validate(spec); !status) return status.error();
  }
  if (demand.sequences < 1 || demand.tokens < 1 || demand.max_rows < 1) {
    return Error{
        ErrorCode::kUsage,
        fmt::format(
            "a KV cache for {} sequences of {} tokens in blocks of {} rows: all must be at least 1",
            demand.sequences, demand.tokens, demand.max_rows)};
  }
  const std::int64_t need = bytes_for(specs, demand, demand.tokens);
  std::string per_pool;
  bool too_many_pages = false;
  for (PoolSpec& spec : specs) {
    const std::int64_t pages = pages_for(spec, demand, demand.tokens);
    too_many_pages |= pages > std::numeric_limits<std::int32_t>::max();
    per_pool += fmt::format(
        "{}'{}' {} ({} pages of {} tokens, {} layers)", per_pool.empty() ? "" : ", ", spec.name,
        bytes_text(times(pages, page_bytes(spec))), pages, spec.page_size, spec.layers);
    spec.pages =
        static_cast<int>(std::min<std::int64_t>(pages, std::numeric_limits<std::int32_t>::max()));
  }
  if (need > budget_bytes || too_many_pages) {
    const std::int64_t fit = longest_fit(specs, demand, budget_bytes) - demand.drafts;
    return Error{ErrorCode::kNoMemory,
                 fmt::format("the KV cache for {} sequence(s) of {} tokens needs {}: {}; the "
                             "budget is {}, enough for {} tokens per sequence",
                             demand.sequences, demand.tokens - demand.drafts, bytes_text(need),
                             per_pool, bytes_text(budget_bytes), std::max<std::int64_t>(fit, 0))};
  }
  return specs;
}

}  // namespace segue::kv
