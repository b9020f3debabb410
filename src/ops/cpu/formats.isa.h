// SPDX-License-Identifier: Apache-2.0
// One struct per stored format: how a block of 32 inputs of a tile (layout.h) becomes eight W
// registers of bytes and the factors of its sums. Every block format is an integer dot product per
// block (or half block) times exact f32 factors: d * scale of a sub-block has at most 19
// significant bits.
#pragma once

#include "ops/cpu/layout.h"
#include "ops/cpu/vector.isa.h"

namespace segue::ops::ISA {
namespace {

enum class Sum {
  kScale,      // y += s * (w . x)
  kScaleMin,   // y += s * (w . x) + t * sum(x), w unsigned
  kTwoScales,  // y += s * (first half of w . x) + t * (second half)
};

struct Block {
  W w[8];  // k-groups, ready for dot_groups
  F s, t = f_zero();
  const W* second_half() const { return w + 4; }
};

inline void load_nibbles(const std::uint8_t* quants, W (&w)[8]) {
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const W both = w_load(quants + 64 * g);
    w[g] = w_low(both);
    w[g + 4] = w_high(both);
  }
}

/// Levels of 4 or 5 bits.
template <int Bits>
inline void load_levels(const std::uint8_t* quants, W (&w)[8]) {
  load_nibbles(quants, w);
  if constexpr (Bits == 5) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) w[g] = w_fifth(w[g], quants + 256 + 8 * g);
  }
}

template <int Bits>
inline void center(W (&w)[8]) {
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) w[g] = w_center<Bits>(w[g]);
}

struct F32 {
  static constexpr int kBytes = 4;
  static F load(const std::uint8_t* p) { return f_load(p); }
};
struct F16 {
  static constexpr int kBytes = 2;
  static F load(const std::uint8_t* p) { return f_from_f16(p); }
};
struct BF16 {
  static constexpr int kBytes = 2;
  static F load(const std::uint8_t* p) { return f_from_bf16(p); }
};

struct Q8_0 {
  static constexpr TileLayout kLayout = kLayoutQ8_0;
  static constexpr Sum kSum = Sum::kScale;
  static constexpr int kBits = 8;
  static void load(const std::uint8_t* quants, const std::uint8_t* scales, int, Block& b) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) b.w[g] = w_from_i8(w_load(quants + 64 * g));
    b.s = f_from_f16(scales);
  }
};

/// Levels around the middle; one factor.
template <int Bits, const TileLayout& Layout, class Scale>
struct Centered {
  static constexpr TileLayout kLayout = Layout;
  static constexpr Sum kSum = Sum::kScale;
  static constexpr int kBits = Bits;
  static void load(const std::uint8_t* quants, const std::uint8_t* scales, int, Block& b) {
    load_levels<Bits>(quants, b.w);
    center<Bits>(b.w);
    b.s = Scale::load(scales);
  }
};
using Q4_0 = Centered<4, kLayoutQ4_0, F16>;
using Q5_0 = Centered<5, kLayoutQ5_0, F16>;
// The levels of Q4_0 with scales that f16 cannot hold.
using W4_BF16 = Centered<4, kLayoutW4_BF16, BF16>;
using W4_F32 = Centered<4, kLayoutW4_F32, F32>;

/// Levels from a minimum up.
template <int Bits, const TileLayout& Layout>
struct FromMinimum {
  static constexpr TileLayout kLayout = Layout;
  static constexpr Sum kSum = Sum::kScaleMin;
  static constexpr int kBits = Bits;
  static void load(const std::uint8_t* quants, const std::uint8_t* scales, int, Block& b) {
    load_levels<Bits>(quants, b.w);
    b.s = f_from_f16(scales);
    b.t = f_from_f16(scales + 32);
  }
};
using Q4_1 = FromMinimum<4, kLayoutQ4_1>;
using Q5_1 = FromMinimum<5, kLayoutQ5_1>;

/// Eight sub-blocks, whose scales and minima have 6 bits and share a factor each.
template <int Bits, const TileLayout& Layout>
struct FromMinimumOfEight {
  static constexpr TileLayout kLayout = Layout;
  static constexpr Sum kSum = Sum::kScaleMin;
  static constexpr int kBits = Bits;
  static void load(const std::uint8_t* quants, const std::uint8_t* scales, int index, Block& b) {
    load_levels<Bits>(quants, b.w);
    const I low = i_from_u8(scales + 64 + 16 * index);
    I high = i_from_u8(scales + 192 + 16 * (index / 2));
    if (index % 2 == 1) high = i_shr<4>(high);
    const I scale = i_or(i_and(low, i_set(15)), i_shl<4>(i_and(high, i_set(3))));
    const I minimum = i_or(i_shr<4>(low), i_shl<2>(i_and(high, i_set(12))));
    b.s = f_mul(f_from_f16(scales), f_from_i(scale));
    b.t = f_sub(f_zero(), f_mul(f_from_f16(scales + 32), f_from_i(minimum)));
  }
};
using Q4_K = FromMinimumOfEight<4, kLayoutQ4_K>;
using Q5_K = FromMinimumOfEight<5, kLayoutQ5_K>;

struct Q6_K {
  static constexpr TileLayout kLayout = kLayoutQ6_K;
  static constexpr Sum kSum = Sum::kTwoScales;
  static constexpr int kBits = 6;
  static void load(const std::uint8_t* quants, const std::uint8_t* scales, int index, Block& b) {
    load_nibbles(quants, b.w);
    const W upper[2] = {w_load(quants + 256), w_load(quants + 320)};
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      b.w[4 * h + 0] = w_sixth<0>(b.w[4 * h + 0], upper[h]);
      b.w[4 * h + 1] = w_sixth<1>(b.w[4 * h + 1], upper[h]);
      b.w[4 * h + 2] = w_sixth<2>(b.w[4 * h + 2], upper[h]);
      b.w[4 * h + 3] = w_sixth<3>(b.w[4 * h + 3], upper[h]);
    }
    center<6>(b.w);
    const F d = f_from_f16(scales);
    b.s = f_mul(d, f_from_i(i_from_i8(scales + 32 + 32 * index)));
    b.t = f_mul(d, f_from_i(i_from_i8(scales + 48 + 32 * index)));
  }
};

}  // namespace
}  // namespace segue::ops::ISA
