// SPDX-License-Identifier: Apache-2.0
// Matrix products of weights in any form and bf16 activations with f32 sums, on tensor cores
// (mma.m16n8k16: 16 outputs by 8 rows). A form says how its weights are loaded and multiplied;
// what is the same for all of them is here.
//
// Bits: the inputs of a matrix are kRanges runs of blocks, a function of their number and the form
// alone. An output is r0 + r1 + .. + r7, added in this order in f32, where r_i is the chain of
// instructions over the blocks of run i in ascending order, from zero. Both kernels below compute
// exactly this for every row, so neither the rows beside a row nor the kernel that was chosen is in
// its bits.
//
// Few rows (decode, verify) move the weights once: bound by memory. A block of eight warps owns
// some tiles of outputs and one warp each run; weights go from memory to registers, since every one
// is used by one warp alone. Many rows (prefill) are bound by arithmetic, 2 operations a weight and
// row: a block owns 128 outputs by 64 or 128 rows, and operands come from the caches. A few too
// many rows (a batch's verify rows) go as several passes of few where outputs do not fill the
// machine with such blocks.
//
// A form W has
//   kGranule                  runs are made of so many blocks of inputs
//   Loaded                    what a lane holds of kBlocks blocks of one tile, in kRegisters
//   kUnit                     what a sum is multiplied by at the end
//   kWidest<columns>          tiles of a block of few rows at most; kFew<tiles, columns>: how such
//                             a block holds its loads
//   kWideColumns              tiles of 8 rows of a warp where there are many; kWideInputUs: such a
//                             block's time of one input on an H200 (2026-11)
//   Place(args, tile, lane)   where it lies; load<kOnce>(base, more) for step base + more, the
//                             kBlocks blocks from kBlocks times that
// and multiply(args, operands, patch) beside it adds the products of kBlocks blocks.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "device/cuda/overlap.cuh"
#include "device/cuda/thread.cuh"
#include "ops/cuda/matrix.h"

namespace segue::ops::cuda {

struct ProductArguments {
  const uint4* w;          // bf16: [tiles][blocks][2][32 lanes]; 4 bits: [tiles][blocks / 2][32]
  const uint2* scales;     // 4 bits: [tiles][blocks / 2][8]
  const std::uint16_t* x;  // [rows][32 * blocks]
  float* y;                // [rows][outputs]
  int rows, outputs, blocks, tiles;
  bool bf16_scales;  // otherwise f16
};

/// What a launch needs besides its arguments.
struct ProductLaunch {
  int multiprocessors;
  int width;      // forced, or 0
  bool overlaps;  // the kernel may start before the one before it ends
  cudaStream_t stream;
};

/// Of a matrix in this form.
void product_bf16(const ProductArguments& args, const ProductLaunch& launch);
void product_four_bit(const ProductArguments& args, const ProductLaunch& launch);

namespace {

constexpr int kRanges = 8;
constexpr int kThreads = 256;
constexpr int kTileRows = 8;

/// Weights pass once: no copy of them is kept in the first-level cache.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/// c += a * b, where the source says: moved about, many of them take more registers.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint4& a, unsigned b0,
                                             unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// How a block of few rows holds its loads.
struct Few {
  int ahead;     // registers of operands on their way
  int resident;  // blocks a multiprocessor, which caps a thread's registers; 0: ptxas chooses, and
                 // takes fewer than it does for 1
  bool smooth;   // no branch between steps: their instructions hide each other's latency
};

/// A warp's part of the output: kTiles tiles of 16 outputs by kColumns tiles of 8 rows.
template <int kTiles, int kColumns>
struct Patch {
  float c[kTiles][kColumns][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
  }
};

/// Operands of W::kBlocks blocks of inputs.
template <class W, int kTiles, int kColumns>
struct Operands {
  typename W::Loaded w[kTiles];
  uint4 x[W::kBlocks][kColumns];
};

/// Where a lane reads: tiles and rows past the end stand for the last one, whose products nobody
/// stores twice.
template <class W, int kTiles, int kColumns>
struct Sources {
  typename W::Place w[kTiles];
  const std::uint16_t* x;
  unsigned row[kColumns];  // offsets into x

  __device__ __forceinline__ Sources(const ProductArguments& args, int tile, int first_row)
      : x(args.x) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) w[m].set(args, min(tile + m, args.tiles - 1), lane);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int at = min(first_row + n * kTileRows + static_cast<int>(lane / 4), args.rows - 1);
      row[n] = static_cast<unsigned>(at) * static_cast<unsigned>(args.blocks) * kInputBlock +
               lane % 4 * 8;
    }
  }

  /// Step `base` + `more`. kSmooth: `more` is a constant, a part of the instruction and of no
  /// address.
  template <bool kOnce>
  __device__ __forceinline__ void load_weights(const ProductArguments& args, int base, int more,
                                               Operands<W, kTiles, kColumns>& to) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) to.w[m] = w[m].template load<kOnce>(args, base, more);
  }
  template <bool kSmooth>
  __device__ __forceinline__ void load_rows(int base, int more,
                                            Operands<W, kTiles, kColumns>& to) const {
    constexpr int kStep = W::kBlocks * kInputBlock;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < W::kBlocks; ++i) {
        if constexpr (kSmooth) {
          const std::uint16_t* const at = x + (row[n] + static_cast<unsigned>(base * kStep));
          to.x[i][n] = *reinterpret_cast<const uint4*>(at + (more * kStep + i * kInputBlock));
        } else {
          const auto block = static_cast<unsigned>((base + more) * W::kBlocks + i);
          to.x[i][n] = *reinterpret_cast<const uint4*>(x + (row[n] + block * kInputBlock));
        }
      }
    }
  }
};

/// The chain of one run, kDepth steps of loads ahead of the arithmetic. kWaits: the rows come from
/// the kernel before this one; weights are loaded before it ends.
template <class W, int kTiles, int kColumns, int kDepth, bool kSmooth, bool kOnce, bool kWaits>
__device__ __forceinline__ void chain(const ProductArguments& args,
                                      const Sources<W, kTiles, kColumns>& from, int first, int last,
                                      Patch<kTiles, kColumns>& sum) {
  Operands<W, kTiles, kColumns> ahead[kDepth];
  sum.clear();
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    if (first + d < last) from.template load_weights<kOnce>(args, first + d, 0, ahead[d]);
  }
  if constexpr (kWaits) device::wait_for_previous_launch();
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    if (first + d < last) from.template load_rows<kSmooth>(first + d, 0, ahead[d]);
  }
  int base = first;
  for (; kSmooth && base + 2 * kDepth <= last; base += kDepth) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      multiply(args, ahead[d], sum);
      from.template load_weights<kOnce>(args, base, d + kDepth, ahead[d]);
      from.template load_rows<true>(base, d + kDepth, ahead[d]);
    }
  }
  for (; base < last; base += kDepth) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (base + d >= last) break;
      multiply(args, ahead[d], sum);
      if (base + d + kDepth >= last) continue;
      from.template load_weights<kOnce>(args, base + d + kDepth, 0, ahead[d]);
      from.template load_rows<kSmooth>(base + d + kDepth, 0, ahead[d]);
    }
  }
}

/// The first step of a run.
template <class W>
__device__ __forceinline__ int range_begin(int blocks, int range) {
  const int granules = blocks / W::kGranule;
  return static_cast<int>(static_cast<std::int64_t>(granules) * range / kRanges) *
         (W::kGranule / W::kBlocks);
}

/// Few rows: warp i of a block has run i; the runs meet in shared memory.
template <class W, int kTiles, int kColumns>
__global__ void __launch_bounds__(kThreads, (W::template kFew<kTiles, kColumns>.resident))
    product_few(const __grid_constant__ ProductArguments args) {
  constexpr int kOutputs = kTiles * kTileOutputs;
  constexpr int kRows = kColumns * kTileRows;
  constexpr int kStep = W::kRegisters * kTiles + 4 * kColumns * W::kBlocks;
  constexpr Few kFew = W::template kFew<kTiles, kColumns>;
  constexpr int kDepth = kFew.ahead / kStep < 2 ? 2 : kFew.ahead / kStep;
  __shared__ float runs[kRanges][kRows][kOutputs + 1];
  const int run = static_cast<int>(threadIdx.x) / 32;
  const int tile = static_cast<int>(blockIdx.x) * kTiles;
  const Sources<W, kTiles, kColumns> from(args, tile, 0);
  Patch<kTiles, kColumns> sum;
  chain<W, kTiles, kColumns, kDepth, kFew.smooth, true, true>(
      args, from, range_begin<W>(args.blocks, run), range_begin<W>(args.blocks, run + 1), sum);
  // Not sooner: blocks of the next kernel would crowd on the multiprocessors that end first.
  device::allow_next_launch();
  // What follows from it takes no registers before.
  const int thread = kFew.smooth ? device::thread_again() : static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = m * kTileOutputs + lane / 4 + i / 2 * 8;
        runs[thread / 32][n * kTileRows + lane % 4 * 2 + i % 2][output] = sum.c[m][n][i];
      }
    }
  }
  __syncthreads();
  const int first = tile * kTileOutputs;
  for (int at = thread; at < kOutputs * kRows; at += kThreads) {
    const int row = at / kOutputs, output = at % kOutputs;
    if (row >= args.rows || first + output >= args.outputs) continue;
    float total = runs[0][row][output];
#pragma unroll
    for (int i = 1; i < kRanges; ++i) total += runs[i][row][output];
    args.y[static_cast<std::int64_t>(row) * args.outputs + first + output] = total * W::kUnit;
  }
}

constexpr int kWideTiles = 2;                            // of a warp
constexpr int kWideWarpsAcross = 4, kWideWarpsDown = 2;  // outputs by rows
constexpr int kWideOutputs = kWideWarpsAcross * kWideTiles * kTileOutputs;
template <class W>
constexpr int kWideRows = kWideWarpsDown* W::kWideColumns* kTileRows;

/// Many rows: every warp walks all runs, one after the other.
template <class W>
__global__ void __launch_bounds__(kThreads, 1)
    product_many(const __grid_constant__ ProductArguments args) {
  device::wait_for_previous_launch();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tile =
      (static_cast<int>(blockIdx.y) * kWideWarpsAcross + warp % kWideWarpsAcross) * kWideTiles;
  const int row = (static_cast<int>(blockIdx.x) * kWideWarpsDown + warp / kWideWarpsAcross) *
                  W::kWideColumns * kTileRows;
  if (tile >= args.tiles || row >= args.rows) return;
  const Sources<W, kWideTiles, W::kWideColumns> from(args, tile, row);
  Patch<kWideTiles, W::kWideColumns> total, sum;
  for (int run = 0; run < kRanges; ++run) {
    chain<W, kWideTiles, W::kWideColumns, 2, false, false, false>(
        args, from, range_begin<W>(args.blocks, run), range_begin<W>(args.blocks, run + 1), sum);
#pragma unroll
    for (int m = 0; m < kWideTiles; ++m)
#pragma unroll
      for (int n = 0; n < W::kWideColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          total.c[m][n][i] = run == 0 ? sum.c[m][n][i] : total.c[m][n][i] + sum.c[m][n][i];
  }
#pragma unroll
  for (int m = 0; m < kWideTiles; ++m) {
#pragma unroll
    for (int n = 0; n < W::kWideColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = (tile + m) * kTileOutputs + lane / 4 + i / 2 * 8;
        const int at = row + n * kTileRows + lane % 4 * 2 + i % 2;
        if (output < args.outputs && at < args.rows)
          args.y[static_cast<std::int64_t>(at) * args.outputs + output] =
              total.c[m][n][i] * W::kUnit;
      }
    }
  }
}

template <class W, int kTiles, int kColumns>
void launch_few(const ProductArguments& args, const ProductLaunch& launch) {
  const auto blocks = static_cast<unsigned>((args.tiles + kTiles - 1) / kTiles);
  device::enqueue(product_few<W, kTiles, kColumns>, dim3(blocks), {kThreads, 0, launch.overlaps},
                  launch.stream, args);
}

/// The part of the time of all multiprocessors that blocks of so many tiles use.
double balance(int tiles, int width, int multiprocessors) {
  const int blocks = (tiles + width - 1) / width;
  const int rounds = (blocks + multiprocessors - 1) / multiprocessors;
  return static_cast<double>(tiles) / (static_cast<double>(rounds) * multiprocessors * width);
}

/// The widest blocks that are not much worse balanced than the narrowest: a block reads all rows
/// from the second-level cache.
template <class W, int kColumns>
void choose_few(const ProductArguments& args, const ProductLaunch& launch) {
  constexpr double kWorse = 0.9;
  constexpr int kWidest = W::template kWidest<kColumns>;
  int width = launch.width;
  if (width == 0) {
    const double narrow = balance(args.tiles, 1, launch.multiprocessors);
    for (width = kWidest; width > 1; width /= 2) {
      if (balance(args.tiles, width, launch.multiprocessors) >= kWorse * narrow) break;
    }
  }
  if constexpr (kWidest == 4) {
    if (width == 4) return launch_few<W, 4, kColumns>(args, launch);
  }
  width == 1 ? launch_few<W, 1, kColumns>(args, launch) : launch_few<W, 2, kColumns>(args, launch);
}

constexpr int kFewRows = 32;

template <class W>
void launch_few_rows(const ProductArguments& args, const ProductLaunch& launch) {
  if (args.rows <= kTileRows) return choose_few<W, 1>(args, launch);
  if (args.rows <= 2 * kTileRows) return choose_few<W, 2>(args, launch);
  choose_few<W, 4>(args, launch);
}

template <class W>
dim3 wide_grid(const ProductArguments& args) {
  return dim3(static_cast<unsigned>((args.rows + kWideRows<W> - 1) / kWideRows<W>),
              static_cast<unsigned>((args.outputs + kWideOutputs - 1) / kWideOutputs));
}

/// Are passes of few rows, each of which reads all weights, faster than wide blocks, each of which
/// walks all inputs while multiprocessors without one idle? By what either took on an H200
/// (2026-11).
template <class W>
bool in_passes(const ProductArguments& args, int multiprocessors) {
  constexpr double kLaunchUs = 3;
  constexpr double kWeightUs = 0.6e-6;  // of a pass
  const dim3 grid = wide_grid<W>(args);
  const auto blocks = static_cast<std::int64_t>(grid.x) * grid.y;
  const auto rounds = static_cast<double>((blocks + multiprocessors - 1) / multiprocessors);
  const int passes = (args.rows + kFewRows - 1) / kFewRows;
  const double inputs = static_cast<double>(args.blocks) * kInputBlock;
  return passes * (kLaunchUs + kWeightUs * inputs * args.outputs) <
         rounds * (kLaunchUs + W::kWideInputUs * inputs);
}

/// `Slim` and `Many` are one form, loaded in steps of other lengths.
template <class Slim, class Many>
void launch_product(ProductArguments args, const ProductLaunch& launch) {
  static_assert(Slim::kGranule == Many::kGranule);
  if (args.rows <= kFewRows) return launch_few_rows<Slim>(args, launch);
  if (in_passes<Many>(args, launch.multiprocessors)) {
    const int rows = args.rows;
    for (int first = 0; first < rows; first += kFewRows) {
      args.rows = std::min(kFewRows, rows - first);
      launch_few_rows<Slim>(args, launch);
      args.x += std::int64_t{kFewRows} * args.blocks * kInputBlock;
      args.y += std::int64_t{kFewRows} * args.outputs;
    }
    return;
  }
  const dim3 grid = wide_grid<Many>(args);
  CHECK(grid.y < 65536);
  device::enqueue(product_many<Many>, grid, {kThreads, 0, launch.overlaps}, launch.stream, args);
}

}  // namespace
}  // namespace segue::ops::cuda
