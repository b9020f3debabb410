// SPDX-License-Identifier: Apache-2.0
// Numbers from a hash, the reference in double, and the kernel that only reads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "attention/cuda/harness/kernels.h"
#include "device/cuda/check.h"

namespace segue::attention::cuda {
namespace {

__device__ std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

/// About normal with deviation 1: the sum of four uniform bytes.
__device__ float noise(std::uint64_t seed, Which which, int sequence, std::int64_t position,
                       int head, int dim) {
  std::uint32_t h =
      mix(static_cast<std::uint32_t>(seed) ^ static_cast<std::uint32_t>(which) * 0x9e3779b9u);
  h = mix(h ^ static_cast<std::uint32_t>(sequence) * 0x85ebca6bu);
  h = mix(h ^ static_cast<std::uint32_t>(position) * 0xc2b2ae35u);
  h = mix(h + static_cast<std::uint32_t>(head * 4096 + dim));
  const int sum = static_cast<int>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24)) - 510;
  return static_cast<float>(sum) / 147.8f;
}

__device__ float rounded(float x, KvType type) {
  return type == KvType::kBF16 ? __bfloat162float(__float2bfloat16_rn(x))
                               : __half2float(__float2half_rn(x));
}
__device__ std::uint16_t bits(float x, KvType type) {
  return type == KvType::kBF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                               : __half_as_ushort(__float2half_rn(x));
}

__global__ void fill_pages(kv::View view, const std::int32_t* table, std::int64_t length,
                           int sequence, std::uint64_t seed) {
  const std::int64_t token = blockIdx.x;
  if (token >= length) return;
  const std::int64_t page = table[token / view.page_size];
  const int t = static_cast<int>(token % view.page_size);
  for (int i = static_cast<int>(threadIdx.x); i < view.kv_heads * view.head_dim;
       i += static_cast<int>(blockDim.x)) {
    const int head = i / view.head_dim;
    const int d = i % view.head_dim;
    const std::int64_t block = page * view.page_stride + head * view.head_stride;
    *reinterpret_cast<std::uint16_t*>(view.k + block + view.k_offset(t, d)) =
        bits(noise(seed, Which::kKey, sequence, token, head, d), view.type);
    *reinterpret_cast<std::uint16_t*>(view.v + block + view.v_offset(t, d)) =
        bits(noise(seed, Which::kValue, sequence, token, head, d), view.type);
  }
}

__global__ void fill_rows(std::uint16_t* q, KvType type, int q_heads, int head_dim,
                          std::int64_t depth, int sequence, float spread, std::uint64_t seed) {
  const int row = static_cast<int>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < q_heads * head_dim;
       i += static_cast<int>(blockDim.x)) {
    q[static_cast<std::int64_t>(row) * q_heads * head_dim + i] =
        bits(spread * noise(seed, Which::kQuery, sequence, depth + row, i / head_dim, i % head_dim),
             type);
  }
}

__device__ bool sees(const ReferenceTask& task, int row, std::int64_t key) {
  const std::int64_t position = task.depth + row;
  return key <= position && (task.window == 0 || key > position - task.window);
}

/// One thread per key: the score (-inf where not seen) and the sum of |q k|, both scaled.
__global__ void reference_scores(ReferenceTask task, double* scores) {
  const int row = static_cast<int>(blockIdx.x) / task.q_heads;
  const int head = static_cast<int>(blockIdx.x) % task.q_heads;
  const std::int64_t keys = task.depth + task.rows;
  const std::int64_t key = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (key >= keys) return;
  double score = -INFINITY;
  double magnitude = 0;
  if (sees(task, row, key)) {
    score = 0;
    for (int d = 0; d < task.head_dim; ++d) {
      const double q = rounded(
          task.spread * noise(task.seed, Which::kQuery, task.sequence, task.depth + row, head, d),
          task.type);
      const double k = rounded(
          noise(task.seed, Which::kKey, task.sequence, key, head / task.group, d), task.type);
      score += q * k;
      magnitude += fabs(q * k);
    }
    score *= task.scale;
    magnitude *= task.scale;
    if (task.softcap > 0) score = task.softcap * tanh(score / task.softcap);
  }
  scores[blockIdx.x * keys + key] = score;
  scores[(std::int64_t{gridDim.x} + blockIdx.x) * keys + key] = magnitude;
}

__global__ void reference_softmax(ReferenceTask task, double* scores, double* lse,
                                  double* score_sum) {
  __shared__ double reduced[256];
  const std::int64_t keys = task.depth + task.rows;
  double* const mine = scores + blockIdx.x * keys;
  const double* const magnitudes = scores + (std::int64_t{gridDim.x} + blockIdx.x) * keys;
  const int head = static_cast<int>(blockIdx.x) % task.q_heads;
  const auto combine = [&](double value, bool maximum) {
    reduced[threadIdx.x] = value;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
      if (threadIdx.x < step) {
        const double other = reduced[threadIdx.x + step];
        reduced[threadIdx.x] =
            maximum ? fmax(reduced[threadIdx.x], other) : reduced[threadIdx.x] + other;
      }
      __syncthreads();
    }
    const double result = reduced[0];
    __syncthreads();
    return result;
  };
  double maximum = -INFINITY;
  double magnitude = 0;
  for (std::int64_t key = threadIdx.x; key < keys; key += 256) {
    maximum = fmax(maximum, mine[key]);
    magnitude = fmax(magnitude, magnitudes[key]);
  }
  maximum = combine(maximum, true);
  magnitude = combine(magnitude, true);
  if (task.sinks != nullptr) maximum = fmax(maximum, double{task.sinks[head]});
  double sum = 0;
  for (std::int64_t key = threadIdx.x; key < keys; key += 256) sum += exp(mine[key] - maximum);
  sum = combine(sum, false);
  if (task.sinks != nullptr) sum += exp(double{task.sinks[head]} - maximum);
  for (std::int64_t key = threadIdx.x; key < keys; key += 256)
    mine[key] = exp(mine[key] - maximum) / sum;
  if (threadIdx.x == 0) {
    lse[blockIdx.x] = maximum + log(sum);
    score_sum[blockIdx.x] = magnitude;
  }
}

/// A thread per dim, a block per 256 keys; sums of double meet in memory in any order.
__global__ void reference_output(ReferenceTask task, const double* scores, double* out,
                                 double* absolute_sum) {
  const std::int64_t keys = task.depth + task.rows;
  const int head = static_cast<int>(blockIdx.x) % task.q_heads;
  const std::int64_t begin = std::int64_t{blockIdx.y} * 256;
  const std::int64_t end = begin + 256 < keys ? begin + 256 : keys;
  for (int d = static_cast<int>(threadIdx.x); d < task.head_dim;
       d += static_cast<int>(blockDim.x)) {
    double sum = 0;
    double magnitude = 0;
    for (std::int64_t key = begin; key < end; ++key) {
      const double p = scores[blockIdx.x * keys + key];
      if (p == 0) continue;
      const double v = rounded(
          noise(task.seed, Which::kValue, task.sequence, key, head / task.group, d), task.type);
      sum += p * v;
      magnitude += p * fabs(v);
    }
    atomicAdd(out + std::int64_t{blockIdx.x} * task.head_dim + d, sum);
    atomicAdd(absolute_sum + std::int64_t{blockIdx.x} * task.head_dim + d, magnitude);
  }
}

__global__ void __launch_bounds__(512) read_only(const uint4* data, std::int64_t pieces) {
  constexpr int kUnroll = 8;
  const std::int64_t stride = std::int64_t{gridDim.x} * 512 * kUnroll;
  std::uint32_t seen = 0;
  std::int64_t i = std::int64_t{blockIdx.x} * 512 * kUnroll + threadIdx.x;
  for (; i + 512 * (kUnroll - 1) < pieces; i += stride) {
    uint4 piece[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(piece[j].x), "=r"(piece[j].y), "=r"(piece[j].z), "=r"(piece[j].w)
                   : "l"(data + i + 512 * j));
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) seen |= piece[j].x ^ piece[j].y ^ piece[j].z ^ piece[j].w;
  }
  for (; i < pieces; i += 512) seen |= data[i].x;
  if (seen == 0x12345679u && pieces < 0) printf("x");  // keeps the loads
}

}  // namespace

void fill_sequence(const kv::View& view, const std::int32_t* table, std::int64_t length,
                   int sequence, std::uint64_t seed, const device::Stream& stream) {
  if (length == 0) return;
  fill_pages<<<static_cast<unsigned>(length), 256, 0, device::cuda_stream(stream)>>>(
      view, table, length, sequence, seed);
  device::cuda_check(cudaGetLastError());
}

void fill_queries(void* q, KvType type, int rows, int q_heads, int head_dim, std::int64_t depth,
                  int sequence, float spread, std::uint64_t seed, const device::Stream& stream) {
  if (rows == 0) return;
  fill_rows<<<static_cast<unsigned>(rows), 256, 0, device::cuda_stream(stream)>>>(
      static_cast<std::uint16_t*>(q), type, q_heads, head_dim, depth, sequence, spread, seed);
  device::cuda_check(cudaGetLastError());
}

void reference(const ReferenceTask& task, double* out, double* absolute_sum, double* lse,
               double* score_sum, double* scores, const device::Stream& stream) {
  if (task.rows == 0) return;
  const auto rows = static_cast<unsigned>(task.rows * task.q_heads);
  const auto chunks = static_cast<unsigned>((task.depth + task.rows + 255) / 256);
  const auto bytes =
      static_cast<std::size_t>(rows) * static_cast<std::size_t>(task.head_dim) * sizeof(double);
  const cudaStream_t queue = device::cuda_stream(stream);
  device::fill_bytes(out, 0, bytes, stream);
  device::fill_bytes(absolute_sum, 0, bytes, stream);
  reference_scores<<<dim3(rows, chunks), 256, 0, queue>>>(task, scores);
  reference_softmax<<<rows, 256, 0, queue>>>(task, scores, lse, score_sum);
  reference_output<<<dim3(rows, chunks), static_cast<unsigned>(std::min(task.head_dim, 512)), 0,
                     queue>>>(task, scores, out, absolute_sum);
  device::cuda_check(cudaGetLastError());
}

void read_bytes(const void* data, std::int64_t bytes, const device::Stream& stream) {
  const std::int64_t pieces = bytes / 16;
  const auto blocks =
      static_cast<unsigned>(std::clamp<std::int64_t>(pieces / (512 * 8), 1, 132 * 4));
  read_only<<<blocks, 512, 0, device::cuda_stream(stream)>>>(static_cast<const uint4*>(data),
                                                             pieces);
  device::cuda_check(cudaGetLastError());
}

}  // namespace segue::attention::cuda
