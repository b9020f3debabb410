// SPDX-License-Identifier: Apache-2.0
// Products of bf16 weights, 2 bytes each: a lane's share of a block of a tile is the left operand
// of two instructions as it lies.
#include "ops/cuda/product.cuh"

namespace segue::ops::cuda {
namespace {

struct Bf16 {
  static constexpr int kBlocks = 1;
  static constexpr int kGranule = 1;
  static constexpr int kRegisters = 8;
  static constexpr float kUnit = 1;
  template <int kColumns>
  static constexpr int kWidest = kColumns <= 2 ? 4 : 2;
  template <int kTiles, int kColumns>
  static constexpr Few kFew{64, 0, false};
  static constexpr int kWideColumns = 8;
  static constexpr double kWideInputUs = 0.017;
  struct Loaded {
    uint4 a[2];
  };
  struct Place {
    unsigned at;  // 32 bits cover matrices of 64 GB

    __device__ __forceinline__ void set(const ProductArguments& args, int tile, unsigned lane) {
      at = static_cast<unsigned>(tile) * static_cast<unsigned>(args.blocks) * 64 + lane;
    }
    template <bool kOnce>
    __device__ __forceinline__ Loaded load(const ProductArguments& args, int base, int more) const {
      Loaded to;
#pragma unroll
      for (unsigned h = 0; h < 2; ++h) {
        const uint4* const from = args.w + (at + static_cast<unsigned>(base + more) * 64 + h * 32);
        to.a[h] = kOnce ? load_once(from) : __ldg(from);
      }
      return to;
    }
  };
};

template <int kTiles, int kColumns>
__device__ __forceinline__ void multiply(const ProductArguments& /*args*/,
                                         const Operands<Bf16, kTiles, kColumns>& now,
                                         Patch<kTiles, kColumns>& sum) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      multiply_add(sum.c[m][n], now.w[m].a[0], now.x[0][n].x, now.x[0][n].y);
      multiply_add(sum.c[m][n], now.w[m].a[1], now.x[0][n].z, now.x[0][n].w);
    }
  }
}

}  // namespace

void product_bf16(const ProductArguments& args, const ProductLaunch& launch) {
  launch_product<Bf16, Bf16>(args, launch);
}

void product(const Product& call, int multiprocessors, const device::Stream& stream) {
  if (call.rows == 0) return;
  const Matrix& w = *call.w;
  ProductArguments args{};
  args.w = static_cast<const uint4*>(w.weights());
  args.scales = static_cast<const uint2*>(w.scales());
  args.x = call.x;
  args.y = call.y;
  args.rows = static_cast<int>(call.rows);
  args.outputs = static_cast<int>(w.outputs());
  args.blocks = static_cast<int>(w.inputs() / kInputBlock);
  args.tiles = (args.outputs + kTileOutputs - 1) / kTileOutputs;
  args.bf16_scales = w.bf16_scales();
  static const bool overlap = device::launches_overlap();
  const ProductLaunch launch{multiprocessors, call.width, overlap && call.early,
                             device::cuda_stream(stream)};
  w.form() == Form::kBf16 ? product_bf16(args, launch) : product_four_bit(args, launch);
}

}  // namespace segue::ops::cuda
