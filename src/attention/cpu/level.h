// SPDX-License-Identifier: Apache-2.0
// What kernels.cc hands to the code of one instruction level: plain structs of pointers and
// numbers. This header is included by *.isa.cc files, so it has no member functions and no
// containers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "segue/types.h"

namespace segue::attention::cpu {

// Keys that are scored, then weighted, at a time; blocks start where their unit starts. Part of the
// bits class: the output is rescaled at block borders.
inline constexpr int kBlock = 256;
// Rows x group that share one reading of K and V; more rows are further passes.
inline constexpr int kMaxRows = 64;
inline constexpr int kMaxGroup = 16;
inline constexpr int kMaxHeadDim = 512;
// K tiles that reach into one block: 33 at the smallest page, 8 tokens.
inline constexpr int kMaxTiles = 40;
// K tiles of a natural layout that are packed at a time.
inline constexpr int kPackedTiles = 4;

// Floats from a row to the next. Head dims are powers of two or nearly; the odd lines keep rows in
// different cache sets.
inline constexpr int kRowStride = kMaxHeadDim + 16;
// A tile of a page that does not start on a multiple of 16 begins 8 keys before the block or ends 8
// after it.
inline constexpr int kScoreStride = kBlock + 16;

/// One layer's K and V of one kv head, and the map of the sequence.
struct Keys {
  const std::byte* k;  // page p's tiles, or rows in natural layouts, start at k + p * page_stride
  const std::byte* v;  // page p's rows start at v + p * page_stride
  std::int64_t page_stride;
  std::int64_t token_stride;  // of V, and of K in natural layouts
  const std::int32_t* table;  // [table_count]
  std::int32_t table_count;
  std::int32_t pages;  // of the pool
  std::int32_t page_size;
  bool natural;  // K is not in tiles
};

/// Rows of one sequence over a run of units of one kv head.
struct Job {
  Keys keys;
  const float* q;  // [rows, ...]: row r, head g at q + r * row_stride + g * head_dim
  std::int64_t row_stride;
  int rows;  // rows * group <= kMaxRows
  int group;
  int head_dim;
  int window;             // 0: none
  std::int64_t position;  // of the first row
  std::int64_t unit;      // keys
  std::int64_t unit_first;
  std::int64_t unit_last;
  float scale;
  float softcap;

  // Result: entry e = r * group + g of stored run s is at index s * entry_stride + e.
  bool fold;  // one run, units merged left to right; else one run per unit
  std::int64_t entry_stride;
  float* m;              // maximum
  float* l;              // sum
  float* o;              // unnormalised output; dims in the kernel's own order until finish()
  std::int64_t o_entry;  // floats from a head's output to the next: head_dim
  std::int64_t o_row;    // floats from a row's first output to the next row's
};

// Largest errors of the softmax's own functions, in units of the last place.
inline constexpr double kExpUlps = 2.0;
inline constexpr double kTanhUlps = 3.0;

/// Memory of one worker for one job, not initialised; in ThreadPool::scratch, being too large for a
/// caller's stack.
struct Scratch {
  alignas(64) float q[kMaxRows * kRowStride];  // scaled
  alignas(64) float o[kMaxRows * kRowStride];  // a unit's output before it is merged
  alignas(64) float scores[16 + kMaxRows * kScoreStride];
  alignas(64) float sums[kMaxRows * 16];  // the sum of exponentials, by position mod 16
  alignas(64) float m[kMaxRows];
  alignas(64) float top[kMaxRows];        // largest score of the block
  alignas(64) float reference[kMaxRows];  // what the exponentials are taken against: m, or 0 where
                                          // that is -inf
  alignas(64) float shrink[kMaxRows];     // factor of what was summed up before the block
  float l[kMaxRows];
  int first[kMaxRows];  // of every row's visible keys in the block, and one past the last
  int last[kMaxRows];
  bool started[kMaxRows];  // has the row an output in this unit yet?
  alignas(64) std::byte packed[kPackedTiles * 16 * kMaxHeadDim * 4];  // natural layouts: tiles of K
};

/// The accumulator of one row and head, wherever it lies.
struct Partial {
  float* m;
  float* l;
  float* o;  // [head_dim]
};

/// The code of one instruction level.
struct Level {
  void (*run[3])(const Job& job, Scratch& scratch);  // by KvType
  /// acc = merge(acc, x).
  void (*merge)(const Partial& acc, const Partial& x, int head_dim);
  /// Adds the sink if there is one, divides, puts the dims in their natural order. Returns the
  /// log-sum-exp.
  float (*finish)(const Partial& acc, int head_dim, const float* sink, KvType type);
  /// For tests: the functions of the softmax, on [count] values, count a multiple of 16.
  void (*exp)(const float* x, float* y, int count);
  void (*tanh)(const float* x, float* y, int count);
};

}  // namespace segue::attention::cpu

namespace segue::attention {
namespace portable {
extern const cpu::Level kLevel;
}
namespace avx2 {
extern const cpu::Level kLevel;
}
namespace avx512 {
extern const cpu::Level kLevel;
}
namespace neon {
extern const cpu::Level kLevel;
}
}  // namespace segue::attention
