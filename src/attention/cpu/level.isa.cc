// SPDX-License-Identifier: Apache-2.0
// The table of one instruction level, and what does not depend on the KV type: the merge and what
// follows the last one.
#include <cmath>

#include "attention/cpu/merge.isa.h"

namespace segue::attention::ISA {

void run_f32(const cpu::Job& job, cpu::Scratch& scratch);
void run_f16(const cpu::Job& job, cpu::Scratch& scratch);
void run_bf16(const cpu::Job& job, cpu::Scratch& scratch);

namespace {

void merge_partial(const cpu::Partial& acc, const cpu::Partial& x, int head_dim) {
  merge(acc, x, head_dim);
}

/// The sink is one more score whose value is zero. 2 head_dim floats.
float finish(const cpu::Partial& acc, int head_dim, const float* sink, KvType type) {
  float m = *acc.m;
  float l = *acc.l;
  Vec shrink = set(1.0f);
  if (sink != nullptr && *sink > -__builtin_inff()) {
    const float m_new = *sink > m ? *sink : m;
    const float a = weight(m, m_new);
    l = lane0(fma(set(l), set(a), set(weight(*sink, m_new))));
    m = m_new;
    shrink = set(a);
  }
  const Vec divisor = set(l);
  const auto value = [&](int d) { return div(mul(load(acc.o + d), shrink), divisor); };
  int d = 0;
  if (type == KvType::kBF16) {
    // Groups of 32 dims lie as the 16 even ones and the 16 odd ones.
    for (; d + 32 <= head_dim; d += 32) store_interleaved(acc.o + d, value(d), value(d + 16));
  }
  for (; d < head_dim; d += 16) store(acc.o + d, value(d));
  return m + logf(l);
}

void exp_all(const float* x, float* y, int count) {
  for (int i = 0; i < count; i += 16) store(y + i, exp(load(x + i)));
}
void tanh_all(const float* x, float* y, int count) {
  for (int i = 0; i < count; i += 16) store(y + i, tanh(load(x + i)));
}

}  // namespace

extern const cpu::Level kLevel;
const cpu::Level kLevel{{run_f32, run_f16, run_bf16}, merge_partial, finish, exp_all, tanh_all};

}  // namespace segue::attention::ISA
