// SPDX-License-Identifier: Apache-2.0
// Sixteen outputs side by side, in the registers of one instruction level: F = 16 floats, I = 16
// int32, W = 64 bytes (4 bytes for each of 16 outputs). AVX-512 has them as one register, AVX2 as
// two, the others as four vectors of 16 bytes. Only what the kernels need; included by *.isa.cc
// files inside nothing, everything has internal linkage.
//
// S is W prepared for dot_signed: unsigned with 128 added on AVX-512, whose dot product wants one
// unsigned side (the accumulator then starts at -128 * sum of the activations), plain int8
// elsewhere.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(ISA_avx512) || defined(ISA_avx2)
#include <immintrin.h>
#elif defined(ISA_neon)
#include <arm_neon.h>
#endif

namespace segue::ops::ISA {
namespace {

inline std::int32_t load_i32(const void* p) {
  std::int32_t value;
  std::memcpy(&value, p, 4);
  return value;
}
inline float load_f32(const void* p) {
  float value;
  std::memcpy(&value, p, 4);
  return value;
}

#if defined(ISA_avx512)

using F = __m512;
using I = __m512i;
using W = __m512i;
using S = __m512i;

inline F f_zero() { return _mm512_setzero_ps(); }
inline F f_set(float x) { return _mm512_set1_ps(x); }
inline F f_load(const void* p) { return _mm512_loadu_ps(p); }
inline void f_store(void* p, F a) { _mm512_storeu_ps(p, a); }
inline F f_load_part(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
inline void f_store_part(float* p, F a, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), a);
}
inline F f_add(F a, F b) { return _mm512_add_ps(a, b); }
inline F f_sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F f_mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F f_div(F a, F b) { return _mm512_div_ps(a, b); }
inline F f_fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F f_min(F a, F b) { return _mm512_min_ps(a, b); }
inline F f_max(F a, F b) { return _mm512_max_ps(a, b); }
inline F f_from_i(I a) { return _mm512_cvtepi32_ps(a); }
inline F f_from_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline F f_from_bf16(const void* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline I f_bits(F a) { return _mm512_castps_si512(a); }
inline F f_from_bits(I a) { return _mm512_castsi512_ps(a); }
inline I f_round(F a) { return _mm512_cvtps_epi32(a); }

inline I i_zero() { return _mm512_setzero_si512(); }
inline I i_set(std::int32_t x) { return _mm512_set1_epi32(x); }
inline I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I i_and(I a, I b) { return _mm512_and_si512(a, b); }
inline I i_or(I a, I b) { return _mm512_or_si512(a, b); }
inline I i_max(I a, I b) { return _mm512_max_epi32(a, b); }
template <int N>
inline I i_shl(I a) {
  return _mm512_slli_epi32(a, N);
}
template <int N>
inline I i_shr(I a) {
  return _mm512_srli_epi32(a, N);
}
inline I i_from_u8(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline I i_from_i8(const void* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline std::int32_t i_largest(I a) { return _mm512_reduce_max_epi32(a); }
inline std::int32_t i_sum(I a) { return _mm512_reduce_add_epi32(a); }
inline void i_store_i8(void* p, I a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}

inline W w_load(const void* p) { return _mm512_loadu_si512(p); }
inline void w_store(void* p, W a) { _mm512_storeu_si512(p, a); }
inline W w_low(W a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline W w_high(W a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
/// Adds 16 to the bytes whose bit is set in the u64 at `mask`.
inline W w_fifth(W a, const void* mask) {
  std::uint64_t bits;
  std::memcpy(&bits, mask, 8);
  return _mm512_mask_add_epi8(a, bits, a, _mm512_set1_epi8(16));
}
/// Puts bits 2 J and 2 J + 1 of every byte of `upper` at bits 4 and 5 of `a`.
template <int J>
inline W w_sixth(W a, W upper) {
  const W placed = J < 2 ? _mm512_slli_epi32(upper, J < 2 ? 4 - 2 * J : 0)
                         : _mm512_srli_epi32(upper, J > 2 ? 2 : 0);
  return _mm512_ternarylogic_epi32(a, placed, _mm512_set1_epi8(0x30), 0xf8);  // a | (placed & 0x30)
}

template <int Bias>
inline S s_from_biased(W a) {
  return _mm512_add_epi8(a, _mm512_set1_epi8(static_cast<char>(128 - Bias)));
}
inline S s_from_i8(W a) { return _mm512_xor_si512(a, _mm512_set1_epi8(static_cast<char>(0x80))); }
inline I dot_start(const void* minus_128_sum) { return _mm512_set1_epi32(load_i32(minus_128_sum)); }
/// The four bytes at x4 are broadcast by the instruction itself, a form that g++ 12 does not find
/// from intrinsics.
inline I dot_signed(I acc, S w, const void* x4) {
  typedef std::int32_t Bytes __attribute__((may_alias));
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*static_cast<const Bytes*>(x4)));
  return acc;
}
inline I dot_unsigned(I acc, W w, const void* x4) { return dot_signed(acc, w, x4); }

#elif defined(ISA_avx2)

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
using W = I;
using S = I;

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

template <int Bias>
inline S s_from_biased(W a) {
  const __m256i bias = _mm256_set1_epi8(Bias);
  return {_mm256_sub_epi8(a.lo, bias), _mm256_sub_epi8(a.hi, bias)};
}
inline S s_from_i8(W a) { return a; }
inline I dot_start(const void*) { return i_zero(); }
inline __m256i half_dot(__m256i acc, __m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(w, x);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
/// |w| <= 128 and |x| <= 127, so that a pair of products stays below 2^15.
inline I dot_signed(I acc, S w, const void* x4) {
  const __m256i x = _mm256_set1_epi32(load_i32(x4));
  return {half_dot(acc.lo, _mm256_abs_epi8(w.lo), _mm256_sign_epi8(x, w.lo)),
          half_dot(acc.hi, _mm256_abs_epi8(w.hi), _mm256_sign_epi8(x, w.hi))};
}
inline I dot_unsigned(I acc, W w, const void* x4) {
  const __m256i x = _mm256_set1_epi32(load_i32(x4));
  return {half_dot(acc.lo, w.lo, x), half_dot(acc.hi, w.hi, x)};
}

#else  // portable and neon: four vectors of the compiler's vector extension

typedef float f32x4 __attribute__((vector_size(16)));
typedef std::int32_t i32x4 __attribute__((vector_size(16)));
typedef std::uint32_t u32x4 __attribute__((vector_size(16)));
typedef std::int16_t i16x8 __attribute__((vector_size(16)));
typedef std::uint16_t u16x8 __attribute__((vector_size(16)));
typedef std::uint8_t u8x16 __attribute__((vector_size(16)));
typedef std::int8_t i8x16 __attribute__((vector_size(16)));

struct F {
  f32x4 v[4];
};
struct I {
  i32x4 v[4];
};
struct W {
  u8x16 v[4];
};
using S = W;

template <class T, class Fn>
inline T each(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}
template <class To, class From>
inline To cast(From a) {
  return __builtin_bit_cast(To, a);
}

inline F f_set(float x) {
  return each<F>([&](int) { return f32x4{x, x, x, x}; });
}
inline F f_zero() { return f_set(0.0f); }
inline F f_load(const void* p) {
  F a;
  std::memcpy(&a, p, 64);
  return a;
}
inline void f_store(void* p, F a) { std::memcpy(p, &a, 64); }
inline F f_add(F a, F b) {
  return each<F>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F f_sub(F a, F b) {
  return each<F>([&](int i) { return a.v[i] - b.v[i]; });
}
inline F f_mul(F a, F b) {
  return each<F>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F f_div(F a, F b) {
  return each<F>([&](int i) { return a.v[i] / b.v[i]; });
}
inline F f_fma(F a, F b, F c) {
#if defined(ISA_neon)
  return each<F>([&](int i) { return cast<f32x4>(vfmaq_f32(c.v[i], a.v[i], b.v[i])); });
#else
  return each<F>(
      [&](int i) { return a.v[i] * b.v[i] + c.v[i]; });  // no fused instruction at this level
#endif
}
inline F f_min(F a, F b) {
  return each<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F f_max(F a, F b) {
  return each<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F f_from_i(I a) {
  return each<F>([&](int i) { return __builtin_convertvector(a.v[i], f32x4); });
}
#if defined(ISA_neon)
inline F f_from_f16(const void* p) {
  return each<F>([&](int i) {
    return cast<f32x4>(vcvt_f32_f16(vld1_f16(static_cast<const float16_t*>(p) + 4 * i)));
  });
}
#else
inline float one_from_f16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
  std::uint32_t bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
  if (exponent == 31) bits = sign | 0x7f800000u | (mantissa << 13);
  if (exponent == 0)
    bits = sign | __builtin_bit_cast(std::uint32_t, static_cast<float>(mantissa) * 0x1p-24f);
  return __builtin_bit_cast(float, bits);
}
inline F f_from_f16(const void* p) {
  std::uint16_t half[16];
  float out[16];
  std::memcpy(half, p, 32);
  for (int i = 0; i < 16; ++i) out[i] = one_from_f16(half[i]);
  return f_load(out);
}
#endif
inline F f_from_bf16(const void* p) {
  std::uint16_t half[16];
  std::uint32_t out[16];
  std::memcpy(half, p, 32);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<std::uint32_t>(half[i]) << 16;
  return f_load(out);
}
inline I f_bits(F a) { return __builtin_bit_cast(I, a); }
inline F f_from_bits(I a) { return __builtin_bit_cast(F, a); }
/// Nearest even for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits. Saturates
/// nothing.
inline I f_round(F a) {
  const F shifted = f_add(a, f_set(12582912.0f));
  return each<I>([&](int i) { return cast<i32x4>(shifted.v[i]) - 0x4b400000; });
}

inline I i_set(std::int32_t x) {
  return each<I>([&](int) { return i32x4{x, x, x, x}; });
}
inline I i_zero() { return i_set(0); }
inline I i_add(I a, I b) {
  return each<I>([&](int i) { return a.v[i] + b.v[i]; });
}
inline I i_and(I a, I b) {
  return each<I>([&](int i) { return a.v[i] & b.v[i]; });
}
inline I i_or(I a, I b) {
  return each<I>([&](int i) { return a.v[i] | b.v[i]; });
}
inline I i_max(I a, I b) {
  return each<I>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int N>
inline I i_shl(I a) {
  return each<I>([&](int i) { return cast<i32x4>(cast<u32x4>(a.v[i]) << N); });
}
template <int N>
inline I i_shr(I a) {
  return each<I>([&](int i) { return cast<i32x4>(cast<u32x4>(a.v[i]) >> N); });
}
template <class T>
inline I i_from_bytes(const void* p) {
  T bytes[16];
  std::int32_t out[16];
  std::memcpy(bytes, p, 16);
  for (int i = 0; i < 16; ++i) out[i] = bytes[i];
  I a;
  std::memcpy(&a, out, 64);
  return a;
}
inline I i_from_u8(const void* p) { return i_from_bytes<std::uint8_t>(p); }
inline I i_from_i8(const void* p) { return i_from_bytes<std::int8_t>(p); }
inline std::int32_t i_largest(I a) {
  std::int32_t x[16];
  std::memcpy(x, &a, 64);
  std::int32_t largest = x[0];
  for (int i = 1; i < 16; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}
inline std::int32_t i_sum(I a) {
  std::int32_t x[16];
  std::memcpy(x, &a, 64);
  std::int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += x[i];
  return sum;
}
inline void i_store_i8(void* p, I a) {
  std::int32_t x[16];
  std::int8_t out[16];
  std::memcpy(x, &a, 64);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<std::int8_t>(x[i]);
  std::memcpy(p, out, 16);
}

inline W w_load(const void* p) {
  W a;
  std::memcpy(&a, p, 64);
  return a;
}
inline void w_store(void* p, W a) { std::memcpy(p, &a, 64); }
inline W w_low(W a) {
  return each<W>([&](int i) { return a.v[i] & 15; });
}
inline W w_high(W a) {
  return each<W>([&](int i) { return a.v[i] >> 4; });
}
inline W w_fifth(W a, const void* mask) {
  const u8x16 bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  std::uint8_t m[8];
  std::memcpy(m, mask, 8);
  return each<W>([&](int i) {
    const std::uint8_t l = m[2 * i], h = m[2 * i + 1];
    const u8x16 spread = {l, l, l, l, l, l, l, l, h, h, h, h, h, h, h, h};
    return a.v[i] | (cast<u8x16>((spread & bit) == bit) & 16);
  });
}
template <int J>
inline W w_sixth(W a, W upper) {
  return each<W>([&](int i) { return a.v[i] | (((upper.v[i] >> (2 * J)) & 3) << 4); });
}
template <int Bias>
inline S s_from_biased(W a) {
  return each<W>([&](int i) { return a.v[i] - static_cast<std::uint8_t>(Bias); });
}
inline S s_from_i8(W a) { return a; }
inline I dot_start(const void*) { return i_zero(); }

#if defined(ISA_neon)
inline I dot_signed(I acc, S w, const void* x4) {
  const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(load_i32(x4)));
  return each<I>([&](int i) {
    return cast<i32x4>(vdotq_s32(cast<int32x4_t>(acc.v[i]), cast<int8x16_t>(w.v[i]), x));
  });
}
/// Unsigned weights are below 64, so they are also signed ones.
inline I dot_unsigned(I acc, W w, const void* x4) { return dot_signed(acc, w, x4); }
#else
/// Four products per output: bytes as the two halves of 16-bit lanes (a product fits), then the two
/// 16-bit products of an output as the halves of its 32-bit lane.
inline i32x4 quarter_dot(i32x4 acc, i16x8 even, i16x8 odd, i16x8 x_even, i16x8 x_odd) {
  const i32x4 p = cast<i32x4>(even * x_even), q = cast<i32x4>(odd * x_odd);
  return acc + (cast<i32x4>(cast<u32x4>(p) << 16) >> 16) + (p >> 16) +
         (cast<i32x4>(cast<u32x4>(q) << 16) >> 16) + (q >> 16);
}
inline I dot_signed(I acc, S w, const void* x4) {
  std::int8_t x[4];
  std::memcpy(x, x4, 4);
  const i16x8 x_even = {x[0], x[2], x[0], x[2], x[0], x[2], x[0], x[2]};
  const i16x8 x_odd = {x[1], x[3], x[1], x[3], x[1], x[3], x[1], x[3]};
  return each<I>([&](int i) {
    const auto pairs = cast<u16x8>(w.v[i]);
    return quarter_dot(acc.v[i], cast<i16x8>(pairs << 8) >> 8, cast<i16x8>(pairs) >> 8, x_even,
                       x_odd);
  });
}
inline I dot_unsigned(I acc, W w, const void* x4) { return dot_signed(acc, w, x4); }  // below 64
#endif

#endif

/// Into the second-level cache. Inlined by force: g++ 12 takes a function that only prefetches for
/// one without effect and drops the call.
[[gnu::always_inline]] inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

#if !defined(ISA_avx512)
inline F f_load_part(const float* p, int n) {
  float x[16] = {};
  std::memcpy(x, p, static_cast<std::size_t>(n) * sizeof(float));
  return f_load(x);
}
inline void f_store_part(float* p, F a, int n) {
  float x[16];
  f_store(x, a);
  std::memcpy(p, x, static_cast<std::size_t>(n) * sizeof(float));
}
#endif

}  // namespace
}  // namespace segue::ops::ISA
