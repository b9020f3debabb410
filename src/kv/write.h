// SPDX-License-Identifier: Apache-2.0
// Writing K and V rows into a pool, and reading single elements back for tests and references. The
// only code that converts f32 to the pool's type; layouts are the view's business.
#pragma once

#include <cstdint>

#include "kv/view.h"

namespace segue::kv {

/// f32 rows of K and V. `k` and `v` are [rows, kv_heads, head_dim]; the strides are floats from a
/// row to the next, so that rows can be written straight out of a fused projection.
struct Rows {
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t k_stride = 0;
  std::int64_t v_stride = 0;
};

/// Writes row i to position `position + i`, i in [0, count), rounding to nearest even (f16 overflow
/// becomes infinity). The table must cover the positions with pages of the pool (CHECK). Touches no
/// byte of other positions, so threads may write different rows at the same time.
void write_rows(const View& view, const PageTable& table, std::int64_t position, std::int64_t count,
                const Rows& rows);

/// One element. For tests and reference code.
float read_k(const View& view, const PageTable& table, std::int64_t position, int kv_head, int dim);
float read_v(const View& view, const PageTable& table, std::int64_t position, int kv_head, int dim);

}  // namespace segue::kv
