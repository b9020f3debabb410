// SPDX-License-Identifier: Apache-2.0
// The ends of a draft. largest() reads the logits once, 4 bytes a token, which the head has just
// left in the second-level cache: many blocks a row, which meet in one atomic maximum. A maximum
// has no order, so the result is a function of the row.
#include "ops/cuda/draft.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "core/check.h"
#include "device/cuda/overlap.cuh"

namespace segue::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kLogitsOfBlock = 16 * kThreads;

__device__ __forceinline__ void begin() {
  device::allow_next_launch();
  device::wait_for_previous_launch();
}

struct InputArguments {
  const std::uint16_t* table;
  const Pick* picks;
  const float* hidden;
  std::uint16_t* out;
  float scale;
  int width;  // of the table and of hidden
};

__global__ void draft_input_rows(const __grid_constant__ InputArguments args) {
  begin();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= 2 * args.width) return;
  const std::int64_t row = blockIdx.y;
  float value = 0;
  if (i < args.width) {
    const std::int64_t at = packed_index(args.width / kInputBlock, token_of(args.picks[row]), i);
    value = __bfloat162float(__ushort_as_bfloat16(args.table[at])) * args.scale;
  } else {
    value = args.hidden[row * args.width + i - args.width];
  }
  args.out[row * 2 * args.width + i] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__global__ void suppress_rows(const __grid_constant__ Suppress args) {
  begin();
  float* const logits = args.logits + blockIdx.x * args.vocab;
  for (int i = static_cast<int>(threadIdx.x); i < args.count; i += static_cast<int>(blockDim.x))
    logits[args.ids[i]] = -INFINITY;
}

/// Orders as floats do, for unsigned numbers; -infinity and NaN are 0.
__device__ __forceinline__ Pick ordered(float logit, std::int64_t token) {
  if (!(logit > -INFINITY)) return 0;
  const unsigned bits = __float_as_uint(logit + 0.0f);  // -0 is 0
  const unsigned above = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Pick>(above) << 32 | (0xffffffffu - static_cast<unsigned>(token));
}

__global__ void __launch_bounds__(kThreads) largest_of_row(const __grid_constant__ Largest args) {
  begin();
  __shared__ Pick warps[kThreads / 32];
  const float* const logits = args.logits + blockIdx.y * args.vocab;
  const std::int64_t first = blockIdx.x * kLogitsOfBlock;
  const std::int64_t last = min(first + kLogitsOfBlock, args.vocab);
  Pick best = 0;
#pragma unroll 8
  for (std::int64_t i = first + threadIdx.x; i < last; i += kThreads)
    best = max(best, ordered(logits[i], i));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    best = max(best, __shfl_xor_sync(0xffffffffu, best, distance));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / 32; ++i) best = max(best, warps[i]);
  atomicMax(reinterpret_cast<unsigned long long*>(args.picks + blockIdx.y),
            static_cast<unsigned long long>(best));
}

template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, const device::Stream& stream,
            const Parameters&... parameters) {
  static const bool overlaps = device::launches_overlap();
  device::enqueue<Parameters...>(kernel, grid, {kThreads, 0, overlaps}, device::cuda_stream(stream),
                                 parameters...);
}

unsigned blocks_for(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

void draft_input(const DraftInput& args, const device::Stream& stream) {
  CHECK(args.rows < 65536);
  if (args.rows == 0) return;
  const int width = static_cast<int>(args.table->inputs());
  const InputArguments arguments{
      args.table->elements(), args.picks, args.hidden, args.out, args.scale, width};
  launch(draft_input_rows,
         dim3(blocks_for(std::int64_t{2} * width, kThreads), static_cast<unsigned>(args.rows)),
         stream, arguments);
}

void suppress(const Suppress& args, const device::Stream& stream) {
  if (args.rows == 0 || args.count == 0) return;
  launch(suppress_rows, dim3(static_cast<unsigned>(args.rows)), stream, args);
}

void largest(const Largest& args, const device::Stream& stream) {
  CHECK(args.rows < 65536 && args.vocab <= INT32_MAX);
  if (args.rows == 0) return;
  launch(largest_of_row,
         dim3(blocks_for(args.vocab, kLogitsOfBlock), static_cast<unsigned>(args.rows)), stream,
         args);
}

}  // namespace segue::ops::cuda
