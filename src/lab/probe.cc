// SPDX-License-Identifier: Apache-2.0
// Hand-written loops, because a compiler's choice would change what "plain" means from build to
// build.
#include "lab/probe.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/clock.h"
#include "core/cpu.h"
#include "lab/stats.h"

namespace segue::lab {
namespace {

constexpr std::int64_t kFmaRounds = 80'000;  // about a millisecond

std::uint64_t read_portable(const std::byte* data, std::size_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 64 <= bytes; i += 64) {
    std::uint64_t words[8];
    std::memcpy(words, data + i, sizeof(words));
    for (int lane = 0; lane < 8; ++lane) sums[lane] ^= words[lane];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t value : sums) sum ^= value;
  return sum;
}

/// Returns operations; `out` keeps the work alive.
double fma_portable(float* out) {
  float sums[16];
  std::fill(std::begin(sums), std::end(sums), 1.0f);
  for (std::int64_t i = 0; i < kFmaRounds; ++i) {
    for (float& sum : sums) sum = sum * 0.999f + 0.001f;
  }
  for (const float sum : sums) *out += sum;
  return 2.0 * 16 * static_cast<double>(kFmaRounds);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) std::uint64_t read_avx512(const std::byte* data,
                                                             std::size_t bytes) {
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  __m512i c = a;
  __m512i d = a;
  for (std::size_t i = 0; i + 256 <= bytes; i += 256) {
    a = _mm512_xor_si512(a, _mm512_loadu_si512(data + i));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(data + i + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(data + i + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(data + i + 192));
  }
  a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
  std::uint64_t words[8];
  std::memcpy(words, &a, sizeof(words));
  return words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4] ^ words[5] ^ words[6] ^ words[7];
}

__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::byte* data, std::size_t bytes) {
  __m256i sums[4];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (std::size_t i = 0; i + 128 <= bytes; i += 128) {
    for (int lane = 0; lane < 4; ++lane) {
      const auto* p =
          reinterpret_cast<const __m256i*>(data + i + 32 * static_cast<std::size_t>(lane));
      sums[lane] = _mm256_xor_si256(sums[lane], _mm256_loadu_si256(p));
    }
  }
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  std::uint64_t words[4];
  std::memcpy(words, &all, sizeof(words));
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

__attribute__((target("avx512f"))) double fma_avx512(float* out) {
  constexpr int kSums = 12;
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 factor = _mm512_set1_ps(0.999f);
  const __m512 term = _mm512_set1_ps(0.001f);
  for (std::int64_t i = 0; i < kFmaRounds; ++i) {
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, factor, term);
  }
  for (const __m512& sum : sums) *out += _mm512_cvtss_f32(sum);
  return 2.0 * kSums * 16 * static_cast<double>(kFmaRounds);
}

__attribute__((target("avx2,fma"))) double fma_avx2(float* out) {
  constexpr int kSums = 12;
  __m256 sums[kSums];
  for (__m256& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 factor = _mm256_set1_ps(0.999f);
  const __m256 term = _mm256_set1_ps(0.001f);
  for (std::int64_t i = 0; i < kFmaRounds; ++i) {
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, factor, term);
  }
  for (const __m256& sum : sums) *out += _mm256_cvtss_f32(sum);
  return 2.0 * kSums * 8 * static_cast<double>(kFmaRounds);
}
#endif

using ReadLoop = std::uint64_t (*)(const std::byte*, std::size_t);
using FmaLoop = double (*)(float*);

ReadLoop read_loop() {
#if defined(__x86_64__)
  if (core::isa_available(core::IsaLevel::kAvx512)) return read_avx512;
  if (core::isa_available(core::IsaLevel::kAvx2)) return read_avx2;
#endif
  return read_portable;
}

FmaLoop fma_loop() {
#if defined(__x86_64__)
  if (core::isa_available(core::IsaLevel::kAvx512)) return fma_avx512;
  if (core::isa_available(core::IsaLevel::kAvx2)) return fma_avx2;
#endif
  return fma_portable;
}

}  // namespace

double read_gbps(core::ThreadPool& pool, const std::byte* data, std::size_t bytes, int passes) {
  const ReadLoop loop = read_loop();
  const auto threads = static_cast<std::size_t>(pool.threads());
  const std::size_t slice = bytes / threads / 256 * 256;
  std::atomic<std::uint64_t> sink{0};
  std::vector<double> rates;
  for (int pass = 0; pass <= passes; ++pass) {
    const double start = core::now_us();
    pool.run([&](int worker) {
      sink.fetch_xor(loop(data + static_cast<std::size_t>(worker) * slice, slice),
                     std::memory_order_relaxed);
    });
    const double us = core::now_us() - start;
    if (pass > 0) rates.push_back(static_cast<double>(slice * threads) / us / 1e3);
  }
  return median(rates);
}

double peak_gflops(core::ThreadPool& pool, int runs) {
  const FmaLoop loop = fma_loop();
  std::vector<double> rates;
  std::vector<float> sinks(static_cast<std::size_t>(pool.threads()) * 16);
  for (int run = 0; run < runs; ++run) {
    std::atomic<double> operations{0};
    const double start = core::now_us();
    pool.run([&](int worker) {
      operations.fetch_add(loop(&sinks[static_cast<std::size_t>(worker) * 16]));
    });
    rates.push_back(operations.load() / (core::now_us() - start) / 1e3);
  }
  return median(rates);
}

}  // namespace segue::lab
