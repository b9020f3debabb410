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

/// Larger for the larger value, then for the lower index; -infinity and NaN are last.
__device__ __forceinline__ Pick ranked(float value, std::int64_t index) {
  const unsigned bits = __float_as_uint(value + 0.0f);  // -0 is 0
  unsigned above = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (!(value > -INFINITY)) above = 0;
  return static_cast<Pick>(above) << 32 | (0xffffffffu - static_cast<unsigned>(index));
}

/// The same for logits: 0 for -infinity and NaN.
__device__ __forceinline__ Pick ordered(float logit, std::int64_t token) {
  return logit > -INFINITY ? ranked(logit, token) : 0;
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

constexpr int kWarps = kThreads / 32;

/// A lane has a centroid and counts those before it, a warp among its part of the scores: their sum
/// is its place among the best. Floor: the scores once, 4 bytes each; bound by reading them from
/// the first-level cache as often as there are centroids. A sort would be many dependent barriers.
__global__ void __launch_bounds__(kThreads)
    rank_centroids(const __grid_constant__ CentroidHead args) {
  begin();
  __shared__ int counts[kWarps][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int mine = static_cast<int>(blockIdx.x) * 32 + lane;
  const float* const scores = args.scores + blockIdx.y * static_cast<std::int64_t>(args.centroids);
  const Pick own = mine < args.centroids ? ranked(scores[mine], mine) : 0;
  const int part = (args.centroids + kWarps - 1) / kWarps;
  const int last = min((warp + 1) * part, args.centroids);
  int before = 0;
#pragma unroll 8
  for (int i = warp * part; i < last; ++i) before += ranked(scores[i], i) > own ? 1 : 0;
  counts[warp][lane] = before;
  __syncthreads();
  if (warp != 0 || mine >= args.centroids) return;
  for (int i = 1; i < kWarps; ++i) before += counts[i][lane];
  if (before < args.top)
    args.chosen[blockIdx.y * static_cast<std::int64_t>(args.top) + before] = mine;
}

__global__ void __launch_bounds__(kThreads) no_logits(float* logits, std::int64_t count) {
  begin();
  const std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x;
  if (i < count) logits[i] = -INFINITY;
}

/// A warp has a token of a chosen centroid: a dot product of its row of the head. Floor: 2 bytes an
/// element of those rows, 2 MB for 32 centroids of 128 tokens and 256 elements; half of every 64
/// bytes belongs to another row of the tile, so twice that is read.
__global__ void __launch_bounds__(kThreads)
    centroid_logits(const __grid_constant__ CentroidHead args, const std::uint16_t* head,
                    int hidden) {
  begin();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t each = args.vocab / args.centroids;
  const std::int64_t warp = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) / 32;
  if (warp >= args.top * each) return;
  const std::int64_t row = blockIdx.y;
  const std::int64_t centroid = args.chosen[row * args.top + warp / each];
  const std::int32_t token = args.ordering[centroid * each + warp % each];
  const std::uint16_t* const x = args.x + row * hidden;
  float sum = 0;
  for (int i = 2 * lane; i < hidden; i += 64) {  // two inputs lie together
    const std::int64_t at = packed_index(hidden / kInputBlock, token, i);
    const float2 w = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(head + at));
    const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x + i));
    sum += w.x * v.x;
    sum += w.y * v.y;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (lane == 0) args.logits[row * args.vocab + token] = sum;
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

void centroid_head(const CentroidHead& args, const device::Stream& stream) {
  CHECK(args.rows < 65536 && args.top <= args.centroids && args.vocab % args.centroids == 0);
  if (args.rows == 0) return;
  const auto rows = static_cast<unsigned>(args.rows);
  const std::int64_t logits = args.rows * args.vocab;
  launch(rank_centroids, dim3(blocks_for(args.centroids, 32), rows), stream, args);
  launch(no_logits, dim3(blocks_for(logits, kThreads)), stream, args.logits, logits);
  const std::int64_t tokens = args.top * (args.vocab / args.centroids);
  launch(centroid_logits, dim3(blocks_for(tokens, kWarps), rows), stream, args,
         args.head->elements(), static_cast<int>(args.head->inputs()));
}

}  // namespace segue::ops::cuda
