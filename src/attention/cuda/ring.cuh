// SPDX-License-Identifier: Apache-2.0
// How the kernels of sm_90a walk a ring of slots in shared memory.
#pragma once

namespace segue::attention::cuda {

/// Where in a ring the next tile lies, of a whole warp; the parity of a slot's barrier changes from
/// round to round.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    // Uniform, as descriptors must be: else each goes from vector to uniform registers. Here rather
    // than where it is used, where the shuffle would be in the chain.
    slot = __shfl_sync(~0u, slot + 1 == kSlots ? 0 : slot + 1, 0);
    parity ^= slot == 0 ? 1 : 0;
  }
};

/// Stands in for tensor maps where pages are copied without.
struct NoMaps {};

}  // namespace segue::attention::cuda
