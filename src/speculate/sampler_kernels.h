// SPDX-License-Identifier: Apache-2.0
// The loops of the sampler that touch the whole vocabulary, compiled once per instruction level.
// All of them use single IEEE operations in a fixed order or integers, so every level returns the
// same bits.
#pragma once

#include <cstdint>

namespace segue::speculate {

inline constexpr int kSampleBlock = 64;           // tokens per block
inline constexpr float kLargestNoise = 22.25f;    // no Gumbel noise from 32 bits is larger
inline constexpr float kLeastMassScore = -24.0f;  // scores at or below have mass 0

/// What turns a logit x into a score, (x - largest) * inverse_temperature, and which tokens may
/// win.
struct ScoreRule {
  float largest = 0.0f;              // finite
  float inverse_temperature = 1.0f;  // finite, > 0
  float cut = 0.0f;                  // tokens with x > cut may win,
  std::int32_t cut_token = 0;        // and those with x == cut up to this one
};

/// Key of the noise: a function of (seed, position, token).
struct NoiseKey {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;
};

struct BestToken {
  float score;
  std::int32_t token;
};

struct SamplerKernels {
  /// maxima[b] = largest logit of block b; NaN is skipped, +inf becomes the largest finite float.
  void (*block_maxima)(const float* logits, std::int64_t count,
                       float* maxima);  // [count], [ceil(count / 64)]

  /// masses[i] = exp(score i) * 2^30 rounded to an integer (0 for NaN); returns their sum. count
  /// <= 64.
  std::int64_t (*masses)(const ScoreRule& rule, const float* logits, int count,
                         std::int32_t* masses);

  /// Replaces `best` by the token of this block with a larger score plus noise, or an equal one and
  /// a lower id. `first_token` is a multiple of 64, count <= 64.
  void (*best_of_block)(const ScoreRule& rule, const NoiseKey& key, const float* logits, int count,
                        std::int32_t first_token, BestToken* best);

  /// The 32 random bits of the 64 tokens of block `block`.
  void (*random_block)(const NoiseKey& key, std::uint32_t block, std::uint32_t* bits);  // [64]

  /// Of a positive normal float, to about 1 ulp.
  float (*natural_log)(float x);

  /// Standard Gumbel noise of 32 random bits: increasing in them, below kLargestNoise.
  float (*gumbel)(std::uint32_t bits);
};

namespace portable {
extern const SamplerKernels kSamplerKernels;
}
namespace avx2 {
extern const SamplerKernels kSamplerKernels;
}
namespace avx512 {
extern const SamplerKernels kSamplerKernels;
}
namespace neon {
extern const SamplerKernels kSamplerKernels;
}

}  // namespace segue::speculate
