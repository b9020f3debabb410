// SPDX-License-Identifier: Apache-2.0
// Sixteen outputs side by side, in the registers of one instruction level: F = 16 floats, I = 16
// int32, W = 64 bytes (4 bytes for each of 16 outputs). AVX-512 has them as one register, AVX2 as
// two, the others as four vectors of 16 bytes. Only what the kernels need; included by *.isa.cc
// files inside nothing, everything has internal linkage.
//
// Dot products of 4 * Groups bytes of each output with those of R rows (32 bytes apart), for
// weights of Bits bits: w_center prepares weights that are stored with 2^(Bits - 1) added,
// w_from_i8 plain int8; unsigned weights below 64 are used as they are. dot_start is what the sum
// of centred weights starts from, given -128 * sum of the row's bytes. On AVX-512, whose
// instruction wants one unsigned side, all centred weights have 128 added; AVX2 keeps short ones
// unsigned; the others take the bias off. kernel_bits(bits) is the same for widths that need no
// kernel of their own.
#pragma once

#include <cstdint>
#include <cstring>

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

}  // namespace
}  // namespace segue::ops::ISA

#if defined(ISA_avx512)
#include "ops/cpu/vector_avx512.isa.h"
#elif defined(ISA_avx2)
#include "ops/cpu/vector_avx2.isa.h"
#else
#include "ops/cpu/vector_generic.isa.h"
#endif

namespace segue::ops::ISA {
namespace {

/// Into the second-level cache. Inlined by force: g++ 12 takes a function that only prefetches for
/// one without effect and drops the call.
[[gnu::always_inline]] inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

#if !defined(ISA_avx2)
/// The rows' chains side by side: an instruction that enters the scheduler is then nearly ready.
template <int Bits, int R, int Groups, class Weights>
[[gnu::always_inline]] inline void dot_groups(const Weights& w, const std::uint8_t* x,
                                              I (&dot)[R]) {
#pragma GCC unroll 8
  for (int g = 0; g < Groups; ++g) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) dot[r] = dot4(dot[r], w[g], x + 32 * r + 4 * g);
  }
}
#endif

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
