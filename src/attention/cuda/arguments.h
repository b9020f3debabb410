// SPDX-License-Identifier: Apache-2.0
// What a CUDA attention kernel is given: plain structs that host and device share. A Plan is
// flattened into items and reductions that each fit a few 16-byte loads, because every dependent
// load at a block's start costs a microsecond.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace segue::attention::cuda {

/// What a block does with the state of a finished unit.
enum class Emit : std::int32_t {
  kFinal,      // one unit is the whole tile: normalise and write the output
  kStore,      // a partial per unit
  kFold,       // fold into one partial, which a reduction reads
  kFoldFinal,  // fold into scratch, then normalise and write the output
};

/// One work item of a Plan with everything its block needs. Keys and positions are absolute.
struct alignas(16) Item {
  std::int32_t position;  // of the tile's first row
  std::int32_t rows;      // of the tile
  std::int32_t kv_head;
  std::int32_t unit;       // keys per unit
  std::int32_t key_begin;  // visible keys of the tile's rows within this item
  std::int32_t key_end;
  std::int32_t table;        // first entry of the sequence's page table in Arguments::tables
  std::int32_t table_count;  // entries of that table
  std::int32_t token;        // of the tile's first row in the packed rows of the step
  std::int32_t partial;      // of its first unit (kStore), or the only one (kFold, kFoldFinal)
  Emit emit;
  std::int32_t reread;  // 1: other items of the step read the same keys
  std::int32_t unused[4];
};
static_assert(sizeof(Item) == 64);

/// The merge of one (row tile, kv head): `runs` partials per row and head, `rows * group` apart, in
/// unit order.
struct alignas(16) Reduction {
  std::int32_t token;
  std::int32_t rows;
  std::int32_t kv_head;
  std::int32_t partial;
  std::int32_t runs;
  std::int32_t unused[3];
};
static_assert(sizeof(Reduction) == 32);

/// Live lengths of the two lists above; blocks past them return at once, so a captured grid may be
/// larger.
struct Counts {
  std::int32_t items;
  std::int32_t reductions;
};

/// One launch: one layer, all rows of the step. All pointers are device memory.
struct Arguments {
  const Counts* counts;
  const Item* items;            // [counts->items]
  const Reduction* reductions;  // [counts->reductions]
  const std::int32_t* tables;   // page tables of all sequences
  const void* q;                // [rows, q_heads, head_dim] of the KV type
  void* out;                    // [rows, q_heads, head_dim] of the KV type
  float* lse;                   // [rows, q_heads] or null
  const float* sinks;           // [q_heads] or null
  const std::byte* k;           // pages
  const std::byte* v;
  std::int64_t page_stride;  // bytes
  std::int64_t head_stride;
  std::int32_t pages;          // in the pool; an index outside [0, pages) is never followed
  std::int32_t page_size;      // tokens, a multiple of 8
  std::int32_t page_shift;     // log2(page_size), or -1
  std::uint32_t page_inverse;  // 2^32 / page_size, rounded down
  std::int32_t piece;  // tokens of one bulk copy: divides the page and the kernel's tile of keys
  std::int32_t q_heads;
  std::int32_t group;
  std::int32_t group_inverse;  // 65536 / group, rounded down, plus 1: exact for rows of a tile
  std::int32_t window;         // 0: none
  std::int32_t
      early;  // 1: read KV before the stream's previous kernel is complete (it wrote none of it)
  // Of natural layouts, whose pages come through tensor maps:
  std::int32_t head_lines;   // lines of 64 dims from a kv head to the next, within a token's row
  std::int32_t page_groups;  // groups of eight tokens from a page to the next
  std::int32_t head_groups;  // and from a kv head to the next, where heads hold their own tokens
  float score_scale;         // applied before the cap (scale / softcap), or 1
  float exponent_scale;      // log2(e) times scale or softcap
  std::int32_t capped;       // 1: scores pass through tanh
  float* partial_m;          // [partials] maximum, log2 domain
  float* partial_l;          // [partials] sum of exponentials
  float* partial_o;  // [partials, head_dim] unnormalised output, dims permuted within sixteens
};

/// How the copy engine finds the pages of a natural layout; unused with the tiled one.
struct NaturalMaps {
  CUtensorMap k;
  CUtensorMap v;
};

}  // namespace segue::attention::cuda
