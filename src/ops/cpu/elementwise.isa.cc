// SPDX-License-Identifier: Apache-2.0
// Elementwise functions and norms. All are bound by reading and writing a few kilobytes in the
// first-level cache: one pass, 16 elements at a time, the last ones padded with zeros, so that
// every element sees the same instructions.
#include "ops/cpu/elementwise.h"
#include "ops/cpu/vector.isa.h"

namespace segue::ops::ISA {
namespace {

constexpr int kLanes = 16;

/// x = n ln 2 + r, |r| <= 0.35: returns exp(r) - 1 as its Taylor polynomial of degree 7 (relative
/// error of exp below 2^-27) and 2^n. The argument must be within [-87, 88].
inline F exp_parts(F x, F& power) {
  const I n = f_round(f_mul(x, f_set(1.44269504f)));
  const F whole = f_from_i(n);
  F r = f_fma(whole, f_set(-0.693359375f),
              x);  // ln 2 in two parts; the first has 9 bits, its product is exact
  r = f_fma(whole, f_set(2.12194440e-4f), r);
  F p = f_set(1.0f / 5040);
  p = f_fma(p, r, f_set(1.0f / 720));
  p = f_fma(p, r, f_set(1.0f / 120));
  p = f_fma(p, r, f_set(1.0f / 24));
  p = f_fma(p, r, f_set(1.0f / 6));
  p = f_fma(p, r, f_set(0.5f));
  p = f_fma(f_mul(p, r), r, r);
  power = f_from_bits(i_shl<23>(i_add(n, i_set(127))));
  return p;
}

/// NaN stays NaN: f_min and f_max give their second operand when either is NaN.
inline F clamp(F x, float low, float high) { return f_max(f_set(low), f_min(f_set(high), x)); }

/// x / (1 + exp(-z)). Above z = 87 and below -87 the exponential is that of the limit: the quotient
/// is x or below 1e-37 x.
inline F times_logistic(F x, F z) {
  F power;
  const F p = exp_parts(clamp(f_sub(f_zero(), z), -87.0f, 87.0f), power);
  return f_div(x, f_add(f_set(1.0f), f_fma(p, power, power)));
}

/// tanh(x) = t / (t + 2), t = exp(2 x) - 1, on |x|, sign restored. Beyond 10 it is 1 to the last
/// bit.
inline F tanh16(F x) {
  const I sign = i_and(f_bits(x), i_set(static_cast<std::int32_t>(0x80000000u)));
  const F size = f_min(f_set(10.0f), f_from_bits(i_and(f_bits(x), i_set(0x7fffffff))));
  F power;
  const F p = exp_parts(f_add(size, size), power);
  const F t = f_fma(p, power, f_sub(power, f_set(1.0f)));
  return f_from_bits(i_or(f_bits(f_div(t, f_add(t, f_set(2.0f)))), sign));
}

/// out[i] = fn(x[i], y[i]).
template <class Fn>
inline void for_each_pair(const float* x, const float* y, std::int64_t n, float* out, Fn fn) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f_store(out + i, fn(f_load(x + i), f_load(y + i)));
  if (const int rest = static_cast<int>(n - i); rest > 0) {
    f_store_part(out + i, fn(f_load_part(x + i, rest), f_load_part(y + i, rest)), rest);
  }
}

void gelu_tanh_mul(const float* gate, const float* up, std::int64_t n, float* out) {
  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
  for_each_pair(gate, up, n, out, [](F x, F y) {
    const F cubic = f_fma(f_mul(f_set(0.044715f), f_mul(x, x)), x, x);
    return f_mul(times_logistic(x, f_mul(f_set(1.59576912f), cubic)), y);
  });
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* out) {
  for_each_pair(gate, up, n, out, [](F x, F y) { return f_mul(times_logistic(x, x), y); });
}

void add(const float* a, const float* b, std::int64_t n, float* out) {
  for_each_pair(a, b, n, out, [](F x, F y) { return f_add(x, y); });
}

void scale(const float* x, float factor, std::int64_t n, float* out) {
  for_each_pair(x, x, n, out, [factor](F a, F) { return f_mul(a, f_set(factor)); });
}

void softcap(const float* x, float cap, std::int64_t n, float* out) {
  const float inverse = 1.0f / cap;
  for_each_pair(x, x, n, out, [cap, inverse](F a, F) {
    return f_mul(f_set(cap), tanh16(f_mul(a, f_set(inverse))));
  });
}

/// Sum of the lanes as a fixed tree.
inline float sum_lanes(F a) {
  float x[kLanes];
  f_store(x, a);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  }
  return x[0];
}

/// Four accumulators, vector v into accumulator v mod 4: short dependency chains, one fixed order.
inline float sum_of_squares(const float* x, std::int64_t n) {
  F acc[4] = {f_zero(), f_zero(), f_zero(), f_zero()};
  std::int64_t i = 0;
  int next = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int a = 0; a < 4; ++a) {
      const F v = f_load(x + i + a * kLanes);
      acc[a] = f_fma(v, v, acc[a]);
    }
  }
  for (; i < n; i += kLanes) {
    const int rest = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    const F v = f_load_part(x + i, rest);
    acc[next] = f_fma(v, v, acc[next]);
    ++next;
  }
  return sum_lanes(f_add(f_add(acc[0], acc[1]), f_add(acc[2], acc[3])));
}

void rms_norm(const float* x, std::int64_t x_stride, const float* weight, float eps,
              std::int64_t rows, std::int64_t n, float* out, std::int64_t out_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* in = x + row * x_stride;
    const float mean = sum_of_squares(in, n) / static_cast<float>(n);
    const F factor = f_set(1.0f / __builtin_sqrtf(mean + eps));
    for_each_pair(in, weight != nullptr ? weight : in, n, out + row * out_stride,
                  [factor, weight](F a, F w) {
                    const F unit = f_mul(a, factor);
                    return weight != nullptr ? f_mul(unit, w) : unit;
                  });
  }
}

/// Pairs at (i, i + distance). Products and sums are rounded one by one, the last pairs like the
/// first.
inline void rotate_split(float* x, const float* cosine, const float* sine, int half, int distance) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F a = f_load(x + i), b = f_load(x + distance + i), c = f_load(cosine + i),
            s = f_load(sine + i);
    f_store(x + i, f_sub(f_mul(a, c), f_mul(b, s)));
    f_store(x + distance + i, f_add(f_mul(b, c), f_mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[distance + i];
    x[i] = a * cosine[i] - b * sine[i];
    x[distance + i] = b * cosine[i] + a * sine[i];
  }
}

inline void rotate_adjacent(float* x, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cosine[i] - b * sine[i];
    x[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

void rope(float* x, std::int64_t x_stride, const float* cos_sin, std::int64_t rows,
          const RopeShape& shape) {
  const int half = shape.rotary / 2;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* cosine = cos_sin + row * shape.rotary;
    for (int head = 0; head < shape.heads; ++head) {
      float* at = x + row * x_stride + static_cast<std::int64_t>(head) * shape.head_dim;
      if (shape.pairs == RopePairs::kSplitHalf) {
        rotate_split(at, cosine, cosine + half, half, shape.distance);
      } else {
        rotate_adjacent(at, cosine, cosine + half, half);
      }
    }
  }
}

}  // namespace

extern const Elementwise kElementwise;
const Elementwise kElementwise{rms_norm, rope, gelu_tanh_mul, silu_mul, add, scale, softcap};

}  // namespace segue::ops::ISA
