// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embedding and activations at every level against double, and element by element
// independence.
#include "ops/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

#include "core/tolerance.h"
#include "ops/cpu/reference.h"

namespace segue::ops {
namespace {

using core::IsaLevel;

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

class ElementwiseTest : public testing::TestWithParam<IsaLevel> {
 protected:
  void SetUp() override {
    if (!core::isa_available(GetParam()))
      GTEST_SKIP() << "this CPU has no " << core::isa_name(GetParam());
    ops_ = &elementwise(GetParam());
  }
  const Elementwise* ops_ = nullptr;
};

std::vector<float> normals(std::size_t n, unsigned seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

/// From the very small to beyond where exp overflows, both signs, and the special points.
std::vector<float> ladder() {
  std::vector<float> x = {0.0f, -0.0f, 88.0f, -88.0f, 200.0f, -200.0f, 1e10f, -1e10f};
  for (float size = 1e-20f; size < 100.0f; size *= 1.03f) {
    x.push_back(size);
    x.push_back(-size);
  }
  return x;
}

void expect_close(const std::vector<float>& found, const std::vector<double>& expected,
                  const std::vector<double>& bounds, const char* what) {
  const core::Verdict verdict = core::within_bounds(found, expected, bounds);
  EXPECT_TRUE(verdict.ok) << verdict.message;
  std::cout << what << ": worst error / bound " << verdict.worst_ratio << "\n";
}

TEST_P(ElementwiseTest, GatedActivationsAreWithinRounding) {
  const std::vector<float> gate = ladder(), up(gate.size(), 1.5f);
  std::vector<float> gelu(gate.size(), kPoison), silu(gate.size(), kPoison);
  const auto n = static_cast<std::int64_t>(gate.size());
  ops_->gelu_tanh_mul(gate.data(), up.data(), n, gelu.data());
  ops_->silu_mul(gate.data(), up.data(), n, silu.data());
  std::vector<double> expected_gelu, expected_silu, bounds_gelu, bounds_silu;
  for (const float value : gate) {
    const auto x = static_cast<double>(value);
    const double z = 1.5957691216057308 * (x + 0.044715 * x * x * x);
    expected_gelu.push_back(1.5 * reference::gelu_tanh(x));
    expected_silu.push_back(1.5 * reference::silu(x));
    // exp moves by |z| roundoffs when z moves by one; z itself has four. Beyond exp(-87) the
    // kernel's result stays at that of the limit, itself below 2^-125 of x.
    const double flush = 1.5 * std::fabs(x) * std::exp(-86.9);
    bounds_gelu.push_back(core::function_bound(12, 6 * std::fabs(z), expected_gelu.back()) + flush);
    bounds_silu.push_back(core::function_bound(12, 2 * std::fabs(x), expected_silu.back()) + flush);
  }
  expect_close(gelu, expected_gelu, bounds_gelu, "gelu");
  expect_close(silu, expected_silu, bounds_silu, "silu");
}

TEST_P(ElementwiseTest, SoftcapIsAccurateNearZeroAndAtTheCap) {
  const std::vector<float> x = ladder();
  std::vector<float> y(x.size(), kPoison);
  ops_->softcap(x.data(), 30.0f, static_cast<std::int64_t>(x.size()), y.data());
  std::vector<double> expected, bounds;
  for (float value : x) {
    expected.push_back(30 * std::tanh(static_cast<double>(value) / 30));
    bounds.push_back(core::function_bound(12, 4, expected.back()));
  }
  expect_close(y, expected, bounds, "softcap");
}

TEST_P(ElementwiseTest, RmsNormIsWithinRoundingForAnyLength) {
  for (const std::int64_t n : {1, 15, 16, 17, 64, 65, 256, 640, 2049}) {
    const std::int64_t rows = 3, stride = n + 5;
    const std::vector<float> x = normals(static_cast<std::size_t>(rows * stride), 1, 3.0f);
    const std::vector<float> weight = normals(static_cast<std::size_t>(n), 2);
    for (const bool weighted : {true, false}) {
      std::vector<float> y(static_cast<std::size_t>(rows * (n + 1)), kPoison);
      ops_->rms_norm(x.data(), stride, weighted ? weight.data() : nullptr, 1e-6f, rows, n, y.data(),
                     n + 1);
      std::vector<float> found;
      std::vector<double> expected, bounds;
      for (std::int64_t row = 0; row < rows; ++row) {
        const float* in = x.data() + row * stride;
        double squares = 0;
        for (std::int64_t i = 0; i < n; ++i)
          squares += static_cast<double>(in[i]) * static_cast<double>(in[i]);
        const double factor =
            1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(1e-6f));
        for (std::int64_t i = 0; i < n; ++i) {
          const double w =
              weighted ? static_cast<double>(weight[static_cast<std::size_t>(i)]) : 1.0;
          found.push_back(y[static_cast<std::size_t>(row * (n + 1) + i)]);
          expected.push_back(static_cast<double>(in[i]) * factor * w);
          // Half of the relative error of the sum of squares (64 at a time, then a tree) and six
          // roundings.
          bounds.push_back(
              core::function_bound(6, static_cast<double>(n / 64 + 8) / 2, expected.back()));
        }
        EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(row * (n + 1) + n)]))
            << "wrote past the row";
      }
      const core::Verdict verdict = core::within_bounds(found, expected, bounds);
      EXPECT_TRUE(verdict.ok) << n << ": " << verdict.message;
    }
  }
}

TEST_P(ElementwiseTest, RopeRotatesBothPairingsAndLeavesTheRestAlone) {
  constexpr std::int64_t kRows = 3;
  constexpr int kHeads = 2, kHeadDim = 80, kRotary = 68;
  const std::int32_t positions[kRows] = {0, 7, 100000};
  std::vector<float> inv_freq(kRotary / 2);
  for (int i = 0; i < kRotary / 2; ++i) {
    inv_freq[static_cast<std::size_t>(i)] =
        static_cast<float>(std::pow(10000.0, -2.0 * i / kRotary));
  }
  std::vector<float> table(kRows * kRotary, kPoison);
  rope_table(positions, kRows, inv_freq.data(), kRotary / 2, 1.0f, table.data());
  const RopeShape shapes[] = {
      {kHeads, kHeadDim, kRotary, kRotary / 2, RopePairs::kSplitHalf},
      {kHeads, kHeadDim, kRotary, kHeadDim / 2, RopePairs::kSplitHalf},  // proportional
      {kHeads, kHeadDim, kRotary, 0, RopePairs::kAdjacent}};
  for (const RopeShape& shape : shapes) {
    const std::vector<float> x = normals(kRows * kHeads * kHeadDim, 3);
    std::vector<float> y = x;
    ops_->rope(y.data(), kHeads * kHeadDim, table.data(), kRows, shape);
    std::vector<double> expected, bounds;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (int head = 0; head < kHeads; ++head) {
        const float* in = x.data() + (row * kHeads + head) * kHeadDim;
        for (int d = 0; d < kHeadDim; ++d) {
          const bool split = shape.pairs == RopePairs::kSplitHalf;
          const int i = !split ? d / 2 : d < shape.distance ? d : d - shape.distance;
          const bool first = split ? d < shape.distance : d % 2 == 0;
          if (i >= kRotary / 2) {
            expected.push_back(static_cast<double>(in[d]));
            bounds.push_back(0);
            continue;
          }
          const double angle = static_cast<double>(positions[row]) *
                               static_cast<double>(inv_freq[static_cast<std::size_t>(i)]);
          const auto a = static_cast<double>(in[split ? i : 2 * i]);
          const auto b = static_cast<double>(in[split ? i + shape.distance : 2 * i + 1]);
          const double c = std::cos(angle), s = std::sin(angle);
          expected.push_back(first ? a * c - b * s : b * c + a * s);
          bounds.push_back(core::summation_bound(0, std::fabs(a) + std::fabs(b)));
        }
      }
    }
    const core::Verdict verdict = core::within_bounds(y, expected, bounds);
    EXPECT_TRUE(verdict.ok) << verdict.message;
  }
}

TEST_P(ElementwiseTest, AnElementDoesNotDependOnTheLengthOfTheCall) {
  const std::vector<float> x = normals(100, 4, 4.0f), y = normals(100, 5);
  const auto check = [&](auto call) {
    std::vector<float> whole(100, kPoison);
    call(x.data(), y.data(), std::int64_t{100}, whole.data());
    for (std::int64_t n : {1, 3, 15, 16, 17, 31, 33}) {
      for (std::int64_t first : {0, 1, 37, 67}) {
        std::vector<float> part(static_cast<std::size_t>(n + 1), kPoison);
        call(x.data() + first, y.data() + first, n, part.data());
        EXPECT_TRUE(std::isnan(part.back())) << "wrote past the end";
        part.pop_back();
        EXPECT_TRUE(
            core::exact(part, std::span<const float>(whole.data() + first, part.size())).ok);
      }
    }
  };
  check(ops_->gelu_tanh_mul);
  check(ops_->silu_mul);
  check(ops_->add);
  check([&](const float* a, const float*, std::int64_t n, float* out) {
    ops_->scale(a, 25.3f, n, out);
  });
  check([&](const float* a, const float*, std::int64_t n, float* out) {
    ops_->softcap(a, 30.0f, n, out);
  });
}

TEST_P(ElementwiseTest, NanStaysNan) {
  const std::vector<float> x(20, kPoison), one(20, 1.0f);
  std::vector<float> y(20, 0.0f);
  const auto all_nan = [&] {
    for (float value : y) EXPECT_TRUE(std::isnan(value));
    std::fill(y.begin(), y.end(), 0.0f);
  };
  ops_->gelu_tanh_mul(x.data(), one.data(), 20, y.data());
  all_nan();
  ops_->silu_mul(x.data(), one.data(), 20, y.data());
  all_nan();
  ops_->softcap(x.data(), 30.0f, 20, y.data());
  all_nan();
  ops_->rms_norm(x.data(), 20, nullptr, 1e-6f, 1, 20, y.data(), 20);
  all_nan();
}

INSTANTIATE_TEST_SUITE_P(Levels, ElementwiseTest,
                         testing::Values(IsaLevel::kPortable, IsaLevel::kNeon, IsaLevel::kAvx2,
                                         IsaLevel::kAvx512),
                         [](const auto& instance) {
                           return std::string(core::isa_name(instance.param));
                         });

}  // namespace
}  // namespace segue::ops
