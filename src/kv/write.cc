// SPDX-License-Identifier: Apache-2.0
// Rows of f32 into pages. Conversion loops are branch-free so that compilers turn them into vector
// code at any level; K of the tiled layout is transposed in blocks of 16 tokens. Moves: 4 bytes
// read and 2 or 4 written per element; bound by that, and small beside the projections that made
// them.
#include "kv/write.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"

namespace segue::kv {
namespace {

constexpr int kLanes =
    64;  // lanes converted at a time: a [16 tokens][64] block stays in the first-level cache

/// Element codecs. A lane is what the tiled layout keeps together, one or two dims of a token;
/// lanes of a row follow each other in the natural layouts (little-endian, so the lower dim comes
/// first). `encode` equals core/dtype.h without its branches.
struct F32 {
  using Lane = std::uint32_t;
  static constexpr int kLaneDims = 1;
  static Lane encode(const float* from) { return std::bit_cast<std::uint32_t>(*from); }
};

struct BF16 {
  using Lane = std::uint32_t;
  static constexpr int kLaneDims = 2;
  static Lane encode(const float* from) {
    return (high_half(from[0]) >> 16) | (high_half(from[1]) & 0xffff0000u);
  }

 private:
  static std::uint32_t high_half(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
  }
};

struct F16 {
  using Lane = std::uint16_t;
  static constexpr int kLaneDims = 1;
  static Lane encode(const float* from) {
    const auto bits = std::bit_cast<std::uint32_t>(*from);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t normal =
        (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    std::uint32_t half = select(magnitude, 0x387fffffu, normal, subnormal);
    half = select(magnitude, 0x477fefffu, 0x7c00u, half);
    half = select(magnitude, 0x7f800000u, 0x7e00u, half);
    return static_cast<Lane>(half | ((bits >> 16) & 0x8000u));
  }

 private:
  /// value > limit ? above : below, as masks: g++ 12 does not turn a chain of ?: into vector code.
  static std::uint32_t select(std::uint32_t value, std::uint32_t limit, std::uint32_t above,
                              std::uint32_t below) {
    const auto mask = static_cast<std::uint32_t>(static_cast<std::int32_t>(limit - value) >> 31);
    return (above & mask) | (below & ~mask);
  }
};

template <class Codec>
void encode_lanes(const float* from, typename Codec::Lane* to, int lanes) {
  for (int i = 0; i < lanes; ++i) to[i] = Codec::encode(from + i * Codec::kLaneDims);
}

template <class Codec>
void encode_row(const float* from, std::byte* to, std::int64_t dims) {
  encode_lanes<Codec>(from, reinterpret_cast<typename Codec::Lane*>(to),
                      static_cast<int>(dims) / Codec::kLaneDims);
}

/// `count` rows of one head into one K tile: `tile` is [lanes][16 tokens]; row i becomes token
/// `token` + i.
template <class Codec>
void encode_tile(const float* from, std::int64_t stride, std::byte* tile, int token, int count,
                 int head_dim) {
  using Lane = typename Codec::Lane;
  const int lanes = head_dim / Codec::kLaneDims;
  Lane* column = reinterpret_cast<Lane*>(tile) + token;
  Lane block[kTokenTile][kLanes];
  for (int first = 0; first < lanes; first += kLanes) {
    const int width = std::min(kLanes, lanes - first);
    for (int t = 0; t < count; ++t)
      encode_lanes<Codec>(from + t * stride + first * Codec::kLaneDims, block[t], width);
    for (int lane = 0; lane < width; ++lane, column += kTokenTile) {
      for (int t = 0; t < count; ++t) column[t] = block[t][lane];
    }
  }
}

/// The page of a position, bound-checked: what only a bug could get wrong must not write outside
/// the pool.
std::int64_t page_offset(const View& view, const PageTable& table, std::int64_t position) {
  const std::int64_t logical = position / view.page_size;
  CHECK(position >= 0 && logical < table.count);
  const std::int32_t page = table.pages[logical];
  CHECK(page >= 0 && page < view.pages);
  return page * view.page_stride;
}

template <class Codec>
void write(const View& view, const PageTable& table, std::int64_t position, std::int64_t count,
           const Rows& rows) {
  const std::int64_t head_dim = view.head_dim;
  const int run_limit = view.layout == Layout::kTiled16 ? kTokenTile : view.page_size;
  const std::int64_t piece = view.layout == Layout::kSwizzled8 ? 8 : head_dim;  // contiguous dims
  for (std::int64_t row = 0; row < count;) {
    // A run: rows of one page, and of one tile where K is tiled.
    const int token = static_cast<int>((position + row) % view.page_size);
    const int room = std::min(view.page_size - token, run_limit - token % run_limit);
    const int run = static_cast<int>(std::min<std::int64_t>(room, count - row));
    const std::int64_t page = page_offset(view, table, position + row);
    for (int head = 0; head < view.kv_heads; ++head) {
      const float* k = rows.k + row * rows.k_stride + head * head_dim;
      const float* v = rows.v + row * rows.v_stride + head * head_dim;
      std::byte* k_block = view.k + page + head * view.head_stride;
      std::byte* v_block = view.v + page + head * view.head_stride;
      if (view.layout == Layout::kTiled16) {
        encode_tile<Codec>(k, rows.k_stride,
                           k_block + view.k_offset(token / kTokenTile * kTokenTile, 0),
                           token % kTokenTile, run, view.head_dim);
      }
      for (int t = 0; t < run; ++t) {
        for (std::int64_t d = 0; d < head_dim; d += piece) {
          const int dim = static_cast<int>(d);
          if (view.layout != Layout::kTiled16) {
            encode_row<Codec>(k + t * rows.k_stride + d, k_block + view.k_offset(token + t, dim),
                              piece);
          }
          encode_row<Codec>(v + t * rows.v_stride + d, v_block + view.v_offset(token + t, dim),
                            piece);
        }
      }
    }
    row += run;
  }
}

float read_as(KvType type, const std::byte* from) {
  if (type == KvType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  return type == KvType::kF16 ? core::f16_to_f32(half) : core::bf16_to_f32(half);
}

}  // namespace

void write_rows(const View& view, const PageTable& table, std::int64_t position, std::int64_t count,
                const Rows& rows) {
  switch (view.type) {
    case KvType::kF32: return write<F32>(view, table, position, count, rows);
    case KvType::kF16: return write<F16>(view, table, position, count, rows);
    case KvType::kBF16: return write<BF16>(view, table, position, count, rows);
  }
}

float read_k(const View& view, const PageTable& table, std::int64_t position, int kv_head,
             int dim) {
  CHECK(kv_head >= 0 && kv_head < view.kv_heads && dim >= 0 && dim < view.head_dim);
  const int token = static_cast<int>(position % view.page_size);
  return read_as(view.type, view.k + page_offset(view, table, position) +
                                kv_head * view.head_stride + view.k_offset(token, dim));
}

float read_v(const View& view, const PageTable& table, std::int64_t position, int kv_head,
             int dim) {
  CHECK(kv_head >= 0 && kv_head < view.kv_heads && dim >= 0 && dim < view.head_dim);
  const int token = static_cast<int>(position % view.page_size);
  return read_as(view.type, view.v + page_offset(view, table, position) +
                                kv_head * view.head_stride + view.v_offset(token, dim));
}

}  // namespace segue::kv
