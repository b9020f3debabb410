// SPDX-License-Identifier: Apache-2.0
// exp and tanh of sixteen floats, by range reduction and polynomials of our own (weighted minimax
// fits): the same operations in every lane, so a value never depends on its neighbours. Errors are
// tested against double.
#pragma once

#include "attention/cpu/vec.isa.h"

namespace segue::attention::ISA {
namespace {

/// e^x for x <= 88, error below 1.5 ulp; 0 for x < -87.33 (the smallest normal number), NaN for
/// NaN.
inline Vec exp(const Vec& x) {
  const Vec lowest = set(-87.33f);
  const Vec clamped = larger(lowest, x);
  // n = round(x / ln 2) by adding 1.5 * 2^23; ln 2 in two parts, the first with few enough bits
  // that n * part is exact.
  const Vec magic = set(12582912.0f);
  const Vec rounded = fma(clamped, set(1.44269504f), magic);
  const Vec n = sub(rounded, magic);
  Vec r = fma(n, set(-0.693359375f), clamped);
  r = fma(n, set(2.12194440e-4f), r);
  // e^r = 1 + r + r^2 p(r) on |r| <= ln(2) / 2, relative error 3e-9.
  Vec p = fma(set(0.00138145406f), r, set(0.00836874545f));
  p = fma(p, r, set(0.041668389f));
  p = fma(p, r, set(0.166665211f));
  p = fma(p, r, set(0.49999994f));
  const Vec y = add(fma(mul(r, r), p, r), set(1.0f));
  return select_below(x, lowest, zero(), scale_by_power(y, rounded));
}

/// tanh x, error below 3 ulp.
inline Vec tanh(const Vec& x) {
  const Vec size = magnitude(x);
  // |x| < 0.625: x + x^3 p(x^2), relative error 5e-9.
  const Vec square = mul(x, x);
  Vec p = fma(set(-0.0056669754f), square, set(0.0206061751f));
  p = fma(p, square, set(-0.0537300073f));
  p = fma(p, square, set(0.133313313f));
  p = fma(p, square, set(-0.333332777f));
  const Vec near = fma(mul(size, square), p, size);
  // Else 1 - 2 / (e^2|x| + 1); beyond 10 that is 1.
  const Vec bounded = select_below(set(10.0f), size, set(10.0f), size);
  const Vec grown = exp(add(bounded, bounded));
  const Vec far = sub(set(1.0f), div(set(2.0f), add(grown, set(1.0f))));
  return with_sign_of(select_below(size, set(0.625f), near, far), x);
}

}  // namespace
}  // namespace segue::attention::ISA
