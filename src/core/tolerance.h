// SPDX-License-Identifier: Apache-2.0
// How far a result may be from its reference: three grades, and the only place with a tolerance in
// it. A test says which grade applies and brings the quantities; it never brings a constant.
// Nothing here knows a test framework.
//   A exact     copies, formats, tokens, plans, batch or split invariance: bytes are compared
//   B derived   a kernel against a reference in double: a bound from the rounding of its operations
//   C relative  quantised caches, logits of whole models: no worse than twice a plain
//   implementation
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "segue/types.h"

namespace segue::core {

/// `message` says where and how far; also when `ok`, so that a test can print the drift before it
/// fails.
struct Verdict {
  bool ok = true;
  double worst_ratio = 0;  // grades B and C: largest error / allowed error; above 1 fails
  std::string message;
};

/// Half the distance between 1 and the next number: f32 2^-24, f16 2^-11, bf16 2^-8.
double unit_roundoff(KvType type);

/// Half the smallest number above 0, by which a result that underflows may be off whatever its
/// size: f32 2^-150, f16 2^-25, bf16 2^-134. Added to a grade-B bound of results stored in the
/// type.
double unit_underflow(KvType type);

/// Grade A on raw memory of elements of `element_bytes`: equal bytes, so -0 differs from 0 and NaN
/// equals itself. `shape` [..., contiguous] gives the coordinates in the message; empty: a flat
/// index.
Verdict exact_bytes(std::span<const std::byte> found, std::span<const std::byte> expected,
                    std::size_t element_bytes, std::span<const std::int64_t> shape = {});

/// Grade A on arrays of plain numbers.
template <class A, class B>
Verdict exact(const A& found, const B& expected, std::span<const std::int64_t> shape = {}) {
  const std::span left(found);
  const std::span right(expected);
  using T = std::remove_cv_t<typename decltype(left)::element_type>;
  static_assert(std::is_same_v<T, std::remove_cv_t<typename decltype(right)::element_type>>);
  static_assert(std::is_arithmetic_v<T>, "padding bytes cannot be compared");
  return exact_bytes(std::as_bytes(left), std::as_bytes(right), sizeof(T), shape);
}

/// What the grade-B bound of one element of an attention output depends on.
struct DerivedTerms {
  double reference = 0;     // the element, computed in double
  double absolute_sum = 0;  // sum over keys of p * |v|: the same element without cancellation
  double score_sum = 0;     // S: largest scaled sum of |q_i k_i| over the keys of the row
};

/// Grade B: eps_out |ref| + k eps_acc (1 + S) sum p|v| with k = 8. eps_out is the roundoff of the
/// stored result, eps_acc that of the type in which p enters the second product. The first term is
/// the final rounding; in the second, rounding one score moves its exponential by S relative
/// roundoffs, and the sum carries it along. Correct float kernels of up to 4,096 keys were measured
/// to need no more than k = 5.8. Plus 2^-120: exponentials below the smallest normal float, 2^-126,
/// may be flushed to zero (a row whose sink outweighs all its keys).
double derived_bound(const DerivedTerms& terms, double eps_out, double eps_acc);

/// Grade B for a sum of `terms` float terms, each of a few roundings, added one after the other:
/// (terms + 4) roundoffs of the sum of their magnitudes (Higham, "Accuracy and Stability of
/// Numerical Algorithms", section 4.2).
double summation_bound(std::int64_t terms, double absolute_sum);

/// Grade B for an elementwise function of `operations` float operations whose value changes by
/// `condition` relative roundoffs when its argument changes by one. Results below the smallest
/// normal float may be flushed.
double function_bound(int operations, double condition, double reference);

/// Grade B for all elements: NaN and infinities must be in the same places with the same sign, then
/// |found - reference| <= bound, element by element. The three have one size; `shape` as in
/// exact_bytes.
Verdict within_bounds(std::span<const float> found, std::span<const double> reference,
                      std::span<const double> bounds, std::span<const std::int64_t> shape = {});

/// Grade C: the largest error of `found` is at most twice the largest error of `plain`, a plain
/// implementation in the same precision, plus the rounding floor eps_out * max |reference|. NaN and
/// infinities as in within_bounds.
Verdict within_twice(std::span<const float> found, std::span<const float> plain,
                     std::span<const double> reference, double eps_out,
                     std::span<const std::int64_t> shape = {});

/// Grade C for whole-model logits of 8-bit products, over 512 positions of text. Mean KL as the
/// goal says. The goal for the same likeliest token is 0.98, which llama.cpp does not reach against
/// itself: with flash attention, an f32 cache or one row at a time it agrees with its own record in
/// 0.947 to 0.977 of the positions (bench/results/llama-self-agreement.json). The same weights in
/// f32 agree with it in 0.963 to 0.965. So 0.94: the least of these, less one percent.
inline constexpr double kLogitsMeanKl = 0.01;
inline constexpr double kLogitsTop1 = 0.94;

/// Grade C for logits and hidden rows in f32 throughout, against another implementation in f32: of
/// the largest magnitude of the reference.
inline constexpr double kFloatModel = 1e-4;

}  // namespace segue::core
