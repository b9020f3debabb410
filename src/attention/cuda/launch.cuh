// SPDX-License-Identifier: Apache-2.0
// From DeviceParams to two kernel launches, for one KV type: decode items, then the ordered
// reduction, the second launched while the first still runs.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "attention/cuda/decode.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/natural_maps.h"
#include "attention/cuda/reduce.cuh"
#include "core/check.h"
#include "device/cuda/check.h"

namespace segue::attention::cuda {

/// Up to here a reduction by narrow warps is the faster one (2026-11, H200: 2 rows of G-slide).
inline constexpr int kNarrowWarps = 256;
/// A captured grid of reductions is as large as the limits allow, and a block without work costs a
/// nanosecond (2026-11, H200: 196,608 of them 236 us). With more than this, blocks take several.
inline constexpr int kCapturedBlocks = 4096;

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
  args.page_shift = std::has_single_bit(page) ? std::countr_zero(page) : -1;
  args.piece = std::gcd(params.kv.page_size, tile_keys);
  args.q_heads = params.shape.q_heads;
  args.group = params.shape.group();
  args.window = params.shape.window;
  args.early = params.early_reads ? 1 : 0;
  constexpr float kLog2E = 1.44269504088896340736f;
  args.capped = params.softcap > 0 ? 1 : 0;
  args.score_scale = args.capped ? params.scale / params.softcap : 1.0f;
  args.exponent_scale = (args.capped ? params.softcap : params.scale) * kLog2E;
  return args;
}

template <class... Parameters>
void enqueue(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes,
             cudaStream_t stream, Parameters... parameters) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  device::cuda_check(cudaLaunchKernelEx(&config, kernel, parameters...));
}

template <class TileType>
void launch_tile(const DeviceParams& params, int blocks, cudaStream_t stream) {
  constexpr auto kKernel = decode<TileType>;
  static const bool prepared = [] {
    device::cuda_check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            TileType::kSharedBytes));
    device::cuda_check(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    return true;
  }();
  CHECK(prepared);
  Arguments args = arguments_of(params, TileType::kKeys);
  typename TileType::Maps maps{};
  if constexpr (TileType::kNatural) describe_natural(params.kv, args, maps);
  enqueue(kKernel, dim3(static_cast<unsigned>(blocks)), TileType::kBlockThreads,
          TileType::kSharedBytes, stream, args, maps);
}

/// With no more blocks than multiprocessors, two on one of them would leave another idle: the
/// variant that takes more than half of the shared memory keeps them apart.
template <int kHeadDim, class T>
void launch_decode(const DeviceParams& params, int blocks, cudaStream_t stream) {
  if (params.kv.layout != kv::Layout::kSwizzled8) {
    return launch_tile<Tile<kHeadDim, T, Variant::kSpread, true>>(params, blocks, stream);
  }
  if constexpr (kHeadDim <= 256) {
    if (blocks <= params.multiprocessors) {
      return launch_tile<Tile<kHeadDim, T, Variant::kLone, false>>(params, blocks, stream);
    }
  }
  if constexpr (kHeadDim <= 128) {
    if (params.plan->live().folds) {
      return launch_tile<Tile<kHeadDim, T, Variant::kFolding, false>>(params, blocks, stream);
    }
  }
  launch_tile<Tile<kHeadDim, T, Variant::kSpread, false>>(params, blocks, stream);
}

/// One layer: items, then reductions if there can be any.
template <int kHeadDim, class T>
void launch_attention(const DeviceParams& params, device::Stream& stream) {
  const Capacity& capacity = params.plan->capacity();
  const FlatPlan& live = params.plan->live();
  const int items = params.whole_capacity ? capacity.items : static_cast<int>(live.items.size());
  const int reductions =
      params.whole_capacity ? capacity.reductions : static_cast<int>(live.reductions.size());
  const int tile_rows = params.whole_capacity ? capacity.tile_rows : live.tile_rows;
  const cudaStream_t queue = device::cuda_stream(stream);
  if (items == 0) return;
  if constexpr (kHeadDim <= 256) {
    CHECK(tile_rows <= 128);
    if (tile_rows > 64) {
      if (params.kv.layout != kv::Layout::kSwizzled8) {
        launch_tile<Tile<kHeadDim, T, Variant::kWide, true>>(params, items, queue);
      } else {
        launch_tile<Tile<kHeadDim, T, Variant::kWide, false>>(params, items, queue);
      }
    } else {
      launch_decode<kHeadDim, T>(params, items, queue);
    }
  } else {
    CHECK(tile_rows <= 64);
    launch_decode<kHeadDim, T>(params, items, queue);
  }
  if (reductions == 0) return;
  // Few rows: narrow warps on many multiprocessors. Many: wide ones, for the sake of bandwidth.
  const int runs = params.whole_capacity ? capacity.runs : live.runs;
  const bool narrow = kHeadDim < 128 || tile_rows * reductions * (kHeadDim / 32) <= kNarrowWarps;
  const auto grid = [&](int width) {
    const int slices = kHeadDim / (32 * width);
    const int most = std::max(kCapturedBlocks / (tile_rows * slices), 1);
    const int listed = params.whole_capacity ? std::min(reductions, most) : reductions;
    return dim3(static_cast<unsigned>(tile_rows), static_cast<unsigned>(listed),
                static_cast<unsigned>(slices));
  };
  const Arguments args = arguments_of(params, 64);
  if (!narrow) {
    enqueue(reduce<kHeadDim, T, 32, 4>, grid(4), 32, 0, queue, args);
  } else if (runs <= 32) {
    enqueue(reduce<kHeadDim, T, 32, 1>, grid(1), 32, 0, queue, args);
  } else {
    enqueue(reduce<kHeadDim, T, 128, 1>, grid(1), 32, 0, queue, args);
  }
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
  row.supports = supports<kHeadDim, kType>;
  row.launch_on_gpu = launch_attention<kHeadDim, T>;
  return row;
}

}  // namespace segue::attention::cuda
