// SPDX-License-Identifier: Apache-2.0
// Vec: sixteen floats side by side, in the registers of one instruction level (AVX-512 one, AVX2
// two, NEON four, portable: whatever the compiler finds). Only what attention needs; included by
// *.isa.cc files only, all linkage internal. Every level does the same operations in the same
// order; the portable one has no fused multiply-add. At the end of each level, what packs rows of
// K into tiles.
//
// kAccumulators: how many Vec a loop may hold in registers beside its operands.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(ISA_avx512) || defined(ISA_avx2)
#include <immintrin.h>
#elif defined(ISA_neon)
#include <arm_neon.h>
#endif

#if defined(ISA_portable)
#include "core/dtype.h"
#endif

namespace segue::attention::ISA {
namespace {

#if defined(ISA_avx512)

using Vec = __m512;
constexpr int kAccumulators = 24;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec set(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
/// a > b ? a : b, so NaN in either gives b.
inline Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
/// x < bound ? chosen : other.
inline Vec select_below(Vec x, Vec bound, Vec chosen, Vec other) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, bound, _CMP_LT_OQ), other, chosen);
}
/// Lanes first <= i < last of x, the others of `outside`. 0 <= first, last <= 16.
inline Vec keep(Vec x, int first, int last, Vec outside) {
  const std::uint32_t mask = ((1u << last) - 1) & ~((1u << first) - 1);
  return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), outside, x);
}
inline Vec magnitude(Vec x) { return _mm512_abs_ps(x); }
inline Vec with_sign_of(Vec x, Vec sign) {
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(0x80000000u)),
                                _mm512_castps_si512(sign), _mm512_castps_si512(x), 0xca));
}
/// y * 2^n, where n is the integer that `rounded` = n + 1.5 * 2^23 holds in its low bits.
inline Vec scale_by_power(Vec y, Vec rounded) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y),
                                              _mm512_slli_epi32(_mm512_castps_si512(rounded), 23)));
}
inline float lane0(Vec a) { return _mm512_cvtss_f32(a); }
inline float largest(Vec a) { return _mm512_reduce_max_ps(a); }

inline Vec load_f16(const std::uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_bf16(const std::uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/// Of 32 values those with an even index, and those with an odd one.
inline Vec load_bf16_even(const std::uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
inline Vec load_bf16_odd(const std::uint16_t* p) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high));
}
/// a0 b0 a1 b1 ... a15 b15.
inline void store_interleaved(float* p, Vec a, Vec b) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  store(p, _mm512_permutex2var_ps(a, low, b));
  store(p + 16, _mm512_permutex2var_ps(a, high, b));
}
/// Words of 32 bits at `offset` bytes from each of sixteen rows, sixteen of each: out is
/// [word][row].
inline void transpose(const std::byte* const* rows, std::int64_t offset, std::byte* out) {
  for (int word = 0; word < 16; word += 4, offset += 16) {
    Vec x[4];  // 128-bit lane i of x[j]: four words of row 4 i + j
    for (int j = 0; j < 4; ++j) {
      const auto four = [&](int i) {
        return _mm_loadu_ps(reinterpret_cast<const float*>(rows[4 * i + j] + offset));
      };
      x[j] = _mm512_castps128_ps512(four(0));
      x[j] = _mm512_insertf32x4(x[j], four(1), 1);
      x[j] = _mm512_insertf32x4(x[j], four(2), 2);
      x[j] = _mm512_insertf32x4(x[j], four(3), 3);
    }
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
    _mm512_storeu_pd(out + word * 64, _mm512_unpacklo_pd(low01, low23));
    _mm512_storeu_pd(out + word * 64 + 64, _mm512_unpackhi_pd(low01, low23));
    _mm512_storeu_pd(out + word * 64 + 128, _mm512_unpacklo_pd(high01, high23));
    _mm512_storeu_pd(out + word * 64 + 192, _mm512_unpackhi_pd(high01, high23));
  }
}
/// Sixteen pairs of halves at p: first the first ones, then the second ones.
inline void split_pairs(std::byte* p) {
  alignas(64) static constexpr std::uint16_t order[32] = {
      0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
      1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i pairs = _mm512_loadu_si512(p);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_load_si512(order), pairs));
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline void prefetch_near(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

#elif defined(ISA_avx2)

struct Vec {
  __m256 a, b;
};
constexpr int kAccumulators = 6;

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec div(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec fma(Vec x, Vec y, Vec z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Vec larger(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec select_below(Vec x, Vec bound, Vec chosen, Vec other) {
  return {_mm256_blendv_ps(other.a, chosen.a, _mm256_cmp_ps(x.a, bound.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(other.b, chosen.b, _mm256_cmp_ps(x.b, bound.b, _CMP_LT_OQ))};
}
inline Vec keep(Vec x, int first, int last, Vec outside) {
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i from = _mm256_set1_epi32(first - 1);
  const __m256i to = _mm256_set1_epi32(last);
  const __m256i mask_a =
      _mm256_and_si256(_mm256_cmpgt_epi32(low, from), _mm256_cmpgt_epi32(to, low));
  const __m256i mask_b =
      _mm256_and_si256(_mm256_cmpgt_epi32(high, from), _mm256_cmpgt_epi32(to, high));
  return {_mm256_blendv_ps(outside.a, x.a, _mm256_castsi256_ps(mask_a)),
          _mm256_blendv_ps(outside.b, x.b, _mm256_castsi256_ps(mask_b))};
}
inline __m256 sign_bit() {
  return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0x80000000u)));
}
inline Vec magnitude(Vec x) {
  return {_mm256_andnot_ps(sign_bit(), x.a), _mm256_andnot_ps(sign_bit(), x.b)};
}
inline Vec with_sign_of(Vec x, Vec sign) {
  const Vec plain = magnitude(x);
  return {_mm256_or_ps(plain.a, _mm256_and_ps(sign.a, sign_bit())),
          _mm256_or_ps(plain.b, _mm256_and_ps(sign.b, sign_bit()))};
}
inline __m256 scale_half_by_power(__m256 y, __m256 rounded) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y),
                                              _mm256_slli_epi32(_mm256_castps_si256(rounded), 23)));
}
inline Vec scale_by_power(Vec y, Vec rounded) {
  return {scale_half_by_power(y.a, rounded.a), scale_half_by_power(y.b, rounded.b)};
}
inline float lane0(Vec x) { return _mm256_cvtss_f32(x.a); }
inline float largest(Vec x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline Vec load_f16(const std::uint16_t* p) {
  const auto* x = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x + 1))};
}
inline __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline Vec load_bf16(const std::uint16_t* p) {
  const auto* x = reinterpret_cast<const __m128i*>(p);
  return {widen_bf16(_mm_loadu_si128(x)), widen_bf16(_mm_loadu_si128(x + 1))};
}
inline Vec load_bf16_even(const std::uint16_t* p) {
  const auto* x = reinterpret_cast<const __m256i*>(p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(x), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(x + 1), 16))};
}
inline Vec load_bf16_odd(const std::uint16_t* p) {
  const auto* x = reinterpret_cast<const __m256i*>(p);
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(x), high)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(x + 1), high))};
}
inline void store_interleaved_half(float* p, __m256 x, __m256 y) {
  const __m256 low = _mm256_unpacklo_ps(x, y);   // pairs 0 1, 4 5
  const __m256 high = _mm256_unpackhi_ps(x, y);  // pairs 2 3, 6 7
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
inline void store_interleaved(float* p, Vec x, Vec y) {
  store_interleaved_half(p, x.a, y.a);
  store_interleaved_half(p + 16, x.b, y.b);
}
inline void transpose(const std::byte* const* rows, std::int64_t offset, std::byte* out) {
  for (int word = 0; word < 16; word += 4, offset += 16) {
    for (int half = 0; half < 16; half += 8) {
      __m256 x[4];  // 128-bit lane i of x[j]: four words of row half + 4 i + j
      for (int j = 0; j < 4; ++j) {
        const auto four = [&](int row) {
          return _mm_loadu_ps(reinterpret_cast<const float*>(rows[row] + offset));
        };
        x[j] = _mm256_castps128_ps256(four(half + j));
        x[j] = _mm256_insertf128_ps(x[j], four(half + 4 + j), 1);
      }
      const __m256d low01 = _mm256_castps_pd(_mm256_unpacklo_ps(x[0], x[1]));
      const __m256d low23 = _mm256_castps_pd(_mm256_unpacklo_ps(x[2], x[3]));
      const __m256d high01 = _mm256_castps_pd(_mm256_unpackhi_ps(x[0], x[1]));
      const __m256d high23 = _mm256_castps_pd(_mm256_unpackhi_ps(x[2], x[3]));
      auto* p = reinterpret_cast<double*>(out + word * 64 + half * 4);
      _mm256_storeu_pd(p, _mm256_unpacklo_pd(low01, low23));
      _mm256_storeu_pd(p + 8, _mm256_unpackhi_pd(low01, low23));
      _mm256_storeu_pd(p + 16, _mm256_unpacklo_pd(high01, high23));
      _mm256_storeu_pd(p + 24, _mm256_unpackhi_pd(high01, high23));
    }
  }
}
inline void split_pairs(std::byte* p) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  auto* x = reinterpret_cast<__m256i*>(p);
  const auto split = [&](const __m256i* pairs) {
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(_mm256_loadu_si256(pairs), order), 0xd8);
  };
  const __m256i a = split(x);
  const __m256i b = split(x + 1);
  _mm256_storeu_si256(x, _mm256_permute2x128_si256(a, b, 0x20));
  _mm256_storeu_si256(x + 1, _mm256_permute2x128_si256(a, b, 0x31));
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline void prefetch_near(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

#elif defined(ISA_neon)

struct Vec {
  float32x4_t q[4];
};
constexpr int kAccumulators = 6;

template <class F>
inline Vec each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
inline Vec set(float x) {
  return each([&](int) { return vdupq_n_f32(x); });
}
inline Vec zero() { return set(0.0f); }
inline Vec load(const float* p) {
  return each([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, const Vec& a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.q[i]);
}
inline Vec add(const Vec& a, const Vec& b) {
  return each([&](int i) { return vaddq_f32(a.q[i], b.q[i]); });
}
inline Vec sub(const Vec& a, const Vec& b) {
  return each([&](int i) { return vsubq_f32(a.q[i], b.q[i]); });
}
inline Vec mul(const Vec& a, const Vec& b) {
  return each([&](int i) { return vmulq_f32(a.q[i], b.q[i]); });
}
inline Vec div(const Vec& a, const Vec& b) {
  return each([&](int i) { return vdivq_f32(a.q[i], b.q[i]); });
}
inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return each([&](int i) { return vfmaq_f32(c.q[i], a.q[i], b.q[i]); });
}
inline Vec larger(const Vec& a, const Vec& b) {
  return each([&](int i) { return vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]); });
}
inline Vec select_below(const Vec& x, const Vec& bound, const Vec& chosen, const Vec& other) {
  return each(
      [&](int i) { return vbslq_f32(vcltq_f32(x.q[i], bound.q[i]), chosen.q[i], other.q[i]); });
}
inline Vec keep(const Vec& x, int first, int last, const Vec& outside) {
  const std::int32_t four[4] = {0, 1, 2, 3};
  return each([&](int i) {
    const int32x4_t lane = vaddq_s32(vld1q_s32(four), vdupq_n_s32(4 * i));
    const uint32x4_t mask =
        vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(last)));
    return vbslq_f32(mask, x.q[i], outside.q[i]);
  });
}
inline Vec magnitude(const Vec& x) {
  return each([&](int i) { return vabsq_f32(x.q[i]); });
}
inline Vec with_sign_of(const Vec& x, const Vec& sign) {
  return each([&](int i) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign.q[i], x.q[i]); });
}
inline Vec scale_by_power(const Vec& y, const Vec& rounded) {
  return each([&](int i) {
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y.q[i]),
                                           vshlq_n_s32(vreinterpretq_s32_f32(rounded.q[i]), 23)));
  });
}
inline float lane0(const Vec& a) { return vgetq_lane_f32(a.q[0], 0); }
inline float largest(const Vec& a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.q[0], a.q[1]), vmaxq_f32(a.q[2], a.q[3])));
}

inline Vec load_f16(const std::uint16_t* p) {
  return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline Vec load_bf16(const std::uint16_t* p) {
  return each([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline uint32x4_t load_pairs(const std::uint16_t* p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
inline Vec load_bf16_even(const std::uint16_t* p) {
  return each([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(load_pairs(p + 8 * i), 16)); });
}
inline Vec load_bf16_odd(const std::uint16_t* p) {
  return each([&](int i) {
    return vreinterpretq_f32_u32(vandq_u32(load_pairs(p + 8 * i), vdupq_n_u32(0xffff0000u)));
  });
}
inline void store_interleaved(float* p, const Vec& a, const Vec& b) {
  for (int i = 0; i < 4; ++i) {
    const float32x4x2_t pair{{a.q[i], b.q[i]}};
    vst2q_f32(p + 8 * i, pair);
  }
}
inline void transpose(const std::byte* const* rows, std::int64_t offset, std::byte* out) {
  auto* words = reinterpret_cast<std::uint8_t*>(out);
  for (int row = 0; row < 16; row += 4) {
    const auto four = [&](int i, std::int64_t at) {
      return vreinterpretq_u32_u8(
          vld1q_u8(reinterpret_cast<const std::uint8_t*>(rows[row + i] + at)));
    };
    for (int word = 0; word < 16; word += 4) {
      const std::int64_t at = offset + word * 4;
      const uint32x4x2_t a = vzipq_u32(four(0, at), four(2, at));
      const uint32x4x2_t b = vzipq_u32(four(1, at), four(3, at));
      const uint32x4x2_t low = vzipq_u32(a.val[0], b.val[0]);
      const uint32x4x2_t high = vzipq_u32(a.val[1], b.val[1]);
      std::uint8_t* p = words + word * 64 + row * 4;
      vst1q_u8(p, vreinterpretq_u8_u32(low.val[0]));
      vst1q_u8(p + 64, vreinterpretq_u8_u32(low.val[1]));
      vst1q_u8(p + 128, vreinterpretq_u8_u32(high.val[0]));
      vst1q_u8(p + 192, vreinterpretq_u8_u32(high.val[1]));
    }
  }
}
inline void split_pairs(std::byte* p) {
  auto* x = reinterpret_cast<std::uint16_t*>(p);
  const uint16x8x2_t a = vld2q_u16(x);
  const uint16x8x2_t b = vld2q_u16(x + 16);
  vst1q_u16(x, a.val[0]);
  vst1q_u16(x + 8, b.val[0]);
  vst1q_u16(x + 16, a.val[1]);
  vst1q_u16(x + 24, b.val[1]);
}
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
inline void prefetch_near(const void* p) { __builtin_prefetch(p); }

#elif defined(ISA_portable)

struct Vec {
  float x[16];
};
constexpr int kAccumulators = 3;

template <class F>
inline Vec each(F f) {
  Vec y;
  for (int i = 0; i < 16; ++i) y.x[i] = f(i);
  return y;
}
inline std::uint32_t bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
inline float from_bits(std::uint32_t x) { return __builtin_bit_cast(float, x); }

inline Vec set(float x) {
  return each([&](int) { return x; });
}
inline Vec zero() { return set(0.0f); }
inline Vec load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(float* p, const Vec& a) {
  for (int i = 0; i < 16; ++i) p[i] = a.x[i];
}
inline Vec add(const Vec& a, const Vec& b) {
  return each([&](int i) { return a.x[i] + b.x[i]; });
}
inline Vec sub(const Vec& a, const Vec& b) {
  return each([&](int i) { return a.x[i] - b.x[i]; });
}
inline Vec mul(const Vec& a, const Vec& b) {
  return each([&](int i) { return a.x[i] * b.x[i]; });
}
inline Vec div(const Vec& a, const Vec& b) {
  return each([&](int i) { return a.x[i] / b.x[i]; });
}
inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return each([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
}
inline Vec larger(const Vec& a, const Vec& b) {
  return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
}
inline Vec select_below(const Vec& x, const Vec& bound, const Vec& chosen, const Vec& other) {
  return each([&](int i) { return x.x[i] < bound.x[i] ? chosen.x[i] : other.x[i]; });
}
inline Vec keep(const Vec& x, int first, int last, const Vec& outside) {
  return each([&](int i) { return i >= first && i < last ? x.x[i] : outside.x[i]; });
}
inline Vec magnitude(const Vec& x) {
  return each([&](int i) { return from_bits(bits(x.x[i]) & 0x7fffffffu); });
}
inline Vec with_sign_of(const Vec& x, const Vec& sign) {
  return each([&](int i) {
    return from_bits((bits(x.x[i]) & 0x7fffffffu) | (bits(sign.x[i]) & 0x80000000u));
  });
}
inline Vec scale_by_power(const Vec& y, const Vec& rounded) {
  return each([&](int i) { return from_bits(bits(y.x[i]) + (bits(rounded.x[i]) << 23)); });
}
inline float lane0(const Vec& a) { return a.x[0]; }
inline float largest(const Vec& a) {
  float y = a.x[0];
  for (int i = 1; i < 16; ++i) y = a.x[i] > y ? a.x[i] : y;
  return y;
}

inline Vec load_f16(const std::uint16_t* p) {
  // Branch-free, for the vectoriser. As in core/dtype.h: halves below 2^-14 are exact in float
  // arithmetic.
  return each([&](int i) {
    const std::uint32_t half = p[i];
    const std::uint32_t body = (half & 0x7fffu) << 13;
    const std::uint32_t top = body >= 0x0f800000u ? 0x38000000u + 0x38000000u : 0x38000000u;
    const float small = static_cast<float>(half & 0x3ffu) * 0x1p-24f;
    const std::uint32_t value = body < 0x00800000u ? bits(small) : body + top;
    return from_bits(value | ((half & 0x8000u) << 16));
  });
}
inline Vec load_bf16(const std::uint16_t* p) {
  return each([&](int i) { return from_bits(std::uint32_t{p[i]} << 16); });
}
inline Vec load_bf16_even(const std::uint16_t* p) {
  return each([&](int i) { return from_bits(std::uint32_t{p[2 * i]} << 16); });
}
inline Vec load_bf16_odd(const std::uint16_t* p) {
  return each([&](int i) { return from_bits(std::uint32_t{p[2 * i + 1]} << 16); });
}
inline void store_interleaved(float* p, const Vec& a, const Vec& b) {
  for (int i = 0; i < 16; ++i) {
    p[2 * i] = a.x[i];
    p[2 * i + 1] = b.x[i];
  }
}
inline void transpose(const std::byte* const* rows, std::int64_t offset, std::byte* out) {
  for (int row = 0; row < 16; ++row) {
    for (int word = 0; word < 16; ++word)
      __builtin_memcpy(out + word * 64 + row * 4, rows[row] + offset + word * 4, 4);
  }
}
inline void split_pairs(std::byte* p) {
  std::uint16_t x[32];
  std::uint16_t y[32];
  __builtin_memcpy(x, p, sizeof(x));
  for (int i = 0; i < 16; ++i) {
    y[i] = x[2 * i];
    y[16 + i] = x[2 * i + 1];
  }
  __builtin_memcpy(p, y, sizeof(y));
}
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
inline void prefetch_near(const void* p) { __builtin_prefetch(p); }

#endif

/// The sum of the lanes: i with i + 8, then + 4, + 2, + 1, at every level.
inline float sum(const Vec& a) {
  float x[16];
  store(x, a);
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  }
  return x[0];
}

}  // namespace
}  // namespace segue::attention::ISA
