// SPDX-License-Identifier: Apache-2.0
// Which CPU this is: the instruction level that kernels are compiled for, and a few facts for
// reports.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "segue/error.h"

namespace segue::core {

/// One object library per level; kAvx512 needs F, BW, VL, DQ, VNNI and BF16, kAvx2 needs AVX2, FMA
/// and F16C, kNeon the dot product extension.
enum class IsaLevel : std::uint8_t { kPortable, kNeon, kAvx2, kAvx512 };

std::string_view isa_name(IsaLevel level);

/// The best level that both this CPU and this build have.
IsaLevel best_isa();

/// Can this CPU execute `level`, and was it compiled in?
bool isa_available(IsaLevel level);

struct CpuFacts {
  std::string model;     // as the system names it
  int logical_cpus = 1;  // that this process may use
  std::int64_t memory_bytes = 0;
};
CpuFacts cpu_facts();

}  // namespace segue::core
