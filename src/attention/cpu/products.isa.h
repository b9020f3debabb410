// SPDX-License-Identifier: Apache-2.0
// The two matrix products of attention as register tiles: scores = q K and o += p V. Every score is
// one chain of multiply-adds over the dims in ascending order, every output element one chain over
// its row's visible keys in ascending order; how many rows and keys share a register tile therefore
// changes no bit.
#pragma once

#include <cstdint>

#include "attention/cpu/level.h"
#include "attention/cpu/vec.isa.h"

namespace segue::attention::ISA {
namespace {

/// How a KV type is read, 32 elements at a time as two Vecs. In bf16 the first has the elements
/// with an even index: one shift and one mask widen what would take two shuffles and two shifts in
/// natural order.
struct F32 {
  using Element = float;
  static constexpr bool kSplitPairs = false;
  static Vec first(const float* p) { return load(p); }
  static Vec second(const float* p) { return load(p + 16); }
  static Vec sixteen(const float* p) { return load(p); }
};
struct F16 {
  using Element = std::uint16_t;
  static constexpr bool kSplitPairs = true;  // a tile keeps no two dims of a key together
  static Vec first(const Element* p) { return load_f16(p); }
  static Vec second(const Element* p) { return load_f16(p + 16); }
  static Vec sixteen(const Element* p) { return load_f16(p); }
};
struct Bf16 {
  using Element = std::uint16_t;
  static constexpr bool kSplitPairs = false;
  static Vec first(const Element* p) { return load_bf16_even(p); }
  static Vec second(const Element* p) { return load_bf16_odd(p); }
  static Vec sixteen(const Element* p) { return load_bf16(p); }
};

constexpr int smaller(int a, int b) { return a < b ? a : b; }

// A register tile of scores: R rows times T K tiles of 16 keys.
constexpr int kScoreRows = smaller(12, kAccumulators);
constexpr int score_tiles(int rows) { return smaller(4, kAccumulators / rows); }
// A register tile of the output: R rows times P pairs of Vecs, 32 dims each.
constexpr int kOutputRows = smaller(12, kAccumulators / 2 > 0 ? kAccumulators / 2 : 1);
constexpr int output_pairs(int rows) { return smaller(2, kAccumulators / (2 * rows)); }

// Pieces of memory that are fetched side by side, and the largest of them. A page of memory is what
// the hardware's streams do not cross: each takes a few misses before it runs ahead, which four at
// a time hide behind each other.
constexpr int kStreams = 4;
constexpr int kPieceBytes = 4096;

/// Memory that will be read soon, brought into the second-level cache while something else is
/// computed: hardware prefetchers alone leave a core waiting, since K and V change places every
/// block. One line of each of kStreams pieces at a time.
struct Fetch {
  const std::byte* const* piece = nullptr;  // a multiple of kStreams of them
  const std::byte* const* last = nullptr;
  int offset = 0;
  int bytes = 0;   // of a piece
  int rate = 0;    // lines of kStreams pieces per 256 calls, evenly spread: a core can wait
  int credit = 0;  // for 16 lines at a time only
};

inline void fetch(Fetch& f) {
  f.credit += f.rate;
  if (f.credit < 256) return;
  do {
    f.credit -= 256;
    for (int i = 0; i < kStreams; ++i) prefetch(f.piece[i] + f.offset);
    f.offset += 64;
    if (f.offset < f.bytes) continue;
    f.offset = 0;
    f.piece += kStreams;
    if (f.piece == f.last) f.rate = f.credit = 0;
  } while (f.credit >= 256);
}

/// The tiles of K that the scores of a block need, ascending.
struct TileList {
  const std::byte* tile[cpu::kMaxTiles];
  int offset[cpu::kMaxTiles];  // of the tile's first key from the start of the block, -8 .. kBlock
                               // - 1
  int count;
};

constexpr int kNearDims = 16;  // of K on the way from the second-level cache to the first

/// The lines of `count` elements at p.
template <class Element, int count>
inline void near(const Element* p) {
  for (int i = 0; i < count; i += 64 / static_cast<int>(sizeof(Element))) prefetch_near(p + i);
}

/// scores[r][tile's keys] = q[r] . K for R rows and T tiles. Lanes that are no visible key get
/// garbage, and a tile that is cut by its page's end writes 8 lanes too many: the next tile,
/// written later, has them right.
///
/// Per dim: T loads of K (2 T more operations to widen a pair of dims), R broadcasts, R T
/// multiply-adds. Bound by the multiply-adds from 4 rows on, below by the reading of K.
template <class Kv, int R, int T>
[[gnu::noinline]] void score_tile(const float* q, const TileList& list, int begin, int head_dim,
                                  Fetch& ahead, float* scores) {
  using Element = typename Kv::Element;
  const Element* k[T];
  for (int t = 0; t < T; ++t) k[t] = reinterpret_cast<const Element*>(list.tile[begin + t]);
  Vec acc[R][T];
#pragma GCC unroll 24
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) acc[r][t] = zero();
  }
  Fetch f = ahead;
  for (int d = 0; d < head_dim; d += 2) {
    fetch(f);
    for (int t = 0; t < T; ++t) near<Element, 32>(k[t] + (d + kNearDims) * 16);
    Vec x[T];
    for (int t = 0; t < T; ++t) x[t] = Kv::first(k[t] + d * 16);
    for (int r = 0; r < R; ++r) {
      const Vec a = set(q[r * cpu::kRowStride + d]);
      for (int t = 0; t < T; ++t) acc[r][t] = fma(a, x[t], acc[r][t]);
    }
    for (int t = 0; t < T; ++t) x[t] = Kv::second(k[t] + d * 16);
    for (int r = 0; r < R; ++r) {
      const Vec a = set(q[r * cpu::kRowStride + d + 1]);
      for (int t = 0; t < T; ++t) acc[r][t] = fma(a, x[t], acc[r][t]);
    }
  }
  ahead = f;
#pragma GCC unroll 24
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t)
      store(scores + r * cpu::kScoreStride + list.offset[begin + t], acc[r][t]);
  }
}

/// `rows` <= R rows against tiles [begin, end).
template <class Kv, int R = kScoreRows>
void score_rows(int rows, const float* q, const TileList& list, int begin, int end, int head_dim,
                Fetch& ahead, float* scores) {
  if constexpr (R > 1) {
    if (rows < R) return score_rows<Kv, R - 1>(rows, q, list, begin, end, head_dim, ahead, scores);
  }
  constexpr int kTiles = score_tiles(R);
  for (; begin + kTiles <= end; begin += kTiles)
    score_tile<Kv, R, kTiles>(q, list, begin, head_dim, ahead, scores);
  if constexpr (kTiles > 2) {
    if (begin + 2 <= end) {
      score_tile<Kv, R, 2>(q, list, begin, head_dim, ahead, scores);
      begin += 2;
    }
  }
  if (begin < end) score_tile<Kv, R, 1>(q, list, begin, head_dim, ahead, scores);
}

constexpr int kNearKeys = 16;  // the same for rows of V

/// o[r][dims] += sum over keys first .. last of p[r][key] V[key][dims], for R rows and 32 P dims
/// from `dim` on (P = 0: 16 dims); starts from zero if `fresh`. `v` has the rows of V by key.
///
/// Per key: 2 P Vecs of V, R broadcasts, 2 P R multiply-adds.
template <class Kv, int R, int P>
[[gnu::noinline]] void output_tile(const float* p, const std::byte* const* v, int first, int last,
                                   int dim, bool fresh, Fetch& ahead, float* const* o) {
  using Element = typename Kv::Element;
  constexpr int kVecs = P == 0 ? 1 : 2 * P;
  Vec acc[R][kVecs];
  if (fresh) {
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kVecs; ++i) acc[r][i] = zero();
    }
  } else {
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kVecs; ++i) acc[r][i] = load(o[r] + dim + 16 * i);
    }
  }
  Fetch f = ahead;
  for (int key = first; key < last; ++key) {
    fetch(f);
    const auto* row = reinterpret_cast<const Element*>(v[key]) + dim;
    near<Element, 16 * kVecs>(reinterpret_cast<const Element*>(v[key + kNearKeys]) + dim);
    Vec x[kVecs];
    if constexpr (P == 0) {
      x[0] = Kv::sixteen(row);
    } else {
      for (int i = 0; i < P; ++i) {
        x[2 * i] = Kv::first(row + 32 * i);
        x[2 * i + 1] = Kv::second(row + 32 * i);
      }
    }
    for (int r = 0; r < R; ++r) {
      const Vec a = set(p[r * cpu::kScoreStride + key]);
      for (int i = 0; i < kVecs; ++i) acc[r][i] = fma(a, x[i], acc[r][i]);
    }
  }
  ahead = f;
#pragma GCC unroll 24
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < kVecs; ++i) store(o[r] + dim + 16 * i, acc[r][i]);
  }
}

/// Dims [dim, dim_end) of `rows` <= R rows over keys first .. last, which all these rows see.
template <class Kv, int R = kOutputRows>
void output_rows(int rows, const float* p, const std::byte* const* v, int first, int last, int dim,
                 int dim_end, bool fresh, Fetch& ahead, float* const* o) {
  if constexpr (R > 1) {
    if (rows < R)
      return output_rows<Kv, R - 1>(rows, p, v, first, last, dim, dim_end, fresh, ahead, o);
  }
  constexpr int kPairs = output_pairs(R);
  for (; dim + 32 * kPairs <= dim_end; dim += 32 * kPairs) {
    output_tile<Kv, R, kPairs>(p, v, first, last, dim, fresh, ahead, o);
  }
  if constexpr (kPairs > 1) {
    for (; dim + 32 <= dim_end; dim += 32)
      output_tile<Kv, R, 1>(p, v, first, last, dim, fresh, ahead, o);
  }
  if (dim < dim_end) output_tile<Kv, R, 0>(p, v, first, last, dim, fresh, ahead, o);
}

}  // namespace
}  // namespace segue::attention::ISA
