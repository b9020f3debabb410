// SPDX-License-Identifier: Apache-2.0
// vector.isa.h in two 256-bit registers each; only included there.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace segue::ops::ISA {
namespace {

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
using W = I;

inline F f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F f_set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F f_load(const void* p) {
  const auto* x = static_cast<const float*>(p);
  return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}
inline void f_store(void* p, F a) {
  auto* x = static_cast<float*>(p);
  _mm256_storeu_ps(x, a.lo);
  _mm256_storeu_ps(x + 8, a.hi);
}
inline F f_add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F f_sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F f_mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F f_div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F f_fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F f_min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F f_max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F f_from_i(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline F f_from_f16(const void* p) {
  const auto* x = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x + 1))};
}
inline __m256 half_from_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline F f_from_bf16(const void* p) {
  const auto* x = static_cast<const __m128i*>(p);
  return {half_from_bf16(_mm_loadu_si128(x)), half_from_bf16(_mm_loadu_si128(x + 1))};
}
inline I f_bits(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline F f_from_bits(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline I f_round(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }

inline I i_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I i_set(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I i_add(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline I i_and(I a, I b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
inline I i_or(I a, I b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
inline I i_max(I a, I b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
template <int N>
inline I i_shl(I a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
inline I i_shr(I a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
inline I i_from_u8(const void* p) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
inline I i_from_i8(const void* p) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
inline std::int32_t i_largest(I a) {
  const __m256i m = _mm256_max_epi32(a.lo, a.hi);
  __m128i x = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1));
  return _mm_cvtsi128_si32(x);
}
inline std::int32_t i_sum(I a) {
  const __m256i m = _mm256_add_epi32(a.lo, a.hi);
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
  return _mm_cvtsi128_si32(x);
}
inline void i_store_i8(void* p, I a) {
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storeu_si128(static_cast<__m128i*>(p), bytes);
}

inline W w_load(const void* p) {
  const auto* x = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(x), _mm256_loadu_si256(x + 1)};
}
inline void w_store(void* p, W a) {
  auto* x = static_cast<__m256i*>(p);
  _mm256_storeu_si256(x, a.lo);
  _mm256_storeu_si256(x + 1, a.hi);
}
inline W w_low(W a) {
  const __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low)};
}
inline W w_high(W a) { return w_low({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)}); }
inline __m256i half_fifth(__m256i a, std::int32_t mask) {
  const __m256i spread =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  const __m256i picked =
      _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(mask), spread), bit);
  return _mm256_or_si256(a, _mm256_and_si256(_mm256_cmpeq_epi8(picked, bit), _mm256_set1_epi8(16)));
}
inline W w_fifth(W a, const void* mask) {
  return {half_fifth(a.lo, load_i32(mask)),
          half_fifth(a.hi, load_i32(static_cast<const char*>(mask) + 4))};
}
template <int J>
inline __m256i half_sixth(__m256i a, __m256i upper) {
  const __m256i placed = J < 2 ? _mm256_slli_epi32(upper, J < 2 ? 4 - 2 * J : 0)
                               : _mm256_srli_epi32(upper, J > 2 ? 2 : 0);
  return _mm256_or_si256(a, _mm256_and_si256(placed, _mm256_set1_epi8(0x30)));
}
template <int J>
inline W w_sixth(W a, W upper) {
  return {half_sixth<J>(a.lo, upper.lo), half_sixth<J>(a.hi, upper.hi)};
}

template <int Bits>
inline W w_center(W a) {
  return a;  // stays unsigned: dot_start takes the bias off
}
inline W w_from_i8(W a) { return a; }
constexpr int kernel_bits(int bits) { return bits; }
template <int Bits>
inline I dot_start(const void* minus_128_sum) {
  if constexpr (Bits == 8) return i_zero();
  const __m256i start = _mm256_srai_epi32(_mm256_set1_epi32(load_i32(minus_128_sum)), 8 - Bits);
  return {start, start};
}

inline __m256i widen_add(__m256i acc, __m256i pairs) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/// int8 weights: |w| <= 128 and |x| <= 127, so that a pair of products stays below 2^15.
inline I dot_i8(I acc, W w, const void* x4) {
  const __m256i x = _mm256_set1_epi32(load_i32(x4));
  return {
      widen_add(acc.lo, _mm256_maddubs_epi16(_mm256_abs_epi8(w.lo), _mm256_sign_epi8(x, w.lo))),
      widen_add(acc.hi, _mm256_maddubs_epi16(_mm256_abs_epi8(w.hi), _mm256_sign_epi8(x, w.hi)))};
}

/// Unsigned weights below 2^Bits: pairs of products of up to 2^(7 - Bits) groups fit 16 bits
/// together (2 * 127 * 15 * 8, 2 * 127 * 31 * 4, 2 * 127 * 63 * 2 < 2^15) before they are widened.
template <int Bits, int R, int Groups, class Weights>
inline void dot_groups(const Weights& w, const std::uint8_t* x, I (&dot)[R]) {
  constexpr int kTogether = Bits == 8 ? 1 : (1 << (7 - Bits)) < Groups ? 1 << (7 - Bits) : Groups;
#pragma GCC unroll 8
  for (int first = 0; first < Groups; first += kTogether) {
    if constexpr (Bits == 8) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) dot[r] = dot_i8(dot[r], w[first], x + 32 * r + 4 * first);
    } else {
      I pairs[R];
#pragma GCC unroll 8
      for (int g = first; g < first + kTogether; ++g) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const __m256i x4 = _mm256_set1_epi32(load_i32(x + 32 * r + 4 * g));
          const I p = {_mm256_maddubs_epi16(w[g].lo, x4), _mm256_maddubs_epi16(w[g].hi, x4)};
          pairs[r] = g == first ? p
                                : I{_mm256_add_epi16(pairs[r].lo, p.lo),
                                    _mm256_add_epi16(pairs[r].hi, p.hi)};
          // Keeps g++ from adding the products as a tree: it would spill all of them first.
          asm("" : "+x"(pairs[r].lo), "+x"(pairs[r].hi));
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        dot[r] = {widen_add(dot[r].lo, pairs[r].lo), widen_add(dot[r].hi, pairs[r].hi)};
      }
    }
  }
}

}  // namespace
}  // namespace segue::ops::ISA
