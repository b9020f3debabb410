// SPDX-License-Identifier: Apache-2.0
// CPU detection through compiler built-ins and /proc; no inline assembly.
#include "core/cpu.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace segue::core {
namespace {

#if defined(__x86_64__)
/// clang's __builtin_cpu_supports does not know this one.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

std::string_view isa_name(IsaLevel level) {
  switch (level) {
    case IsaLevel::kPortable: return "portable";
    case IsaLevel::kNeon: return "neon";
    case IsaLevel::kAvx2: return "avx2";
    case IsaLevel::kAvx512: return "avx512";
  }
  return "?";
}

bool isa_available(IsaLevel level) {
  switch (level) {
    case IsaLevel::kPortable: return true;
#if defined(__aarch64__)
    case IsaLevel::kNeon: return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
#if defined(__x86_64__)
    case IsaLevel::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case IsaLevel::kAvx512:
      return isa_available(IsaLevel::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512bf16");
#endif
    default: return false;
  }
}

IsaLevel best_isa() {
  for (IsaLevel level : {IsaLevel::kAvx512, IsaLevel::kAvx2, IsaLevel::kNeon}) {
    if (isa_available(level)) return level;
  }
  return IsaLevel::kPortable;
}

CpuFacts cpu_facts() {
  CpuFacts facts;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name") || line.starts_with("CPU implementer")) {
      const auto colon = line.find(':');
      if (colon != std::string::npos && colon + 2 <= line.size())
        facts.model = line.substr(colon + 2);
      break;
    }
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) facts.logical_cpus = CPU_COUNT(&set);
  facts.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return facts;
}

}  // namespace segue::core
