// SPDX-License-Identifier: Apache-2.0
// The merge of two partials, written down once: the fold inside a segment and the reduction over
// segments both call it, left to right, so where a sequence is split changes no bit. And what
// follows the last merge.
#pragma once

#include "attention/cpu/level.h"
#include "attention/cpu/softmax.isa.h"

namespace segue::attention::ISA {
namespace {

inline float exp_one(float x) { return lane0(exp(set(x))); }

/// The factor that brings sums taken against maximum m to maximum m_new >= m.
inline float weight(float m, float m_new) { return m == m_new ? 1.0f : exp_one(m - m_new); }

/// acc = merge(acc, x). A partial without visible keys is (-inf, 0, 0): as x it leaves acc as it
/// is, as acc it is replaced by x, both bit for bit. Bytes: 3 head_dim floats.
inline void merge(const cpu::Partial& acc, const cpu::Partial& x, int head_dim) {
  if (*x.l == 0.0f) return;
  if (*acc.l == 0.0f) {
    *acc.m = *x.m;
    *acc.l = *x.l;
    for (int d = 0; d < head_dim; d += 16) store(acc.o + d, load(x.o + d));
    return;
  }
  const float m = *x.m > *acc.m ? *x.m : *acc.m;
  const float a = weight(*acc.m, m);
  const float b = weight(*x.m, m);
  *acc.m = m;
  *acc.l = lane0(fma(set(*x.l), set(b), mul(set(*acc.l), set(a))));
  for (int d = 0; d < head_dim; d += 16) {
    store(acc.o + d, fma(load(x.o + d), set(b), mul(load(acc.o + d), set(a))));
  }
}

}  // namespace
}  // namespace segue::attention::ISA
