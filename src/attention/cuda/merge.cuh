// SPDX-License-Identifier: Apache-2.0
// The one rule by which units of a row become the row's result. Everything that merges (a segment
// folded in place, the reduction kernel) calls these functions in ascending unit order, with every
// rounding written out, so that no compiler and no place of execution changes a bit. Maxima are in
// the log2 domain: score * scale * log2(e).
#pragma once

#include <cmath>

#include "attention/cuda/arguments.h"
#include "attention/cuda/ptx.cuh"

namespace segue::attention::cuda {

/// How much of the accumulated state and of the next unit the merged state keeps.
struct Weights {
  float maximum;
  float kept;
  float added;
};

/// exp2(from - to); 0 for an empty state (from = -inf), whatever `to` is.
__device__ __forceinline__ float decay(float from, float to) {
  return from == -INFINITY ? 0.0f : exp2_approx(__fsub_rn(from, to));
}

/// An empty unit (-inf, 0, 0) gives kept = 1, added = 0 and changes no bit.
__device__ __forceinline__ Weights merge_weights(float maximum, float unit_maximum) {
  const float merged = fmaxf(maximum, unit_maximum);
  return {merged, decay(maximum, merged), decay(unit_maximum, merged)};
}

/// For the sum of exponentials and for every element of the output.
__device__ __forceinline__ float merge(float value, float unit_value, float kept, float added) {
  return __fmaf_rn(unit_value, added, __fmul_rn(value, kept));
}

/// What a finished row needs: out = o * factor, lse in natural logarithm.
struct Finish {
  float factor;
  float lse;
};

/// Of a row of q head `head`. A head's sink, if there are any, is a score with no value, added
/// once, after the last merge.
__device__ __forceinline__ Finish finish(float maximum, float sum, const Arguments& args,
                                         int head) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const float sink = args.sinks != nullptr ? __fmul_rn(args.sinks[head], kLog2E) : -INFINITY;
  const Weights weights = merge_weights(maximum, sink);
  const float total = merge(sum, 1.0f, weights.kept, weights.added);
  constexpr float kLn2 = 0.693147180559945309f;
  return {__fmul_rn(weights.kept, reciprocal_approx(total)),
          __fmul_rn(__fadd_rn(weights.maximum, __log2f(total)), kLn2)};
}

}  // namespace segue::attention::cuda
