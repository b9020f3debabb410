// SPDX-License-Identifier: Apache-2.0
// 4-bit weights as safetensors have them: every level and every scale arrives, in the form that the
// integer kernels multiply.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/tolerance.h"
#include "ops/cpu/matrix.h"
#include "ops/cpu/reference.h"

namespace segue::ops {
namespace {

using core::DType;
using core::IsaLevel;
using ::testing::HasSubstr;

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

/// Random words and scales, and the weights that they stand for.
struct Packed {
  Packed(DType scale_type, std::int64_t inputs, std::int64_t outputs, unsigned seed)
      : words(static_cast<std::size_t>(outputs * inputs / 8)),
        weights(static_cast<std::size_t>(outputs * inputs)) {
    std::mt19937 random(seed);
    for (auto& word : words) word = static_cast<std::uint32_t>(random());
    const int scale_bytes = core::dtype_info(scale_type).block_bytes;
    scales.resize(static_cast<std::size_t>(outputs * inputs / 32 * scale_bytes));
    std::normal_distribution<float> normal;
    std::vector<float> factors;
    for (std::size_t i = 0; i < scales.size(); i += static_cast<std::size_t>(scale_bytes)) {
      // Far outside the range of f16 where the type can hold that.
      float scale = std::ldexp(normal(random), static_cast<int>(random() % 80) - 60);
      if (scale_type == DType::kF16) {
        const std::uint16_t bits = core::f32_to_f16(normal(random));
        std::memcpy(scales.data() + i, &bits, 2);
        scale = core::f16_to_f32(bits);
      } else if (scale_type == DType::kBF16) {
        const std::uint16_t bits = core::f32_to_bf16(scale);
        std::memcpy(scales.data() + i, &bits, 2);
        scale = core::bf16_to_f32(bits);
      } else {
        std::memcpy(scales.data() + i, &scale, 4);
      }
      factors.push_back(scale);
    }
    for (std::int64_t row = 0; row < outputs; ++row) {
      for (std::int64_t column = 0; column < inputs; ++column) {
        const std::uint32_t word = words[static_cast<std::size_t>(row * (inputs / 8) + column / 8)];
        const int level = static_cast<int>((word >> (4 * (column % 8))) & 15u) - 8;
        weights[static_cast<std::size_t>(row * inputs + column)] =
            static_cast<float>(level) *
            factors[static_cast<std::size_t>(row * (inputs / 32) + column / 32)];
      }
    }
    word_view.name = "w.weight_packed";
    word_view.dtype = DType::kI32;
    word_view.dims = 2;
    word_view.shape = {inputs / 8, outputs, 1, 1};
    word_view.data = reinterpret_cast<const std::byte*>(words.data());
    word_view.bytes = std::ssize(words) * 4;
    scale_view.name = "w.weight_scale";
    scale_view.dtype = scale_type;
    scale_view.dims = 2;
    scale_view.shape = {inputs / 32, outputs, 1, 1};
    scale_view.data = scales.data();
    scale_view.bytes = std::ssize(scales);
  }

  std::vector<std::uint32_t> words;
  std::vector<std::byte> scales;
  std::vector<float> weights;  // [outputs, inputs]
  core::TensorView word_view, scale_view;
};

constexpr DType kScaleTypes[] = {DType::kF16, DType::kBF16, DType::kF32};

class PackedTest : public testing::Test {
 protected:
  Result<Matrix> prepare(const core::TensorView& words, const core::TensorView& scales) {
    return Matrix::prepare_packed(words, scales, core::best_isa(), memory_, pool_);
  }
  core::ThreadPool pool_{2};
  WeightMemory memory_;
};

TEST_F(PackedTest, EveryLevelTimesItsScaleArrivesExactly) {
  for (const DType scale_type : kScaleTypes) {
    for (const std::int64_t inputs : {32, 64, 640}) {
      for (const std::int64_t outputs : {1, 15, 16, 17, 300}) {
        const Packed packed(scale_type, inputs, outputs, 1);
        const Result<Matrix> w = prepare(packed.word_view, packed.scale_view);
        ASSERT_TRUE(w.ok()) << w.error().message;
        EXPECT_EQ(w->inputs(), inputs);
        EXPECT_EQ(w->outputs(), outputs);
        std::vector<float> rows(static_cast<std::size_t>(inputs * outputs), kPoison);
        for (std::int64_t row = 0; row < outputs; ++row)
          w->dequantize_row(row, rows.data() + row * inputs);
        const core::Verdict verdict = core::exact(rows, packed.weights);
        EXPECT_TRUE(verdict.ok) << core::dtype_info(scale_type).name << " " << inputs << " -> "
                                << outputs << ": " << verdict.message;
      }
    }
  }
}

TEST_F(PackedTest, ScalesStayInTheirTypeAndBytesAreThoseOfTheFile) {
  const DType stored[] = {DType::kQ4_0, DType::kW4_BF16, DType::kW4_F32};
  for (std::size_t i = 0; i < std::size(stored); ++i) {
    const Packed packed(kScaleTypes[i], 256, 32, 2);
    const Matrix w = prepare(packed.word_view, packed.scale_view).value();
    EXPECT_EQ(w.dtype(), stored[i]);
    EXPECT_EQ(w.bytes(), packed.word_view.bytes + packed.scale_view.bytes);
  }
}

TEST_F(PackedTest, ProductsAreThoseOfTheSameWeightsAsABlockFormat) {
  constexpr std::int64_t kInputs = 256, kOutputs = 40;
  const Packed packed(DType::kF16, kInputs, kOutputs, 3);
  // The same as Q4_0 blocks, laid out by hand.
  std::vector<std::uint8_t> blocks;
  for (std::int64_t block = 0; block < kOutputs * kInputs / 32; ++block) {
    const auto level = [&](std::int64_t e) {
      const std::int64_t at = block * 32 + e;
      return (packed.words[static_cast<std::size_t>(at / 8)] >> (4 * (at % 8))) & 15u;
    };
    for (int i = 0; i < 2; ++i)
      blocks.push_back(
          static_cast<std::uint8_t>(packed.scales[static_cast<std::size_t>(2 * block + i)]));
    for (std::int64_t e = 0; e < 16; ++e)
      blocks.push_back(static_cast<std::uint8_t>(level(e) | (level(e + 16) << 4)));
  }
  core::TensorView view = packed.word_view;
  view.dtype = DType::kQ4_0;
  view.shape = {kInputs, kOutputs, 1, 1};
  view.data = reinterpret_cast<const std::byte*>(blocks.data());
  view.bytes = std::ssize(blocks);
  const Matrix a = prepare(packed.word_view, packed.scale_view).value();
  const Matrix b = Matrix::prepare(view, core::best_isa(), memory_, pool_).value();
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> x(9 * kInputs);
  for (float& value : x) value = normal(random);
  std::vector<float> ya(9 * kOutputs, kPoison), yb(9 * kOutputs, kPoison);
  Rows rows(core::best_isa());
  rows.assign(x.data(), 9, kInputs);
  const Product products[] = {{&a, ya.data(), kOutputs}, {&b, yb.data(), kOutputs}};
  matmul(rows, products, pool_);
  const core::Verdict verdict = core::exact(ya, yb);
  EXPECT_TRUE(verdict.ok) << verdict.message;
}

TEST_F(PackedTest, RefusesOtherTypesAndShapesThatDoNotFit) {
  const Packed packed(DType::kBF16, 64, 6, 5);
  const auto refusal = [&](auto change) {
    core::TensorView words = packed.word_view, scales = packed.scale_view;
    change(words, scales);
    const Result<Matrix> w = prepare(words, scales);
    return w ? "accepted" : w.error().message;
  };
  using View = core::TensorView;
  EXPECT_THAT(refusal([](View& w, View&) { w.dtype = DType::kF32; }),
              HasSubstr("levels in F32 with scales in BF16 (allowed: I32 with"));
  EXPECT_THAT(refusal([](View&, View& s) { s.dtype = DType::kI32; }), HasSubstr("scales in I32"));
  EXPECT_THAT(refusal([](View& w, View&) { w.shape[0] = 7; }),
              HasSubstr("tensor w.weight_packed: 7 words of 8 levels and 2 scales"));
  EXPECT_THAT(refusal([](View&, View& s) { s.shape[0] = 1; }),
              HasSubstr("do not fit groups of 32"));
  EXPECT_THAT(refusal([](View&, View& s) { s.shape[1] = 5; }), HasSubstr("for 6 and 5 outputs"));
  EXPECT_THAT(refusal([](View& w, View&) { w.shape[2] = 2; }), HasSubstr("do not fit"));
  EXPECT_THAT(refusal([](View& w, View&) { w.bytes -= 4; }),
              HasSubstr("188 bytes of levels and 24 of scales, 192 and 24 are needed"));
  EXPECT_THAT(refusal([](View&, View& s) { s.data = nullptr; }), HasSubstr("are needed"));
}

}  // namespace
}  // namespace segue::ops
