// SPDX-License-Identifier: Apache-2.0
// Kernels that start while the one before them in the stream still runs (programmatic dependent
// launch, compute capability 9.0): what a kernel needs of nobody, it may read before it waits.
//
// Every block of a kernel that is launched so waits, also one without work: a grid that ends early
// must not seem to complete the one before it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "device/cuda/check.h"

namespace segue::device {

/// The next kernel may start once all blocks of this one have said so or ended.
__device__ __forceinline__ void allow_next_launch() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// What the kernels before this one wrote is there.
__device__ __forceinline__ void wait_for_previous_launch() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct BlockFacts {
  int threads = 0;
  int shared_bytes = 0;
  bool overlaps = false;  // with the kernel before it
  int cluster = 1;        // consecutive blocks that share their shared memory
};

/// Launches; with `overlaps` so that the kernel may start while the one before it still runs: it
/// says when it needs that one (wait_for_previous_launch).
template <class... Parameters>
void enqueue(void (*kernel)(Parameters...), dim3 grid, const BlockFacts& block, cudaStream_t stream,
             Parameters... parameters) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (block.overlaps) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (block.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(block.cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(block.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(block.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cuda_check(cudaLaunchKernelEx(&config, kernel, parameters...));
}

/// Does this thread's GPU run kernels that may start before the one before them ends?
inline bool launches_overlap() {
  int device = 0;
  int major = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

}  // namespace segue::device
