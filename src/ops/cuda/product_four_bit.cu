// SPDX-License-Identifier: Apache-2.0
// Products of 4-bit weights: a level from -8 to 7 times the scale of its block of 32 inputs.
//
// Floor: 4.5 bits a weight over the read bandwidth, a quarter of bf16's time. Idea: levels are
// integers, so they are exact in bf16, and so are their products with rows; a block's sum is two
// instructions from zero, which the block's scale multiplies into the chain, one operation an
// output, row and block. Nothing of a weight is rounded. To make a level: a bf16 number from 128 to
// 255 has its integer in its lowest bits, so one logical operation makes 128 + level + 8 of a
// nibble for two weights at once, and one subtraction the level: eleven operations for eight
// weights, which hide behind the reading.
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

/// Levels of nibble `place` of both halves of `word`, as two bf16.
__device__ __forceinline__ unsigned levels(unsigned word, int place) {
  const unsigned raised = (word >> (4 * place) & 0x000f000fu) | 0x43004300u;  // 128 + level + 8
  __nv_bfloat162 pair;
  memcpy(&pair, &raised, sizeof(pair));
  const __nv_bfloat16 offset = __ushort_as_bfloat16(0x4308);  // 136
  pair = __hsub2(pair, __halves2bfloat162(offset, offset));
  unsigned out;
  memcpy(&out, &pair, sizeof(out));
  return out;
}

/// The left operand of an instruction.
__device__ __forceinline__ uint4 expanded(unsigned word) {
  return make_uint4(levels(word, 0), levels(word, 1), levels(word, 2), levels(word, 3));
}

__device__ __forceinline__ float scale_of(unsigned bits, bool bf16) {
  return bf16 ? __uint_as_float(bits << 16)
              : __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

/// c = a * b
__device__ __forceinline__ void multiply_only(float (&c)[4], const uint4& a, unsigned b0,
                                              unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "f"(0.0f));
}

/// A lane has two words a block, one an instruction, and a pair of scales: of outputs g and g + 8.
/// Few rows load two blocks at once, 16 bytes of weights a lane.
struct FourBitPair {
  static constexpr int kBlocks = 2;
  static constexpr int kGranule = 2;
  static constexpr int kRegisters = 6;
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
    __device__ __forceinline__ Loaded load(const ProductArguments& args, int step) const {
      const uint4* const words = args.w + (at + static_cast<unsigned>(step) * 32);
      const uint2* const pairs = args.scales + (scales + static_cast<unsigned>(step) * 8);
      if constexpr (kOnce) return {load_once(words), load_once(pairs)};
      return {__ldg(words), __ldg(pairs)};
    }
  };
};

/// Many rows load one: their registers are the rows'.
struct FourBit {
  static constexpr int kBlocks = 1;
  static constexpr int kGranule = 2;
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
    FourBitPair::Place pair;

    __device__ __forceinline__ void set(const ProductArguments& args, int tile, unsigned lane) {
      pair.set(args, tile, lane);
    }
    template <bool kOnce>
    __device__ __forceinline__ Loaded load(const ProductArguments& args, int step) const {
      const auto at = static_cast<unsigned>(step / 2), odd = static_cast<unsigned>(step % 2);
      const auto* const words = reinterpret_cast<const uint2*>(args.w + (pair.at + at * 32)) + odd;
      const auto* const pairs =
          reinterpret_cast<const unsigned*>(args.scales + (pair.scales + at * 8)) + odd;
      return {__ldg(words), __ldg(pairs)};
    }
  };
};

template <class W, int kTiles, int kColumns>
__device__ __forceinline__ void multiply(const ProductArguments& args,
                                         const Operands<W, kTiles, kColumns>& now,
                                         Patch<kTiles, kColumns>& sum) {
#pragma unroll
  for (int block = 0; block < W::kBlocks; ++block) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint4 first = expanded(now.w[m].word(block, 0));
      const uint4 second = expanded(now.w[m].word(block, 1));
      const unsigned pair = now.w[m].scale_pair(block);
      const float low = scale_of(pair & 0xffffu, args.bf16_scales);
      const float high = scale_of(pair >> 16, args.bf16_scales);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const uint4 x = now.x[block][n];
        float c[4];
        multiply_only(c, first, x.x, x.y);
        multiply_add(c, second, x.z, x.w);
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
  launch_product<FourBitPair, FourBit>(args, launch);
}

}  // namespace segue::ops::cuda
