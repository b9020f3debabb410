// SPDX-License-Identifier: Apache-2.0
// Choosing experts: the best scores of a row and their weights. Plain code on one row; a hundred
// numbers are nothing beside one expert's matrices.
#pragma once

#include <cstdint>
#include <span>

namespace segue::ops {

/// The `chosen.size()` experts with the largest scores, in ascending order of expert; equal scores
/// go to the lower one. A weight is the softmax over the chosen scores (that over all scores,
/// renormalised, is the same) times `scale` of the expert. NaN counts as the lowest score.
void choose_experts(std::span<const float> scores /*[experts]*/,
                    std::span<const float> scale /*[experts]*/,
                    std::span<std::int32_t> chosen /*[used], used <= experts*/,
                    std::span<float> weights /*[used]*/);

}  // namespace segue::ops
