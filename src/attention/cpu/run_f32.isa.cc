// SPDX-License-Identifier: Apache-2.0
// Jobs over a f32 cache.
#include "attention/cpu/run.isa.h"

namespace segue::attention::ISA {

void run_f32(const cpu::Job& job, cpu::Scratch& scratch);

void run_f32(const cpu::Job& job, cpu::Scratch& scratch) { run<F32>(job, scratch); }

}  // namespace segue::attention::ISA
