// SPDX-License-Identifier: Apache-2.0
// One job: rows of one sequence over a run of units of one kv head. Per unit, from a fresh state:
// per block of keys the scores of all rows, their softmax weights, and the weighted sum of V;
// then the merge into the accumulator, or the unit's own partial.
//
// Bits: a score is a chain over dims, the maximum is exact in any order, the sum runs in 16 lanes
// by position in the unit, the output is a chain over the row's visible keys in ascending order,
// rescaled at block borders when the running maximum grew. All of these are functions of the row
// and of positions relative to the unit.
//
// Traffic: K and V once per job from memory, 2 key_bytes per key. Arithmetic: 4 rows * group *
// head_dim operations per key in multiply-adds, about 6 % more for the softmax and 2 / (rows *
// group) for widening 16-bit types. K of a natural layout is packed into tiles on its way, once for
// all rows of the job: pack.isa.h.
#pragma once

#include "attention/cpu/level.h"
#include "attention/cpu/merge.isa.h"
#include "attention/cpu/pack.isa.h"
#include "attention/cpu/products.isa.h"
#include "core/check.h"

namespace segue::attention::ISA {
namespace {

using cpu::Job;
using cpu::kBlock;
using cpu::Scratch;

constexpr int kStrip = 64;  // dims of V that go through all rows at a time
// Of a block's K or V: the tiles of the largest head_dim in f32, and what fills the last streams.
constexpr int kMaxPieces = cpu::kMaxTiles * (cpu::kMaxHeadDim * 16 * 4 / kPieceBytes) + kStreams;

/// Addresses at which pieces of memory of equal length start.
struct Pieces {
  int bytes;
  int count;
  const std::byte* piece[kMaxPieces];
};

/// Where the visible keys of one block lie.
struct Block {
  std::int64_t unit;
  std::int64_t begin;  // position of its first key
  int width;           // keys
  int first, last;     // keys that any row sees, relative to begin
  TileList tiles;
  const std::byte* k[kBlock];  // natural layouts: rows of K by key, the visible ones; the first and
                               // the last stand for those beside them in their tiles
  const std::byte*
      v[kBlock + kNearKeys];  // rows of V by key, the visible ones; then the last repeated
  Pieces k_pieces;
  Pieces v_pieces;
};

/// A page index is never followed outside the pool. Page tables are the callers' data, which may be
/// wrong; that they are long enough has been checked.
inline std::int64_t physical_page(const cpu::Keys& keys, std::int64_t logical) {
  DCHECK(logical >= 0 && logical < keys.table_count);
  if (logical < 0 || logical >= keys.table_count) return 0;
  const std::int32_t page = keys.table[logical];
  return page < 0 ? 0 : page >= keys.pages ? keys.pages - 1 : page;
}

inline std::int64_t at_least(std::int64_t a, std::int64_t b) { return a < b ? b : a; }
inline std::int64_t at_most(std::int64_t a, std::int64_t b) { return a > b ? b : a; }

/// First key that a row at `position` sees.
inline std::int64_t first_key(const Job& job, std::int64_t position) {
  return job.window > 0 ? at_least(position - job.window + 1, 0) : 0;
}

/// Moves `block` to the next block of the job of which any row sees a key, starting with the one at
/// `begin` in `unit`; false when there is none.
inline bool next_block(const Job& job, std::int64_t unit, std::int64_t begin, Block& block) {
  const std::int64_t low = first_key(job, job.position);
  const std::int64_t high = job.position + job.rows;
  for (; unit < job.unit_last; ++unit) {
    const std::int64_t unit_end = (unit + 1) * job.unit;
    if (begin < unit * job.unit) begin = unit * job.unit;
    for (; begin < unit_end; begin += kBlock) {
      const std::int64_t width = at_most(kBlock, unit_end - begin);
      if (begin + width <= low || begin >= high) continue;
      block.unit = unit;
      block.begin = begin;
      block.width = static_cast<int>(width);
      block.first = static_cast<int>(at_least(low - begin, 0));
      block.last = static_cast<int>(at_most(high - begin, width));
      return true;
    }
  }
  return false;
}

/// No pieces yet, of a length that divides `run_bytes`, or nearly.
inline void start_pieces(Pieces& pieces, std::int64_t run_bytes) {
  const std::int64_t count = (run_bytes + kPieceBytes - 1) / kPieceBytes;
  pieces.bytes = static_cast<int>((run_bytes + count * 64 - 1) / (count * 64) * 64);
  pieces.count = 0;
}

/// The last piece may reach past the end: a fetch faults nowhere.
inline void add_pieces(Pieces& pieces, const std::byte* begin, const std::byte* end) {
  for (; begin < end; begin += pieces.bytes) pieces.piece[pieces.count++] = begin;
}

inline void fill_streams(Pieces& pieces) {
  for (; pieces.count % kStreams != 0; ++pieces.count) {
    pieces.piece[pieces.count] = pieces.piece[pieces.count - 1];
  }
}

/// Rows of one page that lie `stride` bytes apart, by key; what is between them is not fetched.
inline void add_rows(const std::byte* p, int count, std::int64_t stride, std::int64_t row_bytes,
                     const std::byte** rows, Pieces& pieces) {
  for (int i = 0; i < count; ++i) rows[i] = p + i * stride;
  if (stride == row_bytes) return add_pieces(pieces, p, p + count * stride);
  for (int i = 0; i < count; ++i) add_pieces(pieces, rows[i], rows[i] + row_bytes);
}

/// The tiles of a natural layout follow the block, not the pages; score_block packs them.
inline void list_tiles_to_pack(Block& block) {
  const int begin = block.first / 16 * 16;
  for (int key = begin; key < block.first; ++key) block.k[key] = block.k[block.first];
  for (int key = block.last; key % 16 != 0; ++key) block.k[key] = block.k[block.last - 1];
  for (int key = begin; key < block.last; key += 16) block.tiles.offset[block.tiles.count++] = key;
}

template <class Kv>
void find_keys(const Job& job, Block& block) {
  const cpu::Keys& keys = job.keys;
  const bool natural = keys.natural;
  const std::int64_t row_bytes =
      std::int64_t{job.head_dim} * static_cast<std::int64_t>(sizeof(typename Kv::Element));
  const std::int64_t tile_bytes = 16 * row_bytes;
  const std::int64_t run_bytes =
      keys.token_stride == row_bytes ? keys.page_size * row_bytes : row_bytes;
  const std::int64_t first = block.begin + block.first;
  const std::int64_t last = block.begin + block.last;
  TileList& tiles = block.tiles;
  tiles.count = 0;
  start_pieces(block.k_pieces, natural ? run_bytes : (keys.page_size + 15) / 16 * tile_bytes);
  start_pieces(block.v_pieces, run_bytes);
  for (std::int64_t logical = first / keys.page_size; logical * keys.page_size < last; ++logical) {
    const std::int64_t page_begin = logical * keys.page_size;
    const std::int64_t page_bytes = physical_page(keys, logical) * keys.page_stride;
    // Token range of this page that is needed.
    const int from = static_cast<int>(first > page_begin ? first - page_begin : 0);
    const int to =
        static_cast<int>(last - page_begin < keys.page_size ? last - page_begin : keys.page_size);
    const std::int64_t key = page_begin + from - block.begin;
    const std::int64_t row = page_bytes + from * keys.token_stride;
    add_rows(keys.v + row, to - from, keys.token_stride, row_bytes, block.v + key, block.v_pieces);
    if (natural) {
      add_rows(keys.k + row, to - from, keys.token_stride, row_bytes, block.k + key,
               block.k_pieces);
      continue;
    }
    const std::byte* k = keys.k + page_bytes + from / 16 * tile_bytes;
    const std::byte* const k_begin = k;
    for (int tile = from / 16; tile * 16 < to; ++tile, k += tile_bytes) {
      tiles.tile[tiles.count] = k;
      tiles.offset[tiles.count] = static_cast<int>(page_begin + tile * 16 - block.begin);
      ++tiles.count;
    }
    add_pieces(block.k_pieces, k_begin, k);
  }
  if (natural) list_tiles_to_pack(block);
  fill_streams(block.k_pieces);
  fill_streams(block.v_pieces);
  for (int i = 0; i < kNearKeys; ++i) block.v[block.last + i] = block.v[block.last - 1];
}

/// A fetch of all pieces that takes at most `calls` calls.
inline Fetch fetch_pieces(const Pieces& pieces, std::int64_t calls) {
  Fetch f;
  f.piece = pieces.piece;
  f.last = pieces.piece + pieces.count;
  f.bytes = pieces.bytes;
  const std::int64_t lines = std::int64_t{pieces.count / kStreams} * (pieces.bytes / 64);
  f.rate = static_cast<int>((lines * 256 + calls - 1) / calls);
  return f;
}

/// Fills scratch.first / last.
inline void find_visible(const Job& job, const Block& block, Scratch& scratch) {
  int entry = 0;
  for (int row = 0; row < job.rows; ++row) {
    const std::int64_t position = job.position + row;
    const std::int64_t first =
        at_most(at_least(first_key(job, position) - block.begin, 0), block.width);
    const std::int64_t last = at_least(at_most(position + 1 - block.begin, block.width), first);
    for (int g = 0; g < job.group; ++g, ++entry) {
      scratch.first[entry] = static_cast<int>(first);
      scratch.last[entry] = static_cast<int>(last);
    }
  }
}

/// The largest visible score of a row; caps scores, and makes those that the row does not see -inf
/// in the Vecs that hold visible ones.
inline float find_top(const Job& job, float* scores, int first, int last) {
  const Vec lowest = set(-__builtin_inff());
  Vec top = lowest;
  for (int key = first / 16 * 16; key < last; key += 16) {
    Vec x = load(scores + key);
    const bool cut = first > key || last < key + 16;
    if (job.softcap > 0.0f) x = mul(set(job.softcap), tanh(mul(x, set(1.0f / job.softcap))));
    if (cut) x = keep(x, first > key ? first - key : 0, smaller(last - key, 16), lowest);
    if (cut || job.softcap > 0.0f) store(scores + key, x);
    top = larger(x, top);  // NaN keeps top
  }
  return largest(top);
}

/// Turns the visible scores of all rows into weights, zero elsewhere in the Vecs that hold them,
/// and updates maxima, sums and outputs. In three passes over the rows, so that the latencies of
/// one row hide behind the others.
inline void weigh_block(const Job& job, Scratch& scratch, float* const* o) {
  const int entries = job.rows * job.group;
  const auto scores_of = [&](int entry) { return scratch.scores + 16 + entry * cpu::kScoreStride; };
  for (int entry = 0; entry < entries; ++entry) {
    scratch.top[entry] = find_top(job, scores_of(entry), scratch.first[entry], scratch.last[entry]);
  }
  for (int entry = 0; entry < entries;
       entry += 16) {  // lanes past the last entry compute something unused
    const Vec m_old = load(scratch.m + entry);
    const Vec m = larger(load(scratch.top + entry), m_old);
    const Vec reference = select_below(m, set(-3.4e38f), zero(), m);
    const Vec shrink = exp(sub(m_old, reference));
    const Vec unchanged = set(1.0f);  // also for a row without a sum yet
    store(scratch.shrink + entry,
          select_below(m_old, m, select_below(m_old, set(-3.4e38f), unchanged, shrink), unchanged));
    store(scratch.reference + entry, reference);
    store(scratch.m + entry, m);
  }
  for (int entry = 0; entry < entries; ++entry) {
    const int last = scratch.last[entry];
    float* scores = scores_of(entry);
    float* sums = scratch.sums + entry * 16;
    Vec total = load(sums);
    if (scratch.shrink[entry] != 1.0f) {
      const Vec shrink = set(scratch.shrink[entry]);
      total = mul(total, shrink);
      for (int d = 0; d < job.head_dim; d += 16)
        store(o[entry] + d, mul(load(o[entry] + d), shrink));
    }
    const Vec reference = set(scratch.reference[entry]);
    for (int key = scratch.first[entry] / 16 * 16; key < last; key += 16) {
      const Vec weights = exp(sub(load(scores + key), reference));
      store(scores + key, weights);
      total = add(total, weights);
    }
    store(sums, total);
  }
}

/// Entries [begin, end) in register tiles of equal size, at most `most`: f(entry, rows).
template <class F>
void each_tile(int count, int most, F f) {
  const int tiles = (count + most - 1) / most;
  for (int tile = 0; tile < tiles; ++tile) {
    const int begin = count * tile / tiles;
    f(begin, count * (tile + 1) / tiles - begin);
  }
}

/// Packs tiles [begin, end) of a block in a natural layout, side by side from `tile` on.
template <class Kv>
void pack_tiles(int head_dim, std::byte* tile, Block& block, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    pack_tile<Kv>(block.k + block.tiles.offset[i], head_dim, tile);
    block.tiles.tile[i] = tile;
    tile += std::int64_t{head_dim} * 16 * static_cast<std::int64_t>(sizeof(typename Kv::Element));
  }
}

/// Scores of all rows. Each register tile of rows takes the K tiles that its rows see. Those of a
/// natural layout are packed `group` at a time, as many as a register tile takes at once, and all
/// rows read them from the nearest cache.
template <class Kv>
void score_block(const Job& job, Scratch& scratch, Block& block, int group, Fetch& ahead) {
  const bool natural = job.keys.natural;
  const int step = natural ? group : block.tiles.count;
  for (int tile = 0; tile < block.tiles.count; tile += step) {
    const int tile_end = smaller(tile + step, block.tiles.count);
    if (natural) pack_tiles<Kv>(job.head_dim, scratch.packed, block, tile, tile_end);
    each_tile(job.rows * job.group, kScoreRows, [&](int entry, int rows) {
      int first = kBlock, last = 0;
      for (int r = 0; r < rows; ++r) {
        if (scratch.first[entry + r] == scratch.last[entry + r]) continue;
        first = smaller(first, scratch.first[entry + r]);
        if (scratch.last[entry + r] > last) last = scratch.last[entry + r];
      }
      int begin = tile, end = tile_end;
      while (begin < end && block.tiles.offset[begin] + 16 <= first) ++begin;
      while (begin < end && block.tiles.offset[end - 1] >= last) --end;
      score_rows<Kv>(rows, scratch.q + entry * cpu::kRowStride, block.tiles, begin, end,
                     job.head_dim, ahead, scratch.scores + 16 + entry * cpu::kScoreStride);
    });
  }
}

/// Zeroes dims [dim, dim_end) of rows without an output if others of them have one; true when none
/// has.
inline bool settle_fresh(const bool* fresh, int rows, int dim, int dim_end, float* const* o) {
  int count = 0;
  for (int r = 0; r < rows; ++r) count += fresh[r] ? 1 : 0;
  if (count == rows) return true;
  for (int r = 0; count > 0 && r < rows; ++r) {
    for (int d = dim; fresh[r] && d < dim_end; d += 16) store(o[r] + d, zero());
  }
  return false;
}

/// Dims [dim, dim_end) of the weighted sum of V for entries [entry, entry + rows): first what only
/// some of them see before the keys that all see, row by row, then those, then the rest.
template <class Kv>
void add_values(const Scratch& scratch, const Block& block, int entry, int rows, int dim,
                int dim_end, Fetch& ahead, float* const* o) {
  int all_first = 0, all_last = kBlock;
  for (int r = 0; r < rows; ++r) {
    if (scratch.first[entry + r] > all_first) all_first = scratch.first[entry + r];
    if (scratch.last[entry + r] < all_last) all_last = scratch.last[entry + r];
  }
  if (all_first > all_last) all_last = all_first;
  const float* weights = scratch.scores + 16 + entry * cpu::kScoreStride;
  bool fresh[kOutputRows];
  const auto one_row = [&](int r, int first, int last) {
    if (first >= last) return;
    output_rows<Kv>(1, weights + r * cpu::kScoreStride, block.v, first, last, dim, dim_end,
                    fresh[r], ahead, o + r);
    fresh[r] = false;
  };
  for (int r = 0; r < rows; ++r) {
    fresh[r] = !scratch.started[entry + r];
    one_row(r, scratch.first[entry + r], smaller(scratch.last[entry + r], all_first));
  }
  if (all_first < all_last) {
    const bool none = settle_fresh(fresh, rows, dim, dim_end, o);
    output_rows<Kv>(rows, weights, block.v, all_first, all_last, dim, dim_end, none, ahead, o);
    for (int r = 0; r < rows; ++r) fresh[r] = false;
  }
  for (int r = 0; r < rows; ++r) {
    one_row(r, scratch.first[entry + r] > all_last ? scratch.first[entry + r] : all_last,
            scratch.last[entry + r]);
  }
}

template <class Kv>
void reduce_block(const Job& job, Scratch& scratch, Block& block, const Block* next,
                  float* const* o) {
  const int entries = job.rows * job.group;
  find_visible(job, block, scratch);
  const int score_row_tiles = (entries + kScoreRows - 1) / kScoreRows;
  const int group = score_tiles((entries + score_row_tiles - 1) / score_row_tiles);
  const int groups = (block.tiles.count + group - 1) / group;
  Fetch ahead =
      fetch_pieces(block.v_pieces, std::int64_t{score_row_tiles} * groups * (job.head_dim / 2));
  score_block<Kv>(job, scratch, block, group, ahead);
  weigh_block(job, scratch, o);
  const int output_row_tiles = (entries + kOutputRows - 1) / kOutputRows;
  const int pairs = output_pairs((entries + output_row_tiles - 1) / output_row_tiles);
  const int passes = (job.head_dim + 32 * pairs - 1) / (32 * pairs);
  ahead = next == nullptr ? Fetch{}
                          : fetch_pieces(next->k_pieces, std::int64_t{output_row_tiles} * passes *
                                                             (block.last - block.first));
  // A strip of V goes through all rows before the next one, while it is in the nearest cache.
  for (int dim = 0; dim < job.head_dim; dim += kStrip) {
    const int dim_end = smaller(dim + kStrip, job.head_dim);
    each_tile(entries, kOutputRows, [&](int entry, int rows) {
      add_values<Kv>(scratch, block, entry, rows, dim, dim_end, ahead, o + entry);
    });
  }
  for (int entry = 0; entry < entries; ++entry) {
    if (scratch.first[entry] < scratch.last[entry]) scratch.started[entry] = true;
  }
}

inline void start_unit(const Job& job, Scratch& scratch) {
  for (int entry = 0; entry < job.rows * job.group; ++entry) {
    scratch.m[entry] = -__builtin_inff();
    scratch.started[entry] = false;
    store(scratch.sums + entry * 16, zero());
  }
}

/// A unit's partials are complete in scratch.m, scratch.l and o[entry]; empty ones are (-inf, 0,
/// 0).
inline void end_unit(const Job& job, Scratch& scratch, float* const* o) {
  for (int entry = 0; entry < job.rows * job.group; ++entry) {
    scratch.l[entry] = sum(load(scratch.sums + entry * 16));
    for (int d = 0; !scratch.started[entry] && d < job.head_dim; d += 16)
      store(o[entry] + d, zero());
  }
}

template <class Kv>
void run(const Job& job, Scratch& scratch) {
  const int entries = job.rows * job.group;
  DCHECK(entries <= cpu::kMaxRows);
  for (int entry = 0; entry < entries; ++entry) {
    const float* q = job.q + entry / job.group * job.row_stride + entry % job.group * job.head_dim;
    float* scaled = scratch.q + entry * cpu::kRowStride;
    for (int d = 0; d < job.head_dim; d += 16) store(scaled + d, mul(load(q + d), set(job.scale)));
  }
  Block blocks[2];
  Block* block = &blocks[0];
  Block* next = &blocks[1];
  bool more = next_block(job, job.unit_first, 0, *block);
  if (more) find_keys<Kv>(job, *block);
  float* o[cpu::kMaxRows];
  for (std::int64_t unit = job.unit_first; unit < job.unit_last; ++unit) {
    const bool start =
        !job.fold || unit == job.unit_first;  // the unit's partial is the result's first value
    const std::int64_t run_index = job.fold ? 0 : unit - job.unit_first;
    float* m = job.m + run_index * job.entry_stride;
    float* l = job.l + run_index * job.entry_stride;
    float* result = job.o + run_index * job.entry_stride * job.o_entry;
    const auto result_of = [&](int entry) {
      return result + entry / job.group * job.o_row + entry % job.group * job.o_entry;
    };
    for (int entry = 0; entry < entries; ++entry) {
      o[entry] = start ? result_of(entry) : scratch.o + entry * cpu::kRowStride;
    }
    start_unit(job, scratch);
    while (more && block->unit == unit) {
      more = next_block(job, unit, block->begin + block->width, *next);
      if (more) find_keys<Kv>(job, *next);
      reduce_block<Kv>(job, scratch, *block, more ? next : nullptr, o);
      Block* done = block;
      block = next;
      next = done;
    }
    end_unit(job, scratch, o);
    for (int entry = 0; entry < entries; ++entry) {
      if (start) {
        m[entry] = scratch.m[entry];
        l[entry] = scratch.l[entry];
      } else {
        merge({m + entry, l + entry, result_of(entry)},
              {scratch.m + entry, scratch.l + entry, o[entry]}, job.head_dim);
      }
    }
  }
}

}  // namespace
}  // namespace segue::attention::ISA
