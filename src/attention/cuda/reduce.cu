// SPDX-License-Identifier: Apache-2.0
// The ordered reductions of all families, compiled once.
#include <algorithm>

#include "attention/cuda/enqueue.cuh"
#include "attention/cuda/reduce.cuh"
#include "core/check.h"

namespace segue::attention::cuda {
namespace {

/// Up to here a reduction by narrow warps is the faster one (2026-11, H200: 2 rows of G-slide).
inline constexpr int kNarrowWarps = 256;
/// A captured grid of reductions is as large as the limits allow, and a block without work costs a
/// nanosecond (2026-11, H200: 196,608 of them 236 us). With more than this, blocks take several.
inline constexpr int kCapturedBlocks = 4096;

template <int kHeadDim, class T>
void launch(const DeviceParams& params, const Arguments& args, const ReductionList& list,
            cudaStream_t stream) {
  // Few rows: narrow warps on many multiprocessors. Many: wide ones, for the sake of bandwidth.
  const bool narrow =
      kHeadDim < 128 || list.tile_rows * list.reductions * (kHeadDim / 32) <= kNarrowWarps;
  const auto grid = [&](int width) {
    const int slices = (kHeadDim + 32 * width - 1) / (32 * width);
    const int most = std::max(kCapturedBlocks / (list.tile_rows * slices), 1);
    const int listed = params.whole_capacity ? std::min(list.reductions, most) : list.reductions;
    return dim3(static_cast<unsigned>(list.tile_rows), static_cast<unsigned>(listed),
                static_cast<unsigned>(slices));
  };
  const BlockFacts warp{.threads = 32, .overlaps = launches_overlap()};
  if constexpr (kHeadDim >= 128) {
    if (!narrow) return enqueue(reduce<kHeadDim, T, 32, 4>, grid(4), warp, stream, args);
  }
  if (list.runs <= 32) {
    enqueue(reduce<kHeadDim, T, 32, 1>, grid(1), warp, stream, args);
  } else {
    enqueue(reduce<kHeadDim, T, 128, 1>, grid(1), warp, stream, args);
  }
}

template <class T>
void choose(const DeviceParams& params, const Arguments& args, const ReductionList& list,
            cudaStream_t stream) {
  switch (params.shape.head_dim) {
    case 64: return launch<64, T>(params, args, list, stream);
    case 80: return launch<80, T>(params, args, list, stream);
    case 96: return launch<96, T>(params, args, list, stream);
    case 128: return launch<128, T>(params, args, list, stream);
    case 256: return launch<256, T>(params, args, list, stream);
    case 512: return launch<512, T>(params, args, list, stream);
    default: CHECK(false);
  }
}

}  // namespace

void launch_reductions(const DeviceParams& params, const Arguments& args, const ReductionList& list,
                       cudaStream_t stream) {
  CHECK(params.shape.kv != KvType::kF32);
  if (params.shape.kv == KvType::kBF16) {
    choose<__nv_bfloat16>(params, args, list, stream);
  } else {
    choose<__half>(params, args, list, stream);
  }
}

}  // namespace segue::attention::cuda
