// SPDX-License-Identifier: Apache-2.0
// From DeviceParams to a kernel's arguments and into the stream, and the reductions after it: what
// the launches of all families have in common.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <numeric>

#include "attention/cuda/arguments.h"
#include "attention/cuda/launch.h"
#include "device/cuda/check.h"

namespace segue::attention::cuda {

/// What all families read of it.
inline Arguments arguments_of(const DeviceParams& params, int tile_keys) {
  Arguments args{};
  params.plan->fill(args, params.partials, params.tables);
  args.q = params.q;
  args.out = params.out;
  args.lse = params.lse;
  args.sinks = params.sinks;
  args.k = params.kv.k;
  args.v = params.kv.v;
  args.page_stride = params.kv.page_stride;
  args.head_stride = params.kv.head_stride;
  args.pages = params.kv.pages;
  args.page_size = params.kv.page_size;
  const auto page = static_cast<unsigned>(params.kv.page_size);
  args.page_inverse = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / page);
  args.page_shift = std::has_single_bit(page) ? std::countr_zero(page) : -1;
  args.piece = std::gcd(params.kv.page_size, tile_keys);
  args.q_heads = params.shape.q_heads;
  args.group = params.shape.group();
  args.group_inverse = 65536 / args.group + 1;
  args.window = params.shape.window;
  args.early = params.early_reads ? 1 : 0;
  constexpr float kLog2E = 1.44269504088896340736f;
  args.capped = params.softcap > 0 ? 1 : 0;
  args.score_scale = args.capped ? params.scale / params.softcap : 1.0f;
  args.exponent_scale = (args.capped ? params.softcap : params.scale) * kLog2E;
  return args;
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
  device::cuda_check(cudaLaunchKernelEx(&config, kernel, parameters...));
}

/// Does this thread's GPU run kernels that may start before the one before them ends?
inline bool launches_overlap() {
  int device = 0;
  int major = 0;
  device::cuda_check(cudaGetDevice(&device));
  device::cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

/// What there is to reduce: rows x group of the largest tile, live (or captured) reductions,
/// partials of the longest one.
struct ReductionList {
  int tile_rows = 0;
  int reductions = 0;
  int runs = 0;
};

/// Enqueues the ordered reduction of any family's partials; reduce.cu.
void launch_reductions(const DeviceParams& params, const Arguments& args, const ReductionList& list,
                       cudaStream_t stream);

}  // namespace segue::attention::cuda
