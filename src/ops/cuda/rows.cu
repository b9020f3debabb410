// SPDX-License-Identifier: Apache-2.0
// Rows of activations: norms, RoPE, gates. Each moves a few times 4 bytes an element, which lie in
// the second-level cache; all are bound by their launch and by the latency of two sums.
#include "ops/cuda/rows.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cfloat>
#include <type_traits>

#include "core/check.h"
#include "device/cuda/overlap.cuh"

namespace segue::ops::cuda {
namespace {

constexpr int kRowThreads = 512;
constexpr int kVectors = kMaxWidth / 4 / kRowThreads;  // of four floats, a thread
constexpr int kHeadWarps = 4;
constexpr int kMaxHeadDim = 512;

__device__ __forceinline__ std::uint16_t bf16_of(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/// All that these kernels read comes from the ones before them.
__device__ __forceinline__ void begin() {
  device::allow_next_launch();
  device::wait_for_previous_launch();
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

/// The sum over the block's threads, for all of them: lanes as a tree, then warps in order.
__device__ __forceinline__ float block_sum(float value, float* warps /*[kRowThreads / 32]*/) {
  value = warp_sum(value);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kRowThreads / 32; ++i) total += warps[i];
  return total;
}

/// One row in registers: vector i of a thread holds elements 4 (i * kRowThreads + thread) .. + 3.
struct Row {
  float4 v[kVectors];

  __device__ __forceinline__ static int vector(int i) {
    return i * kRowThreads + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ void load(const float* from, int vectors) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      v[i] = vector(i) < vectors ? reinterpret_cast<const float4*>(from)[vector(i)]
                                 : make_float4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void store(float* to, int vectors) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (vector(i) < vectors) reinterpret_cast<float4*>(to)[vector(i)] = v[i];
    }
  }
  __device__ __forceinline__ void store_bf16(std::uint16_t* to, int vectors) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (vector(i) >= vectors) continue;
      reinterpret_cast<ushort4*>(to)[vector(i)] =
          make_ushort4(bf16_of(v[i].x), bf16_of(v[i].y), bf16_of(v[i].z), bf16_of(v[i].w));
    }
  }
  /// *= weight / rms
  __device__ __forceinline__ void norm(const float* weight, float eps, int vectors, float* warps) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    const float mean = block_sum(squares, warps) / static_cast<float>(4 * vectors);
    const float inverse = 1.0f / sqrtf(mean + eps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (vector(i) >= vectors) continue;
      const float4 w = reinterpret_cast<const float4*>(weight)[vector(i)];
      v[i] = make_float4(v[i].x * inverse * w.x, v[i].y * inverse * w.y, v[i].z * inverse * w.z,
                         v[i].w * inverse * w.w);
    }
  }
};

__global__ void __launch_bounds__(kRowThreads) add_norm_row(const __grid_constant__ AddNorm args) {
  begin();
  __shared__ float warps[kRowThreads / 32];
  const int vectors = static_cast<int>(args.width / 4);
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * args.width;
  Row x;
  x.load(args.x + at, vectors);
  if (args.branch != nullptr) {
    Row branch;
    branch.load(args.branch + at, vectors);
    if (args.post_norm != nullptr) branch.norm(args.post_norm, args.eps, vectors, warps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x.v[i].x = (x.v[i].x + branch.v[i].x) * args.scale;
      x.v[i].y = (x.v[i].y + branch.v[i].y) * args.scale;
      x.v[i].z = (x.v[i].z + branch.v[i].z) * args.scale;
      x.v[i].w = (x.v[i].w + branch.v[i].w) * args.scale;
    }
    x.store(args.x + at, vectors);
  }
  if (args.out == nullptr) return;
  if (args.norm != nullptr) x.norm(args.norm, args.eps, vectors, warps);
  x.store_bf16(args.out + at, vectors);
}

__global__ void __launch_bounds__(kRowThreads)
    head_norm_row(const __grid_constant__ HeadNorm args) {
  begin();
  __shared__ float warps[kRowThreads / 32];
  const int vectors = static_cast<int>(args.width / 4);
  Row x;
  x.load(args.x + args.chosen[blockIdx.x] * args.width, vectors);
  x.norm(args.norm, args.eps, vectors, warps);
  const std::int64_t to = static_cast<std::int64_t>(blockIdx.x) * args.width;
  x.store(args.hidden + to, vectors);
  x.store_bf16(args.out + to, vectors);
}

__global__ void embed_row(const std::uint16_t* table, const std::int32_t* tokens, int hidden,
                          float scale, float* x) {
  begin();
  const std::int64_t token = tokens[blockIdx.x];
  float* const out = x + static_cast<std::int64_t>(blockIdx.x) * hidden;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += static_cast<int>(blockDim.x)) {
    const std::int64_t at = packed_index(hidden / kInputBlock, token, i);
    out[i] = __bfloat162float(__ushort_as_bfloat16(table[at])) * scale;
  }
}

__global__ void angle_row(const __grid_constant__ Angles args) {
  begin();
  float* const cosine = args.cos_sin + static_cast<std::int64_t>(blockIdx.x) * 2 * args.half;
  for (int i = static_cast<int>(threadIdx.x); i < args.half; i += static_cast<int>(blockDim.x)) {
    double s = 0, c = 0;
    sincos(static_cast<double>(args.positions[blockIdx.x]) * static_cast<double>(args.inv_freq[i]),
           &s, &c);
    cosine[i] = static_cast<float>(c);
    cosine[args.half + i] = static_cast<float>(s);
  }
}

/// A warp per head: queries first, then keys, then values.
__global__ void __launch_bounds__(32 * kHeadWarps) head_rows(const __grid_constant__ Heads args) {
  begin();
  __shared__ float shared[kHeadWarps][kMaxHeadDim];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int kv_heads = args.kv.kv_heads, dim = args.rope.head_dim;
  const int head = static_cast<int>(blockIdx.x) * kHeadWarps + warp;
  if (head >= args.q_heads + 2 * kv_heads) return;
  const std::int64_t row = blockIdx.y;
  const bool query = head < args.q_heads;
  const bool value = head >= args.q_heads + kv_heads;
  const int stored = args.q_heads + (args.v_from_k ? 1 : 2) * kv_heads;
  const int source = value && args.v_from_k ? head - kv_heads : head;
  const float* const from = args.qkv + (row * stored + source) * dim;
  float* const x = shared[warp];
  float squares = 0;
  for (int i = lane; i < dim; i += 32) {
    x[i] = from[i];
    squares += x[i] * x[i];
  }
  const float* const weight = query ? args.q_norm : value ? nullptr : args.k_norm;
  if (value ? args.v_norm : weight != nullptr) {
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + args.eps);
    for (int i = lane; i < dim; i += 32)
      x[i] = x[i] * inverse * (weight != nullptr ? weight[i] : 1.0f);
  }
  __syncwarp();
  if (!value) {
    const int half = args.rope.rotary / 2;
    const float* const cosine = args.cos_sin + row * 2 * half;
    for (int i = lane; i < half; i += 32) {
      const bool adjacent = args.rope.pairs == RopePairs::kAdjacent;
      const int a = adjacent ? 2 * i : i, b = adjacent ? a + 1 : i + args.rope.distance;
      const float c = cosine[i], s = cosine[half + i], p = x[a], q = x[b];
      x[a] = p * c - q * s;
      x[b] = q * c + p * s;
    }
    __syncwarp();
  }
  if (query) {
    std::uint16_t* const to = args.q + (row * args.q_heads + head) * dim;
    for (int i = lane; i < dim; i += 32) to[i] = bf16_of(x[i]);
    return;
  }
  const std::int64_t page = args.slots[row] / args.kv.page_size;
  const int token = static_cast<int>(args.slots[row] % args.kv.page_size);
  if (page < 0 || page >= args.kv.pages) return;
  const int kv_head = (head - args.q_heads) % kv_heads;
  const std::int64_t block = page * args.kv.page_stride + kv_head * args.kv.head_stride;
  std::byte* const to = (value ? args.kv.v : args.kv.k) + block;
  for (int i = 2 * lane; i < dim; i += 64) {  // two dims lie together in every layout of a GPU
    const std::int64_t at = value ? args.kv.v_offset(token, i) : args.kv.k_offset(token, i);
    *reinterpret_cast<ushort2*>(to + at) = make_ushort2(bf16_of(x[i]), bf16_of(x[i + 1]));
  }
}

__device__ __forceinline__ float logistic_times(float x, float z) { return x / (1.0f + expf(-z)); }

__global__ void gate_rows(const __grid_constant__ Gate args) {
  begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t stride = in_blocks(args.width);
  if (i >= stride) return;
  const std::int64_t row = blockIdx.y;
  if (i >= args.width) {
    args.out[row * stride + i] = 0;
    return;
  }
  const float x = args.gate[row * args.gate_stride + i];
  const float up = args.up[row * args.up_stride + i];
  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
  const float z = args.gelu ? 1.59576912f * (x + 0.044715f * x * x * x) : x;
  args.out[row * stride + i] = bf16_of(logistic_times(x, z) * up);
}

/// A warp has the part of one layer. Floor: 10 bytes an element, a few hundred kilobytes a row,
/// most of which the projection has just left in the second-level cache; bound by its launch.
__global__ void __launch_bounds__(32 * kHeadWarps)
    per_layer_rows(const __grid_constant__ PerLayer args) {
  begin();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int layer = static_cast<int>(blockIdx.x) * kHeadWarps + warp;
  if (layer >= args.layers) return;
  const std::int64_t at =
      (blockIdx.y * static_cast<std::int64_t>(args.layers) + layer) * args.width;
  float* const x = args.projected + at;
  float squares = 0;
  for (int i = lane; i < args.width; i += 32) {
    const float value = x[i] * args.projected_scale;
    squares += value * value;
  }
  const float mean = warp_sum(squares) / static_cast<float>(args.width);
  const float inverse = args.projected_scale / sqrtf(mean + args.eps);
  for (int i = lane; i < args.width; i += 32) {
    const float token = __bfloat162float(__ushort_as_bfloat16(args.tokens[at + i]));
    x[i] = (token * args.token_scale + x[i] * inverse * args.norm[i]) * 0.70710678f;
  }
}

__global__ void softcap_all(float* x, float cap, std::int64_t count) {
  begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) x[i] = cap * tanhf(x[i] / cap);
}

constexpr int kThreads = 256;

/// A warp has a block of logits.
__global__ void maxima_of_blocks(const __grid_constant__ Maxima args) {
  begin();
  const std::int64_t block = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const std::int64_t blocks = (args.vocab + kMaximaBlock - 1) / kMaximaBlock;
  if (block >= blocks) return;
  const float* const logits = args.logits + blockIdx.y * args.vocab;
  const unsigned lane = threadIdx.x % 32;
  float largest = -INFINITY;
#pragma unroll
  for (int half = 0; half < kMaximaBlock / 32; ++half) {
    const std::int64_t i = block * kMaximaBlock + half * 32 + lane;
    if (i < args.vocab) largest = fmaxf(largest, logits[i]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  if (lane == 0) args.out[blockIdx.y * blocks + block] = fminf(largest, FLT_MAX);
}

template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, const device::Stream& stream,
            std::type_identity_t<Parameters>... parameters) {
  static const bool overlaps = device::launches_overlap();
  device::enqueue<Parameters...>(kernel, grid, {threads, 0, overlaps}, device::cuda_stream(stream),
                                 parameters...);
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

void embed(const Embed& args, const device::Stream& stream) {
  if (args.rows == 0) return;
  launch(embed_row, static_cast<unsigned>(args.rows), kThreads, stream, args.table->elements(),
         args.tokens, static_cast<int>(args.table->inputs()), args.scale, args.x);
}

void add_norm(const AddNorm& args, const device::Stream& stream) {
  CHECK(args.width % 4 == 0 && args.width <= kMaxWidth);
  if (args.rows == 0) return;
  launch(add_norm_row, static_cast<unsigned>(args.rows), kRowThreads, stream, args);
}

void head_norm(const HeadNorm& args, const device::Stream& stream) {
  CHECK(args.width % 4 == 0 && args.width <= kMaxWidth);
  if (args.rows == 0) return;
  launch(head_norm_row, static_cast<unsigned>(args.rows), kRowThreads, stream, args);
}

void angles(const Angles& args, const device::Stream& stream) {
  if (args.rows == 0) return;
  launch(angle_row, static_cast<unsigned>(args.rows), 128, stream, args);
}

void heads(const Heads& args, const device::Stream& stream) {
  CHECK(args.rope.head_dim <= kMaxHeadDim && args.rope.head_dim % 2 == 0);
  CHECK(args.rows < 65536);
  if (args.rows == 0) return;
  const int all = args.q_heads + 2 * args.kv.kv_heads;
  const dim3 grid(static_cast<unsigned>((all + kHeadWarps - 1) / kHeadWarps),
                  static_cast<unsigned>(args.rows));
  launch(head_rows, grid, 32 * kHeadWarps, stream, args);
}

void gate(const Gate& args, const device::Stream& stream) {
  CHECK(args.rows < 65536);
  if (args.rows == 0) return;
  const dim3 grid(blocks_for(in_blocks(args.width)), static_cast<unsigned>(args.rows));
  launch(gate_rows, grid, kThreads, stream, args);
}

void per_layer(const PerLayer& args, const device::Stream& stream) {
  CHECK(args.rows < 65536);
  if (args.rows == 0) return;
  const dim3 grid(static_cast<unsigned>((args.layers + kHeadWarps - 1) / kHeadWarps),
                  static_cast<unsigned>(args.rows));
  launch(per_layer_rows, grid, 32 * kHeadWarps, stream, args);
}

void block_maxima(const Maxima& args, const device::Stream& stream) {
  CHECK(args.rows < 65536);
  if (args.rows == 0) return;
  const std::int64_t blocks = (args.vocab + kMaximaBlock - 1) / kMaximaBlock;
  launch(maxima_of_blocks, dim3(blocks_for(32 * blocks), static_cast<unsigned>(args.rows)),
         kThreads, stream, args);
}

void softcap(float* x, float cap, std::int64_t count, const device::Stream& stream) {
  if (count == 0) return;
  launch(softcap_all, blocks_for(count), kThreads, stream, x, cap, count);
}

}  // namespace segue::ops::cuda
