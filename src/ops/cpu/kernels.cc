// SPDX-License-Identifier: Apache-2.0
// Joins the tables of the levels that this build has.
#include "ops/cpu/kernels.h"

#include "core/check.h"
#include "ops/cpu/elementwise.h"

namespace segue::ops {

#define SEGUE_DECLARE_LEVEL(level)       \
  namespace level {                      \
  extern const Kernels kMatrixKernels;   \
  extern const Elementwise kElementwise; \
  }
SEGUE_DECLARE_LEVEL(portable)
#if defined(__x86_64__)
SEGUE_DECLARE_LEVEL(avx2)
SEGUE_DECLARE_LEVEL(avx512)
#elif defined(__aarch64__)
SEGUE_DECLARE_LEVEL(neon)
#endif
#undef SEGUE_DECLARE_LEVEL

namespace {

struct Level {
  const Kernels* kernels;
  const Elementwise* elementwise;
};

Level level_of(core::IsaLevel isa) {
  CHECK(core::isa_available(isa));
  switch (isa) {
#if defined(__x86_64__)
    case core::IsaLevel::kAvx512: return {&avx512::kMatrixKernels, &avx512::kElementwise};
    case core::IsaLevel::kAvx2: return {&avx2::kMatrixKernels, &avx2::kElementwise};
#elif defined(__aarch64__)
    case core::IsaLevel::kNeon: return {&neon::kMatrixKernels, &neon::kElementwise};
#endif
    default: return {&portable::kMatrixKernels, &portable::kElementwise};
  }
}

}  // namespace

const Kernels& kernels(core::IsaLevel isa) { return *level_of(isa).kernels; }
const Elementwise& elementwise(core::IsaLevel isa) { return *level_of(isa).elementwise; }

}  // namespace segue::ops
