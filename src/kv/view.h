// SPDX-License-Identifier: Apache-2.0
// How a kernel sees one layer of a KV pool: plain structs, no ownership. The layout in memory
// belongs to the pool; everything that reads or writes K and V rows goes through these strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "segue/types.h"

namespace segue::kv {

/// Where the elements of a page lie. V is [token][head_dim] in all of them.
enum class Layout : std::uint8_t {
  // K in tiles of 16 tokens, 16 keys are one vector; head-major pages. [tile][head_dim][16], but
  // bf16 keeps two dims of a key together, [tile][head_dim / 2][16][2]: a 32-bit lane widens to
  // two f32 values with one shift and one mask.
  kTiled16,
  kTokenMajor,  // [page][token][kv_head][head_dim]: caches of other engines ("NHD")
  kHeadMajor,   // [page][kv_head][token][head_dim] ("HND")
  // K and V in the order in which tensor cores read them from shared memory, for GPUs: a (page, kv
  // head) is [token / 8][head_dim / 64][8 tokens][64 dims] of 2-byte elements, and the eight
  // 16-byte
  // pieces of a line of 64 dims are permuted: piece i of token t lies at i ^ (t % 8).
  kSwizzled8,
};

constexpr std::string_view layout_name(Layout layout) {
  switch (layout) {
    case Layout::kTiled16: return "tiled16";
    case Layout::kTokenMajor: return "token-major";
    case Layout::kHeadMajor: return "head-major";
    case Layout::kSwizzled8: return "swizzled8";
  }
  return "?";
}

inline constexpr int kTokenTile = 16;

/// Byte offset of an element (token-in-page t, dim d) from the start of a kSwizzled8 block.
constexpr std::int64_t swizzled8_offset(int head_dim, int t, int d) {
  const std::int64_t line = std::int64_t{t / 8} * head_dim / 8 + d / 64 * 8 + t % 8;
  return line * 128 + ((d % 64 / 8) ^ (t % 8)) * 16 + d % 8 * 2;
}

/// One layer of a pool. All strides in bytes.
struct View {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  std::int64_t page_stride = 0;   // from a page to the next, for k and v
  std::int64_t head_stride = 0;   // from a kv head to the next within a page
  std::int64_t token_stride = 0;  // from a token's row to the next (V always; K in natural layouts)
  KvType type = KvType::kBF16;
  Layout layout = Layout::kTiled16;
  int kv_heads = 0;
  int head_dim = 0;
  int page_size = 0;  // tokens, a multiple of 8; a tiled page holds ceil(page_size / 16) tiles of K
  int pages = 0;  // physical pages in the pool; a page index outside [0, pages) is never followed

  /// Byte offset of K element (token-in-page t, dim d) from the start of a (page, head) block.
  constexpr std::int64_t k_offset(int t, int d) const {
    const int bytes = kv_type_bytes(type);
    if (layout == Layout::kTiled16) {
      const std::int64_t tile = std::int64_t{t / kTokenTile} * head_dim * kTokenTile;
      const int lane = t % kTokenTile;
      const int within =
          type == KvType::kBF16 ? d / 2 * 2 * kTokenTile + lane * 2 + d % 2 : d * kTokenTile + lane;
      return (tile + within) * bytes;
    }
    if (layout == Layout::kSwizzled8) return swizzled8_offset(head_dim, t, d);
    return t * token_stride + std::int64_t{d} * bytes;
  }
  constexpr std::int64_t v_offset(int t, int d) const {
    if (layout == Layout::kSwizzled8) return swizzled8_offset(head_dim, t, d);
    return t * token_stride + std::int64_t{d} * kv_type_bytes(type);
  }
};

/// A sequence's map from logical to physical pages in one pool: logical page i holds tokens
/// [i * page_size, (i + 1) * page_size). Entries that no visible key needs may hold anything.
struct PageTable {
  const std::int32_t* pages = nullptr;  // [count]
  std::int32_t count = 0;
};

}  // namespace segue::kv
