// SPDX-License-Identifier: Apache-2.0
// What drafting on a GPU needs besides rows.h: the tokens of a chain of drafts never leave it. A
// draft picks the likeliest token, of all or of those of the best centroids, and the next one takes
// that token's embedding. All pointers are device memory.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/cuda/matrix.h"

namespace segue::ops::cuda {

/// A token as largest() picks it: the logit above, the complement of the id below, so that the
/// larger number is the larger logit, then the lower id. 0, where no logit was a number above
/// -infinity, is token 0.
using Pick = std::uint64_t;

constexpr Pick pick_of(std::int32_t token) { return 0xffffffffu - static_cast<Pick>(token); }
constexpr std::int32_t token_of(Pick pick) {
  return pick == 0 ? 0 : static_cast<std::int32_t>(0xffffffffu - (pick & 0xffffffffu));
}

/// out = [embedding of the picked token, scaled | hidden]: what an assistant projects first.
struct DraftInput {
  const Matrix* table = nullptr;  // [vocab, hidden]
  const Pick* picks = nullptr;    // [rows]
  float scale = 1.0f;
  const float* hidden = nullptr;  // [rows, hidden]
  std::uint16_t* out = nullptr;   // [rows, 2 * hidden] bf16
  std::int64_t rows = 0;
};
void draft_input(const DraftInput& args, const device::Stream& stream);

/// logits[row][id] = -infinity for these ids.
struct Suppress {
  float* logits = nullptr;            // [rows, vocab]
  const std::int32_t* ids = nullptr;  // [count] in [0, vocab)
  int count = 0;
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
};
void suppress(const Suppress& args, const device::Stream& stream);

/// The largest logit of every row; NaN counts as -infinity.
struct Largest {
  const float* logits = nullptr;  // [rows, vocab]
  Pick* picks = nullptr;          // [rows], 0 before
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
};
void largest(const Largest& args, const device::Stream& stream);

/// A head that looks at the tokens of the best centroids only: logits of those are sums over the
/// head's rows, those of all others -infinity. Scores have one order: larger first, then the lower
/// index, NaN last.
struct CentroidHead {
  const Matrix* head = nullptr;            // [vocab, hidden], kBf16
  const std::uint16_t* x = nullptr;        // [rows, hidden] bf16
  const float* scores = nullptr;           // [rows, centroids]
  const std::int32_t* ordering = nullptr;  // [centroids, vocab / centroids] every id once
  std::int32_t* chosen = nullptr;          // [rows, top]
  float* logits = nullptr;                 // [rows, vocab]
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  int centroids = 0;
  int top = 0;
};
void centroid_head(const CentroidHead& args, const device::Stream& stream);

}  // namespace segue::ops::cuda
