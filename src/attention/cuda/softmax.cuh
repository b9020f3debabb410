// SPDX-License-Identifier: Apache-2.0
// What every family of decode kernels does with a tile of scores: the cap, the mask, the running
// softmax of the two rows that a thread holds, and packing into the KV's type. One instruction
// sequence for all. Of the accumulators of a tile, element i is row i / 2 % 2 of the thread's two
// and key 8 (i / 4) + 2 (lane % 4) + i % 2. What is rarely needed is read from Arguments there and
// then.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "attention/cuda/arguments.h"
#include "attention/cuda/ptx.cuh"

namespace segue::attention::cuda {

__device__ __forceinline__ std::uint32_t pack(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ __forceinline__ std::uint32_t pack(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

/// tanh: a series for small arguments, where 1 - 2 / (exp(2x) + 1) would cancel.
__device__ __forceinline__ float cap(float x) {
  constexpr float kTwoLog2E = 2.885390081777926815f;
  const float large =
      __fsub_rn(1.0f, __fdividef(2.0f, __fadd_rn(exp2_approx(__fmul_rn(x, kTwoLog2E)), 1.0f)));
  const float square = __fmul_rn(x, x);
  float series = __fmaf_rn(square, 62.0f / 2835.0f, -17.0f / 315.0f);
  series = __fmaf_rn(series, square, 2.0f / 15.0f);
  series = __fmaf_rn(series, square, -1.0f / 3.0f);
  series = __fmaf_rn(__fmul_rn(series, square), x, x);
  return square < 0.0625f ? series : large;
}

template <int kScores>
__device__ __forceinline__ void cap_scores(float (&s)[kScores], const Arguments& args) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) s[i] = cap(__fmul_rn(s[i], args.score_scale));
}

/// Scores of tile `tile`: those of keys past a row's last one or before its window become -inf.
template <int kScores>
__device__ __forceinline__ void hide_unseen(float (&s)[kScores], const Arguments& args, int tile,
                                            const int (&last_key)[2], int lane) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int key = tile * (2 * kScores) + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    const int last = last_key[i / 2 % 2];
    const bool visible = key <= last && (args.window == 0 || key > last - args.window);
    s[i] = visible ? s[i] : -INFINITY;
  }
}

/// Probabilities as the first operand of the second product.
template <class T, int kScores>
__device__ __forceinline__ void pack_probabilities(std::uint32_t (&p)[kScores / 8][4],
                                                   const float (&s)[kScores]) {
#pragma unroll
  for (int i = 0; i < kScores / 8; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) p[i][e] = pack(s[8 * i + 2 * e], s[8 * i + 2 * e + 1], T{});
  }
}

/// The two rows that a thread holds of its warp's sixteen: running maximum (log2 domain) and this
/// thread's part of the sum, over the keys of the current unit.
struct RowState {
  float maximum[2];
  float sum[2];
};

/// Exponentials of half precision lose their last bits below 2^-14: they are kept 2^15 times
/// larger, by a maximum that is 15 too small. Sums, outputs and merges carry the same factor, so
/// nothing else knows.
template <class T>
inline constexpr float kHeadroom = std::is_same_v<T, __half> ? 15.0f : 0.0f;

/// Turns scores into probabilities in place and moves the state on; `alpha` is what older output
/// must be scaled by. With a kSlack the maximum moves on only where it grows by more than that, so
/// that most tiles leave the older output as it is; probabilities reach 2^kSlack (the idea is that
/// of FlashAttention-4). What it is depends on the row's own scores alone.
template <class T, int kSlack = 0, int kScores>
__device__ __forceinline__ void softmax(float (&s)[kScores], RowState& state, float (&alpha)[2],
                                        float exponent_scale) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float maximum = -INFINITY;
#pragma unroll
    for (int i = 0; i < kScores; i += 4)
      maximum = fmaxf(maximum, fmaxf(s[i + 2 * row], s[i + 2 * row + 1]));
    maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 2));
    const float here = __fmaf_rn(maximum, exponent_scale, -kHeadroom<T>);
    const float before = state.maximum[row];
    const float merged = kSlack == 0                        ? fmaxf(before, here)
                         : here > __fadd_rn(before, kSlack) ? here
                                                            : before;
    const float reference = merged == -INFINITY ? 0.0f : merged;
    alpha[row] = exp2_approx(__fsub_rn(state.maximum[row], reference));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
#pragma unroll
      for (int e = 2 * row; e < 2 * row + 2; ++e) {
        s[i + e] = exp2_approx(__fmaf_rn(s[i + e], exponent_scale, -reference));
        sum = __fadd_rn(sum, s[i + e]);
      }
    }
    state.maximum[row] = merged;
    state.sum[row] = __fmaf_rn(state.sum[row], alpha[row], sum);
  }
}

/// Scales older output, where any row of the warp has a new maximum.
template <int kOutputs>
__device__ __forceinline__ void scale_output(float (&o)[kOutputs], const float (&alpha)[2]) {
  if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = __fmul_rn(o[i], alpha[i / 2 % 2]);
  }
}

}  // namespace segue::attention::cuda
