// SPDX-License-Identifier: Apache-2.0
// Attention written to be obviously right: the double-precision reference behind the table's last
// row (kReference in kernel.h), and a plain f32 softmax that stands for "what a straightforward
// kernel would give" in `segue exactness`. Both read K and V through kv::View, one row at a time,
// and ignore how the plan splits the work.
#pragma once

#include "attention/kernel.h"

namespace segue::attention {

/// All that error bounds are derived from (core/tolerance.h, grade B), in double.
struct ReferenceResult {
  std::vector<double> out;           // [rows, q_heads, head_dim]
  std::vector<double> absolute_sum;  // [rows, q_heads, head_dim] sum of p * |v|
  std::vector<double> lse;           // [rows, q_heads]
  std::vector<double> score_sum;  // [rows, q_heads] largest scaled sum of |q_i k_i| over the keys
};

/// Executes plan->tiles; items, units and reductions are not looked at. Ignores the outputs in
/// `params`.
ReferenceResult reference_result(const Params& params, Stream& stream);

/// out[row, q_head, :] and lse as Params says, in double and rounded once at the end. Executes
/// plan->tiles; items, units and reductions are not looked at.
void reference_attention(const Params& params, Stream& stream);

/// The same with f32 accumulators: all scores of a row, their maximum, then one sum over keys in
/// ascending order.
void plain_attention(const Params& params, Stream& stream);

}  // namespace segue::attention
