// SPDX-License-Identifier: Apache-2.0
// The sampler's loops over logits, once per instruction level. The loops have fixed trip counts
// over small arrays, which compilers turn into vectors; floating-point contraction is off
// (segue_isa_library), so a level only changes speed.
//
// Noise: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") with key
// = seed and counter = (block, position, 0); token t uses word (t / 16) % 4 of block (t / 64) * 16
// + t % 16, so that 16 neighbours are 16 independent blocks. 32 bits become v in (0, 1), then
// -log(-log(1 - v)), exact in the right tail where winners are.
#include <cstdint>

#include "speculate/sampler_kernels.h"

namespace segue::speculate {
namespace ISA {
namespace {

// Always inlined below is what loops call: a call inside a loop would keep it scalar.

constexpr int kLanes = 16;
constexpr float kLargestFloat = 0x1.fffffep127f;
constexpr float kMinusInfinity = -__builtin_inff();

[[gnu::always_inline]] inline float finite(float x) {
  return x > kLargestFloat ? kLargestFloat : x;
}  // NaN and -inf stay

/// log(2^exponent * (1 + f)) for f in [sqrt(1/2) - 1, sqrt(2) - 1]. Coefficients: minimax fit of
/// (log(1 + f) - f + f^2 / 2) / f^3, relative error of the logarithm 6e-9 before rounding.
[[gnu::always_inline]] inline float log_of(float f, float exponent) {
  float p = -0x1.38b576p-4f;
  p = p * f + 0x1.055b68p-3f;
  p = p * f - 0x1.0d8542p-3f;
  p = p * f + 0x1.22da1ep-3f;
  p = p * f - 0x1.547244p-3f;
  p = p * f + 0x1.99a008p-3f;
  p = p * f - 0x1.000226p-2f;
  p = p * f + 0x1.555554p-2f;
  const float square = f * f;
  const float low = square * f * p + exponent * 0x1.7f7d1cp-20f;  // log 2 in two parts
  return exponent * 0x1.62e4p-1f + (f - (0.5f * square - low));
}

/// x positive and normal.
[[gnu::always_inline]] inline float log_normal(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x) + (0x3f800000u - 0x3f3504f3u);
  const std::int32_t exponent = static_cast<std::int32_t>(bits >> 23) - 127;
  const float mantissa = __builtin_bit_cast(float, (bits & 0x007fffffu) + 0x3f3504f3u);
  return log_of(mantissa - 1.0f, static_cast<float>(exponent));
}

[[gnu::always_inline]] inline float gumbel(std::uint32_t bits) {
  float v = static_cast<float>(static_cast<std::int32_t>(bits >> 1)) * 0x1p-31f + 0x1p-32f;
  v = v < 0x1.fffffep-1f ? v : 0x1.fffffep-1f;
  // log(1 - v): where 1 - v would round, its exponent is 0 and f = -v is exact.
  const std::uint32_t shifted =
      __builtin_bit_cast(std::uint32_t, 1.0f - v) + (0x3f800000u - 0x3f3504f3u);
  const std::int32_t exponent = static_cast<std::int32_t>(shifted >> 23) - 127;
  const float mantissa = __builtin_bit_cast(float, (shifted & 0x007fffffu) + 0x3f3504f3u);
  const std::uint32_t exact = exponent == 0 ? ~0u : 0u;
  const float f =
      __builtin_bit_cast(float, (__builtin_bit_cast(std::uint32_t, -v) & exact) |
                                    (__builtin_bit_cast(std::uint32_t, mantissa - 1.0f) & ~exact));
  return -log_normal(-log_of(f, static_cast<float>(exponent)));
}

/// exp(score) * 2^30 rounded; score <= 0 or NaN.
[[gnu::always_inline]] inline std::int32_t mass_of(float score) {
  const float y = score > kLeastMassScore ? score : kLeastMassScore;
  const std::int32_t n = static_cast<std::int32_t>(y * 0x1.715476p0f - 0.5f);
  const float whole = static_cast<float>(n);
  const float r = (y - whole * 0x1.62e4p-1f) - whole * 0x1.7f7d1cp-20f;
  float p = 0x1.6a244cp-10f;  // minimax fit of (exp(r) - 1 - r) / r^2, relative error of exp 3e-9
                              // before rounding
  p = p * r + 0x1.1239d4p-7f;
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  const float value = (p * (r * r) + r) + 1.0f;
  const float scale = __builtin_bit_cast(float, static_cast<std::uint32_t>(n + 127 + 30) << 23);
  return static_cast<std::int32_t>(value * scale + 0.5f);
}

struct Words {
  std::uint32_t a, b, c, d;
};

[[gnu::always_inline]] inline Words philox_round(Words w, std::uint32_t key0, std::uint32_t key1) {
  const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * w.a;
  const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * w.c;
  return {static_cast<std::uint32_t>(p1 >> 32) ^ w.b ^ key0, static_cast<std::uint32_t>(p1),
          static_cast<std::uint32_t>(p0 >> 32) ^ w.d ^ key1, static_cast<std::uint32_t>(p0)};
}

void random_block(const NoiseKey& key, std::uint32_t block, std::uint32_t* out) {  // [64]
  const auto k0 = static_cast<std::uint32_t>(key.seed);
  const auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
  const auto position_low = static_cast<std::uint32_t>(key.position);
  const auto position_high = static_cast<std::uint32_t>(key.position >> 32);
  for (int lane = 0; lane < kLanes; ++lane) {
    Words w{block * kLanes + static_cast<std::uint32_t>(lane), position_low, position_high, 0u};
#pragma GCC unroll 10
    for (std::uint32_t round = 0; round < 10; ++round) {
      w = philox_round(w, k0 + round * 0x9E3779B9u, k1 + round * 0xBB67AE85u);
    }
    out[lane] = w.a;
    out[kLanes + lane] = w.b;
    out[2 * kLanes + lane] = w.c;
    out[3 * kLanes + lane] = w.d;
  }
}

void block_maxima(const float* logits, std::int64_t count, float* maxima) {
  for (std::int64_t first = 0; first < count; first += kSampleBlock) {
    float lanes[kLanes];
    for (float& lane : lanes) lane = kMinusInfinity;
    const float* block = logits + first;
    if (count - first >= kSampleBlock) {
      for (int i = 0; i < kSampleBlock; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) {
          lanes[lane] = block[i + lane] > lanes[lane] ? block[i + lane] : lanes[lane];
        }
      }
    } else {
      for (int i = 0; i < count - first; ++i) lanes[0] = block[i] > lanes[0] ? block[i] : lanes[0];
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) {
        lanes[lane] = lanes[lane + half] > lanes[lane] ? lanes[lane + half] : lanes[lane];
      }
    }
    maxima[first / kSampleBlock] = finite(lanes[0]);
  }
}

/// Copies a block and fills it up with tokens that cannot win.
void load_block(const float* logits, int count, float* block) {  // [64]
  if (count == kSampleBlock) {
    for (int i = 0; i < kSampleBlock; ++i) block[i] = finite(logits[i]);
  } else {
    for (int i = 0; i < kSampleBlock; ++i)
      block[i] = i < count ? finite(logits[i]) : kMinusInfinity;
  }
}

std::int64_t masses(const ScoreRule& rule, const float* logits, int count, std::int32_t* out) {
  float x[kSampleBlock];
  std::int32_t mass[kSampleBlock];
  load_block(logits, count, x);
  for (int i = 0; i < kSampleBlock; ++i)
    mass[i] = mass_of((x[i] - rule.largest) * rule.inverse_temperature);
  std::int64_t sum = 0;
  for (int i = 0; i < kSampleBlock; ++i) sum += mass[i];
  for (int i = 0; i < count; ++i) out[i] = mass[i];
  return sum;
}

void best_of_block(const ScoreRule& rule, const NoiseKey& key, const float* logits, int count,
                   std::int32_t first_token, BestToken* best) {
  float x[kSampleBlock];
  std::uint32_t bits[kSampleBlock];
  float score[kSampleBlock];
  load_block(logits, count, x);
  random_block(key, static_cast<std::uint32_t>(first_token) / kSampleBlock, bits);
  // Two loops: one with everything under a condition would not become vector code.
  for (int i = 0; i < kSampleBlock; ++i) {
    score[i] = (x[i] - rule.largest) * rule.inverse_temperature + gumbel(bits[i]);
  }
  for (int i = 0; i < kSampleBlock; ++i) {
    const bool allowed =
        (x[i] > rule.cut) | ((x[i] == rule.cut) & (first_token + i <= rule.cut_token));
    score[i] = allowed ? score[i] : kMinusInfinity;
  }
  float lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = score[lane];
  for (int i = kLanes; i < kSampleBlock; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = score[i + lane] > lanes[lane] ? score[i + lane] : lanes[lane];
    }
  }
  float largest = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
  if (largest < best->score || largest == kMinusInfinity) return;
  int first = 0;
  while (!(score[first] == largest)) ++first;
  const std::int32_t token = first_token + first;
  if (largest > best->score || token < best->token) *best = {largest, token};
}

}  // namespace

const SamplerKernels kSamplerKernels{block_maxima, masses,     best_of_block,
                                     random_block, log_normal, gumbel};

}  // namespace ISA
}  // namespace segue::speculate
