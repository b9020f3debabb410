// SPDX-License-Identifier: Apache-2.0
// From DeviceParams to two kernel launches, for one KV type: decode items, then the ordered
// reduction (enqueue.cuh), the second launched while the first still runs.
#pragma once

#include <cuda_runtime.h>

#include "attention/cuda/decode.cuh"
#include "attention/cuda/decode_pair.cuh"
#include "attention/cuda/enqueue.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/natural_maps.h"
#include "core/check.h"
#include "device/cuda/check.h"

namespace segue::attention::cuda {

template <class TileType>
using TileKernel = void (*)(Arguments, typename TileType::Maps);

template <class TileType>
void launch_kernel(TileKernel<TileType> kernel, const DeviceParams& params, int items,
                   cudaStream_t stream) {
  static const bool prepared = [kernel] {
    device::cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            TileType::kSharedBytes));
    device::cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    return true;
  }();
  CHECK(prepared);
  Arguments args = arguments_of(params, TileType::kKeys);
  typename TileType::Maps maps{};
  if constexpr (TileType::kNatural) {
    describe_maps(params.kv, TileType::kBlockDims, args, maps);
  }
  const BlockFacts block{.threads = TileType::kBlockThreads,
                         .shared_bytes = TileType::kSharedBytes,
                         .overlaps = true,
                         .cluster = TileType::kClusterBlocks};
  enqueue(kernel, dim3(static_cast<unsigned>(items * TileType::kClusterBlocks)), block, stream,
          args, maps);
}

template <class TileType>
void launch_tile(const DeviceParams& params, int items, cudaStream_t stream) {
  launch_kernel<TileType>(decode<TileType>, params, items, stream);
}

/// With no more blocks than multiprocessors, two on one of them would leave another idle: the
/// variant that takes more than half of the shared memory keeps them apart.
template <int kHeadDim, class T>
void launch_decode(const DeviceParams& params, const Grid& grid, cudaStream_t stream) {
  const int items = grid.items;
  if (params.kv.layout != kv::Layout::kSwizzled8) {
    return launch_tile<Tile<kHeadDim, T, Variant::kSpread, true>>(params, items, stream);
  }
  if (items <= params.multiprocessors) {
    return launch_tile<Tile<kHeadDim, T, Variant::kLone, false>>(params, items, stream);
  }
  if constexpr (kHeadDim <= 128) {
    if (grid.folds) {
      return launch_tile<Tile<kHeadDim, T, Variant::kFolding, false>>(params, items, stream);
    }
  }
  launch_tile<Tile<kHeadDim, T, Variant::kSpread, false>>(params, items, stream);
}

template <int kHeadDim, class T>
void launch_wide(const DeviceParams& params, const Grid& grid, cudaStream_t stream) {
  if (params.kv.layout != kv::Layout::kSwizzled8) {
    return launch_tile<Tile<kHeadDim, T, Variant::kWide, true>>(params, grid.items, stream);
  }
  if constexpr (kHeadDim == 128) {
    if (!grid.folds) {
      return launch_tile<Tile<kHeadDim, T, Variant::kSparing, false>>(params, grid.items, stream);
    }
  }
  launch_tile<Tile<kHeadDim, T, Variant::kWide, false>>(params, grid.items, stream);
}

/// One layer: items, then reductions if there can be any.
template <int kHeadDim, class T>
void launch_attention(const DeviceParams& params, device::Stream& stream) {
  const Grid grid = grid_of(params);
  const int items = grid.items;
  const cudaStream_t queue = device::cuda_stream(stream);
  if (items == 0) return;
  if constexpr (kHeadDim <= 256) {
    CHECK(grid.tile_rows <= 128);
    if (grid.tile_rows > 64) {
      launch_wide<kHeadDim, T>(params, grid, queue);
    } else {
      launch_decode<kHeadDim, T>(params, grid, queue);
    }
  } else {
    CHECK(grid.tile_rows <= 64);
    launch_kernel<PairTile<T>>(decode_pair<PairTile<T>>, params, items, queue);
  }
  if (grid.reductions == 0) return;
  launch_reductions(params, arguments_of(params, 64), {grid.tile_rows, grid.reductions, grid.runs},
                    queue);
}

template <int kHeadDim, KvType kType>
bool supports(const Shape& shape) {
  return shape.head_dim == kHeadDim && shape.kv == kType && shape.layout != kv::Layout::kTiled16 &&
         shape.page_size % 8 == 0 && shape.group() <= 16;
}

template <int kHeadDim, KvType kType, class T>
constexpr Kernel decode_row(std::string_view name, std::string_view bits_class) {
  Kernel row;
  row.name = name;
  row.bits_class = bits_class;
  row.device = DeviceKind::kCuda;
  row.family = GpuFamily::kSm90;
  row.supports = supports<kHeadDim, kType>;
  row.launch_on_gpu = launch_attention<kHeadDim, T>;
  return row;
}

}  // namespace segue::attention::cuda
