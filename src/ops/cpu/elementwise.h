// SPDX-License-Identifier: Apache-2.0
// Everything between the matrix products that works on rows of floats: norms, rotary embedding,
// gated activations. One table of functions per instruction level; each runs on the calling thread,
// and callers split by rows. An element's bits do not depend on the length of the call or its place
// in it (own exp, no libm). `out` may be the input itself unless a function says otherwise.
#pragma once

#include <cstdint>

#include "core/cpu.h"

namespace segue::ops {

enum class RopePairs : std::uint8_t {
  kSplitHalf,  // (i, i + distance): Gemma, most HF models
  kAdjacent,   // (2i, 2i + 1): llama files in GGUF
};

/// Which dimensions of a head rotate: pairs i in [0, rotary / 2).
struct RopeShape {
  int heads = 0;
  int head_dim = 0;
  int rotary = 0;
  int distance = 0;  // rotary / 2: the leading dims; head_dim / 2: "proportional" (Gemma 4)
  RopePairs pairs = RopePairs::kSplitHalf;
};

struct Elementwise {
  /// out = x * weight / sqrt(mean(x^2) + eps), each row by itself; weight null means 1. For
  /// per-head norms pass rows * heads rows of head_dim.
  void (*rms_norm)(const float* x /*[rows, x_stride]*/, std::int64_t x_stride,
                   const float* weight /*[n] or null*/, float eps, std::int64_t rows,
                   std::int64_t n, float* out /*[rows, out_stride]*/, std::int64_t out_stride);
  /// Rotates the pairs of every head in place; the other dims are left alone.
  void (*rope)(float* x /*[rows, x_stride], heads of head_dim side by side*/, std::int64_t x_stride,
               const float* cos_sin /*[rows, 2, rotary / 2], see rope_table*/, std::int64_t rows,
               const RopeShape& shape);
  /// out = gelu(gate) * up with the tanh form of gelu.
  void (*gelu_tanh_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  /// out = gate / (1 + exp(-gate)) * up.
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  void (*add)(const float* a, const float* b, std::int64_t n, float* out);
  void (*scale)(const float* x, float factor, std::int64_t n, float* out);
  /// out = cap * tanh(x / cap).
  void (*softcap)(const float* x, float cap, std::int64_t n, float* out);
};

/// The functions of one level; the level must be available (core::isa_available).
const Elementwise& elementwise(core::IsaLevel isa);

/// Cosines, then sines, of position * inv_freq[i] for each row; both multiplied by `magnitude`.
/// Angles in double.
void rope_table(const std::int32_t* positions /*[rows]*/, std::int64_t rows,
                const float* inv_freq /*[half]*/, int half, float magnitude,
                float* cos_sin /*[rows, 2, half]*/);

}  // namespace segue::ops
