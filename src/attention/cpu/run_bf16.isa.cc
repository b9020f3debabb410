// SPDX-License-Identifier: Apache-2.0
// Jobs over a bf16 cache.
#include "attention/cpu/run.isa.h"

namespace segue::attention::ISA {

void run_bf16(const cpu::Job& job, cpu::Scratch& scratch);

void run_bf16(const cpu::Job& job, cpu::Scratch& scratch) { run<Bf16>(job, scratch); }

}  // namespace segue::attention::ISA
