// SPDX-License-Identifier: Apache-2.0
// Reading file blocks: one struct per format says where a block's scales are and what its eight
// k-groups of four elements hold; the writers of nibbles, fifth and sixth bits are shared.
#include "ops/cpu/repack.h"

#include <bit>
#include <cstring>

#include "core/check.h"
#include "ops/cpu/layout.h"

namespace segue::ops {
namespace {

static_assert(std::endian::native == std::endian::little);

using core::DType;

std::uint32_t load_u32(const std::uint8_t* p) {
  std::uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}
void store_u32(std::uint8_t* p, std::uint32_t value) { std::memcpy(p, &value, 4); }
void copy_half(std::uint8_t* to, const std::uint8_t* from) { std::memcpy(to, from, 2); }

/// Places of one (block, output) in a tile.
struct Place {
  std::uint8_t* quants;  // of the block
  int lane;

  /// `pairs[g]`: low nibbles are group g, high nibbles group g + 4.
  void set_nibbles(int g, std::uint32_t pairs) const {
    store_u32(quants + 64 * g + 4 * lane, pairs);
  }
  /// The fifth bits of the four elements of group g.
  void set_fifth(int g, std::uint32_t four_bits) const {
    std::uint8_t* byte = quants + 256 + 8 * g + lane / 2;
    *byte = static_cast<std::uint8_t>(*byte | (four_bits << (4 * (lane % 2))));
  }
  void set_sixth(int half, std::uint32_t bits) const {
    store_u32(quants + 256 + 64 * half + 4 * lane, bits);
  }
};

void repack_q8_0(const std::uint8_t* block, const Place& to, std::uint8_t* scales) {
  copy_half(scales + 2 * to.lane, block);
  for (int g = 0; g < 8; ++g) to.set_nibbles(g, load_u32(block + 2 + 4 * g));
}

/// Q4_0, Q4_1, Q5_0, Q5_1: `halves` f16 factors, then four bytes of fifth bits if there are any,
/// then 16 bytes whose low nibbles are elements 0..15 and whose high ones are 16..31.
void repack_legacy(const std::uint8_t* block, int halves, bool fifth, const Place& to,
                   std::uint8_t* scales) {
  for (int i = 0; i < halves; ++i) copy_half(scales + 32 * i + 2 * to.lane, block + 2 * i);
  block += 2 * halves;
  if (fifth) {
    const std::uint32_t bits = load_u32(block);
    for (int g = 0; g < 8; ++g) to.set_fifth(g, (bits >> (4 * g)) & 15u);
    block += 4;
  }
  for (int g = 0; g < 4; ++g) to.set_nibbles(g, load_u32(block + 4 * g));
}

/// W4_BF16, W4_F32: a scale of `scale_bytes`, then nibbles as in Q4_0.
void repack_w4(const std::uint8_t* block, int scale_bytes, const Place& to, std::uint8_t* scales) {
  std::memcpy(scales + scale_bytes * to.lane, block, static_cast<std::size_t>(scale_bytes));
  for (int g = 0; g < 4; ++g) to.set_nibbles(g, load_u32(block + scale_bytes + 4 * g));
}

/// d, dmin and the packed 6-bit scales and minima of Q4_K and Q5_K.
void repack_k_scales(const std::uint8_t* block, int lane, std::uint8_t* scales) {
  copy_half(scales + 2 * lane, block);
  copy_half(scales + 32 + 2 * lane, block + 2);
  const std::uint8_t* s = block + 4;
  for (int b = 0; b < 8; ++b) {
    const int scale = b < 4 ? s[b] & 63 : (s[b + 4] & 15) | ((s[b - 4] >> 6) << 4);
    const int minimum = b < 4 ? s[b + 4] & 63 : (s[b + 4] >> 4) | ((s[b] >> 6) << 4);
    scales[64 + 16 * b + lane] = static_cast<std::uint8_t>((scale & 15) | ((minimum & 15) << 4));
    std::uint8_t& upper = scales[192 + 16 * (b / 2) + lane];
    upper = static_cast<std::uint8_t>(upper |
                                      (((scale >> 4) | ((minimum >> 4) << 2)) << (4 * (b % 2))));
  }
}

constexpr std::uint32_t kNibbles = 0x0f0f0f0f;

/// Sub-block `b` of Q4_K and Q5_K is one half of the nibbles of 32 bytes; here both halves belong
/// to one block.
void repack_k_nibbles(const std::uint8_t* qs, int b, const Place& to) {
  const std::uint8_t* chunk = qs + 32 * (b / 2);
  const int shift = 4 * (b % 2);
  for (int g = 0; g < 4; ++g) {
    const std::uint32_t low = (load_u32(chunk + 4 * g) >> shift) & kNibbles;
    const std::uint32_t high = (load_u32(chunk + 16 + 4 * g) >> shift) & kNibbles;
    to.set_nibbles(g, low | (high << 4));
  }
}

void repack_q4_k(const std::uint8_t* block, int b, const Place& to, std::uint8_t* scales) {
  if (b == 0) repack_k_scales(block, to.lane, scales);
  repack_k_nibbles(block + 16, b, to);
}

void repack_q5_k(const std::uint8_t* block, int b, const Place& to, std::uint8_t* scales) {
  if (b == 0) repack_k_scales(block, to.lane, scales);
  for (int g = 0; g < 8; ++g) {
    // Bit b of four bytes, gathered into four bits by one multiplication.
    const std::uint32_t bits = (load_u32(block + 16 + 4 * g) >> b) & 0x01010101u;
    to.set_fifth(g, (bits * 0x10204080u) >> 28);
  }
  repack_k_nibbles(block + 48, b, to);
}

void repack_q6_k(const std::uint8_t* block, int b, const Place& to, std::uint8_t* scales) {
  if (b == 0) {
    copy_half(scales + 2 * to.lane, block + 208);
    for (int i = 0; i < 16; ++i) scales[32 + 16 * i + to.lane] = block[192 + i];
  }
  const int half = b / 4, quarter = b % 4;
  const std::uint8_t* ql = block + 64 * half + 32 * (quarter % 2);
  const std::uint8_t* qh = block + 128 + 32 * half;
  const int shift = 4 * (quarter / 2);
  std::uint32_t upper[2] = {};
  for (int g = 0; g < 8; ++g) {
    upper[g / 4] |= ((load_u32(qh + 4 * g) >> (2 * quarter)) & 0x03030303u) << (2 * (g % 4));
  }
  for (int g = 0; g < 4; ++g) {
    const std::uint32_t low = (load_u32(ql + 4 * g) >> shift) & kNibbles;
    const std::uint32_t high = (load_u32(ql + 16 + 4 * g) >> shift) & kNibbles;
    to.set_nibbles(g, low | (high << 4));
  }
  to.set_sixth(0, upper[0]);
  to.set_sixth(1, upper[1]);
}

void repack_block(DType dtype, const std::uint8_t* block, int b, const Place& to,
                  std::uint8_t* scales) {
  switch (dtype) {
    case DType::kQ8_0: return repack_q8_0(block, to, scales);
    case DType::kQ4_0: return repack_legacy(block, 1, false, to, scales);
    case DType::kQ4_1: return repack_legacy(block, 2, false, to, scales);
    case DType::kQ5_0: return repack_legacy(block, 1, true, to, scales);
    case DType::kQ5_1: return repack_legacy(block, 2, true, to, scales);
    case DType::kQ4_K: return repack_q4_k(block, b, to, scales);
    case DType::kQ5_K: return repack_q5_k(block, b, to, scales);
    case DType::kQ6_K: return repack_q6_k(block, b, to, scales);
    case DType::kW4_BF16: return repack_w4(block, 2, to, scales);
    case DType::kW4_F32: return repack_w4(block, 4, to, scales);
    default: CHECK(false);
  }
}

/// The integer weights of one block and lane, as stored (no bias taken off).
void read_quants(DType dtype, const std::uint8_t* quants, int lane, int (&q)[kBlock]) {
  for (int e = 0; e < kBlock; ++e) {
    const int g = e / 4, i = e % 4;
    if (dtype == DType::kQ8_0) {
      q[e] = static_cast<std::int8_t>(quants[64 * g + 4 * lane + i]);
      continue;
    }
    const int both = quants[64 * (g % 4) + 4 * lane + i];
    q[e] = g < 4 ? both & 15 : both >> 4;
    if (dtype == DType::kQ6_K) {
      q[e] |= ((quants[256 + 64 * (g / 4) + 4 * lane + i] >> (2 * (g % 4))) & 3) << 4;
    } else if (tile_layout(dtype).quant_bytes == 320) {
      const int bit = 4 * lane + i;
      q[e] |= ((quants[256 + 8 * g + bit / 8] >> (bit % 8)) & 1) << 4;
    }
  }
}

float half_at(const std::uint8_t* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  return core::f16_to_f32(bits);
}

/// The scale of Q4_0 and its wider kin.
float w4_scale(DType dtype, const std::uint8_t* scales, int lane) {
  if (dtype == DType::kW4_F32) return std::bit_cast<float>(load_u32(scales + 4 * lane));
  std::uint16_t bits;
  std::memcpy(&bits, scales + 2 * lane, 2);
  return dtype == DType::kW4_BF16 ? core::bf16_to_f32(bits) : core::f16_to_f32(bits);
}

void read_block(DType dtype, const std::uint8_t* quants, const std::uint8_t* scales, int b,
                int lane, float* out) {
  int q[kBlock];
  read_quants(dtype, quants, lane, q);
  const float d = half_at(scales + 2 * lane);
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kW4_BF16:
    case DType::kW4_F32: {
      const float scale = w4_scale(dtype, scales, lane);
      for (int e = 0; e < kBlock; ++e) out[e] = scale * static_cast<float>(q[e] - 8);
      return;
    }
    case DType::kQ8_0:
    case DType::kQ5_0: {
      const int bias = dtype == DType::kQ5_0 ? 16 : 0;
      for (int e = 0; e < kBlock; ++e) out[e] = d * static_cast<float>(q[e] - bias);
      return;
    }
    case DType::kQ4_1:
    case DType::kQ5_1: {
      const float m = half_at(scales + 32 + 2 * lane);
      for (int e = 0; e < kBlock; ++e) out[e] = d * static_cast<float>(q[e]) + m;
      return;
    }
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const int low = scales[64 + 16 * b + lane];
      const int upper = scales[192 + 16 * (b / 2) + lane] >> (4 * (b % 2));
      const float scale = d * static_cast<float>((low & 15) | ((upper & 3) << 4));
      const float minimum =
          half_at(scales + 32 + 2 * lane) * static_cast<float>((low >> 4) | ((upper & 12) << 2));
      for (int e = 0; e < kBlock; ++e) out[e] = scale * static_cast<float>(q[e]) - minimum;
      return;
    }
    case DType::kQ6_K: {
      for (int e = 0; e < kBlock; ++e) {
        const auto scale = static_cast<std::int8_t>(scales[32 + 16 * (2 * b + e / 16) + lane]);
        out[e] = d * static_cast<float>(scale) * static_cast<float>(q[e] - 32);
      }
      return;
    }
    default: CHECK(false);
  }
}

}  // namespace

std::int64_t tile_size(DType dtype, std::int64_t inputs) {
  std::int64_t bytes = inputs * kTileOutputs * core::dtype_info(dtype).block_bytes;
  if (!is_float(dtype)) {
    const TileLayout layout = tile_layout(dtype);
    const std::int64_t blocks = inputs / kBlock;
    bytes = blocks * layout.quant_bytes + blocks / layout.group_blocks * layout.scale_bytes;
  }
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

void repack_tile(DType dtype, const std::byte* rows, std::int64_t row_bytes, int outputs,
                 std::int64_t inputs, std::uint8_t* tile) {
  const auto* source = reinterpret_cast<const std::uint8_t*>(rows);
  if (is_float(dtype)) {
    const int size = core::dtype_info(dtype).block_bytes;
    for (std::int64_t k = 0; k < inputs; ++k) {
      for (int lane = 0; lane < outputs; ++lane) {
        std::memcpy(tile + (k * kTileOutputs + lane) * size, source + lane * row_bytes + k * size,
                    static_cast<std::size_t>(size));
      }
    }
    return;
  }
  const TileLayout layout = tile_layout(dtype);
  const int block_bytes = core::dtype_info(dtype).block_bytes;
  const std::int64_t blocks = inputs / kBlock;
  std::uint8_t* scales = tile + blocks * layout.quant_bytes;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t group = block / layout.group_blocks;
    const auto b = static_cast<int>(block % layout.group_blocks);
    for (int lane = 0; lane < outputs; ++lane) {
      repack_block(dtype, source + lane * row_bytes + group * block_bytes, b,
                   {tile + block * layout.quant_bytes, lane}, scales + group * layout.scale_bytes);
    }
  }
}

void pack_w4_row(DType dtype, const std::byte* words, const std::byte* scales, std::int64_t inputs,
                 std::byte* row) {
  const auto scale_bytes = static_cast<std::size_t>(core::dtype_info(dtype).block_bytes - 16);
  const auto* packed = reinterpret_cast<const std::uint8_t*>(words);
  const auto spread = [](std::uint32_t four) {  // four nibbles to the low halves of four bytes
    four = (four | (four << 8)) & 0x00ff00ffu;
    return (four | (four << 4)) & kNibbles;
  };
  for (std::int64_t block = 0; block < inputs / kBlock; ++block) {
    std::memcpy(row, scales, scale_bytes);
    row += scale_bytes;
    scales += scale_bytes;
    for (int half = 0; half < 2; ++half) {  // elements 8 half .. 8 half + 7, and those 16 further
      const std::uint32_t low = load_u32(packed + 4 * half);
      const std::uint32_t high = load_u32(packed + 8 + 4 * half);
      const std::uint32_t out[2] = {spread(low & 0xffffu) | (spread(high & 0xffffu) << 4),
                                    spread(low >> 16) | (spread(high >> 16) << 4)};
      std::memcpy(row, out, sizeof(out));
      row += sizeof(out);
    }
    packed += 16;
  }
}

void read_lane(DType dtype, const std::uint8_t* tile, int lane, std::int64_t inputs, float* out) {
  if (is_float(dtype)) {
    for (std::int64_t k = 0; k < inputs; ++k) {
      const std::int64_t at = k * kTileOutputs + lane;
      if (dtype == DType::kF32) {
        std::memcpy(out + k, tile + 4 * at, 4);
      } else {
        std::uint16_t bits;
        std::memcpy(&bits, tile + 2 * at, 2);
        out[k] = dtype == DType::kF16 ? core::f16_to_f32(bits) : core::bf16_to_f32(bits);
      }
    }
    return;
  }
  const TileLayout layout = tile_layout(dtype);
  const std::int64_t blocks = inputs / kBlock;
  const std::uint8_t* scales = tile + blocks * layout.quant_bytes;
  for (std::int64_t block = 0; block < blocks; ++block) {
    read_block(dtype, tile + block * layout.quant_bytes,
               scales + block / layout.group_blocks * layout.scale_bytes,
               static_cast<int>(block % layout.group_blocks), lane, out + block * kBlock);
  }
}

}  // namespace segue::ops
