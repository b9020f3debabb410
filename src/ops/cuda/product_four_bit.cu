// SPDX-License-Identifier: Apache-2.0
// Products of 4-bit weights: a level from -8 to 7 times the scale of its block of 32 inputs.
//
// Floor: 4.5 bits a weight over the read bandwidth, a quarter of bf16's time. What stands in its
// way is arithmetic: at that bandwidth a scheduler has 60 cycles for 32 inputs of a tile. Idea:
// levels are integers, so they are exact in bf16, and so are their products with rows; a block's
// sum is two instructions from zero, which the block's scale multiplies into the chain, one
// operation an output, row and block. Nothing of a weight is rounded.
//
// To make a level: the lowest 8 bits of a bf16 whose others are zero are an integer times 2^-133,
// beyond the subnormal ones too, since the first normal numbers have the same distance. So a mask
// leaves a nibble of two weights at once, at either place of its byte, and a multiplication by a
// power of two with an addition makes (level + 8) / 64 - 8 / 64: nine operations for eight weights.
// Sums are multiplied by 64 at the end, which is exact as well. (That nibbles can be masked into
// place in pairs and offset by one fused operation is Marlin's idea, Frantar et al. 2024,
// arXiv:2408.11743, there with numbers from 1024 in f16.)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/product.cuh"

namespace segue::ops::cuda {
namespace {

__device__ __forceinline__ uint2 load_once(const uint2* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from));
  return v;
}

__device__ __forceinline__ unsigned multiply_add_pair(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// The left operand of an instruction: levels / 64.
__device__ __forceinline__ uint4 expanded(unsigned word) {
  constexpr unsigned kOffset = 0xbe00be00u;                    // -8 / 64
  constexpr unsigned kLow = 0x7f007f00u, kHigh = 0x7d007d00u;  // 2^127, 2^123
  const unsigned upper = word >> 8;
  return make_uint4(multiply_add_pair(word & 0x000f000fu, kLow, kOffset),
                    multiply_add_pair(word & 0x00f000f0u, kHigh, kOffset),
                    multiply_add_pair(upper & 0x000f000fu, kLow, kOffset),
                    multiply_add_pair(upper & 0x00f000f0u, kHigh, kOffset));
}
constexpr float kLevelUnit = 64;

/// The scales of outputs g and g + 8.
template <bool kBf16>
__device__ __forceinline__ float2 scales_of(unsigned pair) {
  if constexpr (kBf16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    __half2 halves;
    memcpy(&halves, &pair, sizeof(halves));
    return __half22float2(halves);
  }
}

/// c = a * b
__device__ __forceinline__ void multiply_only(float (&c)[4], const uint4& a, unsigned b0,
                                              unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "f"(0.0f));
}

/// c += a * b, where the compiler sees fit, among the making of levels.
__device__ __forceinline__ void multiply_more(float (&c)[4], const uint4& a, unsigned b0,
                                              unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kMostResident = 3;
#else
constexpr int kMostResident = 4;
#endif

/// A lane has two words a block, one an instruction, and a pair of scales: of outputs g and g + 8.
/// Few rows load two blocks at once, 16 bytes of weights a lane.
template <bool kBf16Scales>
struct FourBitPair {
  static constexpr int kBlocks = 2;
  static constexpr int kGranule = 2;
  static constexpr int kRegisters = 6;
  static constexpr bool kBf16 = kBf16Scales;
  static constexpr float kUnit = kLevelUnit;
  template <int kColumns>
  static constexpr int kWidest = 2;
  // Many warps, since each waits long for its own instructions: as many as do not spill.
  template <int kTiles, int kColumns>
  static constexpr Few kFew = kColumns == 1
                                  ? (kTiles == 1 ? Few{32, 3, true} : Few{32, kMostResident, false})
                              : kColumns == 2
                                  ? (kTiles == 1 ? Few{32, 3, false} : Few{48, 2, false})
                                  : Few{64, 0, false};
  struct Loaded {
    uint4 words;   // [2 blocks][2 instructions]
    uint2 scales;  // [2 blocks]

    __device__ __forceinline__ unsigned word(int block, int half) const {
      return block == 0 ? (half == 0 ? words.x : words.y) : (half == 0 ? words.z : words.w);
    }
    __device__ __forceinline__ unsigned scale_pair(int block) const {
      return block == 0 ? scales.x : scales.y;
    }
  };
  struct Place {
    unsigned at;      // of words
    unsigned scales;  // of scales

    __device__ __forceinline__ void set(const ProductArguments& args, int tile, unsigned lane) {
      const unsigned pair = static_cast<unsigned>(tile) * static_cast<unsigned>(args.blocks / 2);
      at = pair * 32 + lane;
      scales = pair * 8 + lane / 4;
    }
    template <bool kOnce>
    __device__ __forceinline__ Loaded load(const ProductArguments& args, int base, int more) const {
      const uint4* const words =
          args.w + (at + static_cast<unsigned>(base) * 32) + static_cast<unsigned>(more) * 32;
      const uint2* const pairs = args.scales + (scales + static_cast<unsigned>(base) * 8) +
                                 static_cast<unsigned>(more) * 8;
      if constexpr (kOnce) return {load_once(words), load_once(pairs)};
      return {__ldg(words), __ldg(pairs)};
    }
  };
};

/// Many rows load one: their registers are the rows'.
template <bool kBf16Scales>
struct FourBit {
  static constexpr int kBlocks = 1;
  static constexpr int kGranule = 2;
  static constexpr bool kBf16 = kBf16Scales;
  static constexpr float kUnit = kLevelUnit;
  static constexpr int kWideColumns = 4;  // 8 spill
  static constexpr double kWideInputUs = 0.011;
  struct Loaded {
    uint2 words;      // [2 instructions]
    unsigned scales;  // of outputs g and g + 8

    __device__ __forceinline__ unsigned word(int /*block*/, int half) const {
      return half == 0 ? words.x : words.y;
    }
    __device__ __forceinline__ unsigned scale_pair(int /*block*/) const { return scales; }
  };
  struct Place {
    typename FourBitPair<kBf16Scales>::Place pair;

    __device__ __forceinline__ void set(const ProductArguments& args, int tile, unsigned lane) {
      pair.set(args, tile, lane);
    }
    template <bool kOnce>
    __device__ __forceinline__ Loaded load(const ProductArguments& args, int base, int more) const {
      const int step = base + more;
      const auto at = static_cast<unsigned>(step / 2), odd = static_cast<unsigned>(step % 2);
      const auto* const words = reinterpret_cast<const uint2*>(args.w + (pair.at + at * 32)) + odd;
      const auto* const pairs =
          reinterpret_cast<const unsigned*>(args.scales + (pair.scales + at * 8)) + odd;
      return {__ldg(words), __ldg(pairs)};
    }
  };
};

template <class W, int kTiles, int kColumns>
__device__ __forceinline__ void multiply(const ProductArguments& /*args*/,
                                         const Operands<W, kTiles, kColumns>& now,
                                         Patch<kTiles, kColumns>& sum) {
#pragma unroll
  for (int block = 0; block < W::kBlocks; ++block) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint4 first = expanded(now.w[m].word(block, 0));
      const uint4 second = expanded(now.w[m].word(block, 1));
      const auto [low, high] = scales_of<W::kBf16>(now.w[m].scale_pair(block));
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const uint4 x = now.x[block][n];
        float c[4];
        multiply_only(c, first, x.x, x.y);
        multiply_more(c, second, x.z, x.w);
        float(&to)[4] = sum.c[m][n];
        to[0] = __fmaf_rn(low, c[0], to[0]);
        to[1] = __fmaf_rn(low, c[1], to[1]);
        to[2] = __fmaf_rn(high, c[2], to[2]);
        to[3] = __fmaf_rn(high, c[3], to[3]);
      }
    }
  }
}

}  // namespace

void product_four_bit(const ProductArguments& args, const ProductLaunch& launch) {
  args.bf16_scales ? launch_product<FourBitPair<true>, FourBit<true>>(args, launch)
                   : launch_product<FourBitPair<false>, FourBit<false>>(args, launch);
}

}  // namespace segue::ops::cuda
