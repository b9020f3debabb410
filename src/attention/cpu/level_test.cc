// SPDX-License-Identifier: Apache-2.0
// The parts of a level that a whole attention cannot show: exp and tanh over their range, the
// identities of the merge, and what follows the last merge. Every level of this machine.
#include "attention/cpu/level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/cpu.h"
#include "core/tolerance.h"

namespace segue::attention {
namespace {

using cpu::Level;
using cpu::Partial;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Named {
  core::IsaLevel isa;
  const Level* level;
};

std::vector<Named> levels() {
  std::vector<Named> all{{core::IsaLevel::kPortable, &portable::kLevel}};
#if defined(__x86_64__)
  all.push_back({core::IsaLevel::kAvx2, &avx2::kLevel});
  all.push_back({core::IsaLevel::kAvx512, &avx512::kLevel});
#elif defined(__aarch64__)
  all.push_back({core::IsaLevel::kNeon, &neon::kLevel});
#endif
  std::erase_if(all, [](const Named& named) { return !core::isa_available(named.isa); });
  return all;
}

class EveryLevel : public testing::TestWithParam<Named> {
 protected:
  const Level& level() const { return *GetParam().level; }

  /// Largest error in units of the last place of the exact result, over 2^20 floats of [low, high]
  /// evenly by bits.
  template <class F>
  double worst_ulps(void (*function)(const float*, float*, int), F exact, float low,
                    float high) const {
    const auto first = static_cast<std::int64_t>(std::bit_cast<std::int32_t>(low));
    const auto last = static_cast<std::int64_t>(std::bit_cast<std::int32_t>(high));
    constexpr int kCount = 1 << 20;
    std::vector<float> x(kCount), y(kCount);
    for (int i = 0; i < kCount; ++i) {
      x[i] = std::bit_cast<float>(
          static_cast<std::int32_t>(first + (last - first) * i / (kCount - 1)));
    }
    function(x.data(), y.data(), kCount);
    double worst = 0;
    for (int i = 0; i < kCount; ++i) {
      const double expected = exact(static_cast<double>(x[i]));
      const auto nearest = static_cast<float>(expected);
      const double ulp =
          std::abs(static_cast<double>(std::nextafter(nearest, 2 * nearest)) - nearest);
      worst = std::max(worst, std::abs(y[i] - expected) / ulp);
    }
    return worst;
  }
};

INSTANTIATE_TEST_SUITE_P(Levels, EveryLevel, testing::ValuesIn(levels()), [](const auto& named) {
  return std::string(core::isa_name(named.param.isa));
});

TEST_P(EveryLevel, ExpKeepsItsBound) {
  const auto exact = [](double x) { return std::exp(x); };
  const double worst = std::max(worst_ulps(level().exp, exact, -1e-8f, -87.33f),
                                worst_ulps(level().exp, exact, 1e-8f, 88.0f));
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_LT(worst, cpu::kExpUlps);
}

TEST_P(EveryLevel, TanhKeepsItsBound) {
  const auto exact = [](double x) { return std::tanh(x); };
  const double worst = std::max(worst_ulps(level().tanh, exact, 1e-30f, 20.0f),
                                worst_ulps(level().tanh, exact, -1e-30f, -20.0f));
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_LT(worst, cpu::kTanhUlps);
}

TEST_P(EveryLevel, ExpAndTanhKeepTheirLimits) {
  std::vector<float> x{-kInfinity, -1e30f,    -88.0f,     0.0f,  -0.0f,
                       kNan,       kInfinity, -kInfinity, 100.0f};
  x.resize(16);
  std::vector<float> y(16);
  level().exp(x.data(), y.data(), 16);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_EQ(y[3], 1.0f);
  EXPECT_EQ(y[4], 1.0f);
  EXPECT_TRUE(std::isnan(y[5]));
  level().tanh(x.data(), y.data(), 16);
  EXPECT_TRUE(std::isnan(y[5]));
  EXPECT_EQ(y[6], 1.0f);
  EXPECT_EQ(y[7], -1.0f);
  EXPECT_EQ(y[8], 1.0f);
}

TEST_P(EveryLevel, ALaneDoesNotDependOnItsNeighbours) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-90.0f, 2.0f);
  std::vector<float> x(16), alone(16), together(16), y(16);
  for (float& value : x) value = uniform(random);
  for (auto function : {level().exp, level().tanh}) {
    function(x.data(), together.data(), 16);
    for (int lane = 0; lane < 16; ++lane) {
      std::vector<float> other(16, lane % 2 == 0 ? kNan : kInfinity);
      other[lane] = x[lane];
      function(other.data(), y.data(), 16);
      alone[lane] = y[lane];
    }
    EXPECT_EQ(std::memcmp(alone.data(), together.data(), 64), 0);
  }
}

/// A partial with its own memory.
struct Owned {
  float m = -kInfinity;
  float l = 0.0f;
  std::vector<float> o;

  Partial partial() { return {&m, &l, o.data()}; }
  bool same_bits(const Owned& other) const {
    return std::memcmp(&m, &other.m, 4) == 0 && std::memcmp(&l, &other.l, 4) == 0 &&
           std::memcmp(o.data(), other.o.data(), o.size() * 4) == 0;
  }
};

Owned random_partial(std::mt19937& random, int head_dim) {
  std::normal_distribution<float> normal;
  Owned x{.m = 3.0f * normal(random), .l = 1.0f + std::abs(normal(random)), .o = {}};
  for (int d = 0; d < head_dim; ++d) x.o.push_back(normal(random));
  x.o[3] = -0.0f;
  return x;
}

TEST_P(EveryLevel, MergingAnEmptyPartialChangesNoBitOnEitherSide) {
  std::mt19937 random(5);
  for (int head_dim : {64, 80, 512}) {
    const Owned x = random_partial(random, head_dim);
    const Owned empty{.o = std::vector<float>(static_cast<std::size_t>(head_dim), 0.0f)};
    Owned left = x, right = empty, nothing = empty, argument = empty, same = x;
    level().merge(left.partial(), argument.partial(), head_dim);
    level().merge(right.partial(), same.partial(), head_dim);
    level().merge(nothing.partial(), argument.partial(), head_dim);
    EXPECT_TRUE(left.same_bits(x));
    EXPECT_TRUE(right.same_bits(x));
    EXPECT_TRUE(nothing.same_bits(empty));
  }
}

TEST_P(EveryLevel, MergeWeighsBothSidesByTheirMaxima) {
  std::mt19937 random(6);
  for (int i = 0; i < 100; ++i) {
    Owned a = random_partial(random, 64);
    Owned b = random_partial(random, 64);
    if (i % 10 == 0) b.m = a.m;
    const Owned before = a;
    level().merge(a.partial(), b.partial(), 64);
    const double m = std::max(before.m, b.m);
    const double weight_a = std::exp(before.m - m), weight_b = std::exp(b.m - m);
    EXPECT_EQ(a.m, static_cast<float>(m));
    EXPECT_FLOAT_EQ(a.l, static_cast<float>(before.l * weight_a + b.l * weight_b));
    for (int d = 0; d < 64; ++d) {
      const double magnitude = std::abs(before.o[d] * weight_a) + std::abs(b.o[d] * weight_b);
      EXPECT_LE(std::abs(a.o[d] - (before.o[d] * weight_a + b.o[d] * weight_b)),
                core::summation_bound(2, magnitude));
    }
  }
}

TEST_P(EveryLevel, MergeCarriesNanAndInfiniteMaxima) {
  Owned nan{.m = -kInfinity, .l = kNan, .o = std::vector<float>(64, kNan)};
  std::mt19937 random(7);
  Owned x = random_partial(random, 64);
  level().merge(x.partial(), nan.partial(), 64);
  EXPECT_TRUE(std::isnan(x.l));
  EXPECT_TRUE(std::isnan(x.o[0]));
}

TEST_P(EveryLevel, FinishDividesAddsTheSinkAndRestoresTheOrderOfDims) {
  for (const KvType type : {KvType::kF32, KvType::kBF16}) {
    for (int head_dim : {64, 80}) {
      Owned x{.m = 1.5f, .l = 2.0f, .o = {}};
      x.o.resize(static_cast<std::size_t>(head_dim));
      for (int d = 0; d < head_dim; ++d) {
        // In bf16 a group of 32 dims lies as its even dims, then its odd ones; 16 dims at the end
        // as they are.
        const int within = d % 32;
        const bool grouped = type == KvType::kBF16 && d / 32 * 32 + 32 <= head_dim;
        x.o[grouped ? d - within + within / 2 + within % 2 * 16 : d] = static_cast<float>(d);
      }
      const float sink = 2.5f;
      const float lse = level().finish(x.partial(), head_dim, &sink, type);
      const double sum = 2.0 * std::exp(1.5 - 2.5) + 1.0;
      EXPECT_FLOAT_EQ(lse, static_cast<float>(2.5 + std::log(sum)));
      for (int d = 0; d < head_dim; ++d) {
        EXPECT_FLOAT_EQ(x.o[d], static_cast<float>(d * std::exp(-1.0) / sum)) << d;
      }
    }
  }
}

}  // namespace
}  // namespace segue::attention
