// SPDX-License-Identifier: Apache-2.0
// From DeviceParams to this family's two launches, for one KV type and head_dim.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "attention/cuda/enqueue.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/sm80/decode.cuh"
#include "core/check.h"
#include "device/cuda/check.h"

namespace segue::attention::cuda::sm80 {

/// Slots of the ring on this GPU: what is left of a block's share of the shared memory. Two blocks
/// share a multiprocessor where both still have three.
template <class TileType>
int slots_on(int device) {
  int block = 0;
  int all = 0;
  int reserved = 0;
  device::cuda_check(
      cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  device::cuda_check(
      cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  device::cuda_check(
      cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device));
  const auto slots = [](int bytes) {
    return std::min((bytes - TileType::kRingOffset) / TileType::kSlotBytes, kMostSlots);
  };
  if constexpr (TileType::kResidents > 1) {
    const int shared = slots(std::min(all / TileType::kResidents - reserved, block));
    if (shared >= 3) return shared;
  }
  CHECK(slots(block) >= 2);
  return slots(block);
}

/// The same, worked out and the kernel prepared once for each GPU.
template <class TileType>
int prepared_slots() {
  constexpr int kMostDevices = 64;
  static std::array<std::atomic<int>, kMostDevices> known{};
  int device = 0;
  device::cuda_check(cudaGetDevice(&device));
  CHECK(device < kMostDevices);
  auto& entry = known[static_cast<std::size_t>(device)];
  if (const int slots = entry.load(); slots != 0) return slots;
  const int slots = slots_on<TileType>(device);
  constexpr auto kKernel = decode<TileType>;
  device::cuda_check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          TileType::kRingOffset + slots * TileType::kSlotBytes));
  device::cuda_check(
      cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
  entry.store(slots);
  return slots;
}

/// One layer: items, then reductions if there can be any.
template <int kHeadDim, class T>
void launch_attention(const DeviceParams& params, device::Stream& stream) {
  using TileType = Tile<kHeadDim, T>;
  const Grid grid = grid_of(params);
  if (grid.items == 0) return;
  CHECK(grid.tile_rows <= TileType::kRows);
  const cudaStream_t queue = device::cuda_stream(stream);
  const Arguments args = arguments_of(params, TileType::kKeys);
  const Ring ring{params.kv.token_stride, params.kv.layout == kv::Layout::kSwizzled8 ? 1 : 0,
                  prepared_slots<TileType>()};
  constexpr auto kKernel = decode<TileType>;
  const BlockFacts block{.threads = TileType::kThreads,
                         .shared_bytes = TileType::kRingOffset + ring.slots * TileType::kSlotBytes,
                         .overlaps = launches_overlap()};
  enqueue(kKernel, dim3(static_cast<unsigned>(grid.items)), block, queue, args, ring);
  if (grid.reductions == 0) return;
  launch_reductions(params, args, {grid.tile_rows, grid.reductions, grid.runs}, queue);
}

/// The swizzled layout has lines of 64 dims.
template <int kHeadDim, KvType kType>
bool supports(const Shape& shape) {
  const bool layout = shape.layout == kv::Layout::kSwizzled8 ? kHeadDim % 64 == 0
                                                             : shape.layout != kv::Layout::kTiled16;
  return shape.head_dim == kHeadDim && shape.kv == kType && layout && shape.page_size % 8 == 0 &&
         shape.group() <= 16;
}

template <int kHeadDim, KvType kType, class T>
constexpr Kernel decode_row(std::string_view name, std::string_view bits_class) {
  Kernel row;
  row.name = name;
  row.bits_class = bits_class;
  row.device = DeviceKind::kCuda;
  row.family = GpuFamily::kSm80;
  row.supports = supports<kHeadDim, kType>;
  row.launch_on_gpu = launch_attention<kHeadDim, T>;
  return row;
}

}  // namespace segue::attention::cuda::sm80
