// SPDX-License-Identifier: Apache-2.0
// vector.isa.h in one 512-bit register each; only included there.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace segue::ops::ISA {
namespace {

using F = __m512;
using I = __m512i;
using W = __m512i;

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

template <int Bits>
inline W w_center(W a) {
  return _mm512_add_epi8(a, _mm512_set1_epi8(static_cast<char>(128 - (1 << (Bits - 1)))));
}
inline W w_from_i8(W a) { return _mm512_xor_si512(a, _mm512_set1_epi8(static_cast<char>(0x80))); }
constexpr int kernel_bits(int) { return 8; }
template <int Bits>
inline I dot_start(const void* minus_128_sum) {
  return _mm512_set1_epi32(load_i32(minus_128_sum));
}
/// The four bytes at x4 are broadcast by the instruction itself, a form that g++ 12 does not find
/// from intrinsics.
inline I dot4(I acc, W w, const void* x4) {
  typedef std::int32_t Bytes __attribute__((may_alias));
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*static_cast<const Bytes*>(x4)));
  return acc;
}

}  // namespace
}  // namespace segue::ops::ISA
