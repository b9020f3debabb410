// SPDX-License-Identifier: Apache-2.0
// Everything between the matrix products of a step, on a GPU: rows of activations in, rows out. A
// row's bits depend on that row alone: one block or warp owns it and adds in a fixed order. All
// pointers are device memory; bf16 values are what the next product or attention reads.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/view.h"
#include "ops/cpu/elementwise.h"
#include "ops/cuda/matrix.h"

namespace segue::ops::cuda {

/// Widest row that add_norm takes.
inline constexpr std::int64_t kMaxWidth = 16384;

/// x = rows of `table` [vocab, hidden], scaled.
struct Embed {
  const Matrix* table = nullptr;
  const std::int32_t* tokens = nullptr;  // [rows]
  float scale = 1.0f;
  float* x = nullptr;  // [rows, hidden]
  std::int64_t rows = 0;
};
void embed(const Embed& args, const device::Stream& stream);

/// x = (x + post_norm(branch)) * scale, then out = norm(x): the end of one half of a layer and the
/// start of the next.
struct AddNorm {
  float* x = nullptr;                // [rows, width]
  const float* branch = nullptr;     // [rows, width], or null: x stays
  const float* post_norm = nullptr;  // [width], or null: the branch is added as it is
  float scale = 1.0f;                // with a branch only
  const float* norm = nullptr;       // [width], or null: `out` is x
  std::uint16_t* out = nullptr;      // [rows, width] bf16, or null
  float eps = 1e-6f;
  std::int64_t rows = 0;
  std::int64_t width = 0;  // a multiple of 4, at most kMaxWidth
};
void add_norm(const AddNorm& args, const device::Stream& stream);

/// Rows that asked for logits: out = norm(x[chosen[i]]), and the same in f32.
struct HeadNorm {
  const float* x = nullptr;              // [.., width]
  const std::int32_t* chosen = nullptr;  // [rows]
  const float* norm = nullptr;           // [width]
  std::uint16_t* out = nullptr;          // [rows, width] bf16
  float* hidden = nullptr;               // [rows, width]
  float eps = 1e-6f;
  std::int64_t rows = 0;
  std::int64_t width = 0;  // as in AddNorm
};
void head_norm(const HeadNorm& args, const device::Stream& stream);

/// Cosines, then sines, of position * inv_freq[i], angles in double: as ops::rope_table.
struct Angles {
  const std::int32_t* positions = nullptr;  // [rows]
  const float* inv_freq = nullptr;          // [half]
  float* cos_sin = nullptr;                 // [rows, 2, half]
  std::int64_t rows = 0;
  int half = 0;
};
void angles(const Angles& args, const device::Stream& stream);

/// Norms per head and RoPE; queries to `q`, keys and values into their pages.
struct Heads {
  const float* qkv = nullptr;     // [rows, (q_heads + kv_heads (+ kv_heads)) * head_dim]
  const float* q_norm = nullptr;  // [head_dim], or null
  const float* k_norm = nullptr;
  bool v_norm = false;    // without a weight
  bool v_from_k = false;  // V is K before norm and RoPE, and qkv has no part for it
  float eps = 1e-6f;
  const float* cos_sin = nullptr;       // [rows, 2, rotary / 2]
  const std::int64_t* slots = nullptr;  // [rows] page * page_size + token of each row
  RopeShape rope;                       // `heads` is not read
  int q_heads = 0;
  kv::View kv;                 // bf16
  std::uint16_t* q = nullptr;  // [rows, q_heads, head_dim] bf16
  std::int64_t rows = 0;
};
void heads(const Heads& args, const device::Stream& stream);

/// out = activation(gate) * up.
struct Gate {
  const float* gate = nullptr;  // [rows, width], rows gate_stride apart
  std::int64_t gate_stride = 0;
  const float* up = nullptr;  // [rows, width], rows up_stride apart
  std::int64_t up_stride = 0;
  bool gelu = false;             // gelu in its tanh form; otherwise silu
  std::uint16_t* out = nullptr;  // [rows, in_blocks(width)] bf16, zeros behind the width
  std::int64_t rows = 0;
  std::int64_t width = 0;
};
void gate(const Gate& args, const device::Stream& stream);

/// What every layer adds of its embedding, from the part of the token and the projection of the
/// first layer's input: (token * token_scale + norm(projected * projected_scale)) / sqrt(2).
struct PerLayer {
  const std::uint16_t* tokens = nullptr;  // [rows, layers, width] bf16
  float* projected = nullptr;             // [rows, layers, width], and the result
  const float* norm = nullptr;            // [width]
  float token_scale = 1.0f;
  float projected_scale = 1.0f;
  float eps = 1e-6f;
  std::int64_t rows = 0;
  int layers = 0;
  int width = 0;
};
void per_layer(const PerLayer& args, const device::Stream& stream);

/// x = cap * tanh(x / cap).
void softcap(float* x, float cap, std::int64_t count, const device::Stream& stream);

/// The largest of every 64 logits of a row, so that who samples on the host reads a few of them:
/// NaN is skipped, +inf is the largest finite float.
inline constexpr int kMaximaBlock = 64;
struct Maxima {
  const float* logits = nullptr;  // [rows, vocab]
  float* out = nullptr;           // [rows, ceil(vocab / kMaximaBlock)]
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
};
void block_maxima(const Maxima& args, const device::Stream& stream);

}  // namespace segue::ops::cuda
