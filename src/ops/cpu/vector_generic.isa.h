// SPDX-License-Identifier: Apache-2.0
// vector.isa.h in four vectors of 16 bytes each, by the compiler's vector extension: the portable
// level, and NEON with a few intrinsics. Only included there.
#pragma once

#if defined(ISA_neon)
#include <arm_neon.h>
#endif

#include <cstdint>
#include <cstring>

namespace segue::ops::ISA {
namespace {

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
template <int Bits>
inline W w_center(W a) {
  return each<W>([&](int i) { return a.v[i] - static_cast<std::uint8_t>(1 << (Bits - 1)); });
}
inline W w_from_i8(W a) { return a; }
constexpr int kernel_bits(int) { return 8; }
template <int Bits>
inline I dot_start(const void*) {
  return i_zero();
}

#if defined(ISA_neon)
inline I dot4(I acc, W w, const void* x4) {
  const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(load_i32(x4)));
  return each<I>([&](int i) {
    return cast<i32x4>(vdotq_s32(cast<int32x4_t>(acc.v[i]), cast<int8x16_t>(w.v[i]), x));
  });
}
#else
/// Four products per output: bytes as the two halves of 16-bit lanes (a product fits), then the two
/// 16-bit products of an output as the halves of its 32-bit lane.
inline i32x4 quarter_dot(i32x4 acc, i16x8 even, i16x8 odd, i16x8 x_even, i16x8 x_odd) {
  const i32x4 p = cast<i32x4>(even * x_even), q = cast<i32x4>(odd * x_odd);
  return acc + (cast<i32x4>(cast<u32x4>(p) << 16) >> 16) + (p >> 16) +
         (cast<i32x4>(cast<u32x4>(q) << 16) >> 16) + (q >> 16);
}
inline I dot4(I acc, W w, const void* x4) {
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
#endif

}  // namespace
}  // namespace segue::ops::ISA
