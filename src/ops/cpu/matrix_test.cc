// SPDX-License-Identifier: Apache-2.0
// Products of every format at every level against the double reference, and the promise that a
// row's bits depend on nothing beside it.
#include "ops/cpu/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "core/tolerance.h"
#include "ops/cpu/reference.h"

namespace segue::ops {
namespace {

using core::DType;
using core::IsaLevel;

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr DType kWeightTypes[] = {DType::kF32,   DType::kF16,  DType::kBF16, DType::kQ4_0,
                                  DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                  DType::kQ4_K,  DType::kQ5_K, DType::kQ6_K, DType::kW4_BF16,
                                  DType::kW4_F32};

std::vector<IsaLevel> levels() {
  std::vector<IsaLevel> out;
  for (IsaLevel isa : {IsaLevel::kPortable, IsaLevel::kNeon, IsaLevel::kAvx2, IsaLevel::kAvx512}) {
    if (core::isa_available(isa)) out.push_back(isa);
  }
  return out;
}

/// A tensor of random bytes whose f16 factors are ordinary numbers, followed by bytes that no one
/// may read.
class RandomTensor {
 public:
  /// `fill` >= 0: every byte but the f16 factors is that one.
  RandomTensor(DType dtype, std::int64_t inputs, std::int64_t outputs, unsigned seed, int fill = -1)
      : random_(seed) {
    const core::DTypeInfo info = core::dtype_info(dtype);
    const std::int64_t blocks = inputs / info.block_elements * outputs;
    bytes_.resize(static_cast<std::size_t>(blocks * info.block_bytes));
    for (auto& byte : bytes_)
      byte = static_cast<std::uint8_t>(fill >= 0 ? static_cast<unsigned>(fill) : random_());
    for (std::int64_t block = 0; block < blocks; ++block)
      set_factors(dtype, bytes_.data() + block * info.block_bytes);
    view_.name = "random";
    view_.dtype = dtype;
    view_.dims = 2;
    view_.shape = {inputs, outputs, 1, 1};
    view_.data = reinterpret_cast<const std::byte*>(bytes_.data());
    view_.bytes = static_cast<std::int64_t>(bytes_.size());
  }
  const core::TensorView& view() const { return view_; }

 private:
  float number() { return std::normal_distribution<float>()(random_); }
  void set_half(std::uint8_t* at) {
    const std::uint16_t bits = core::f32_to_f16(number() * 0.01f);
    std::memcpy(at, &bits, 2);
  }
  void set_factors(DType dtype, std::uint8_t* block) {
    switch (dtype) {
      case DType::kF32:
      case DType::kW4_F32: {
        const float value = number();
        std::memcpy(block, &value, 4);
        return;
      }
      case DType::kBF16:
      case DType::kW4_BF16: {
        const std::uint16_t bits = core::f32_to_bf16(number());
        std::memcpy(block, &bits, 2);
        return;
      }
      case DType::kQ4_1:
      case DType::kQ5_1:
      case DType::kQ4_K:
      case DType::kQ5_K: set_half(block + 2); [[fallthrough]];
      default: set_half(block + (dtype == DType::kQ6_K ? 208 : 0));
    }
  }

  std::mt19937 random_;
  std::vector<std::uint8_t> bytes_;
  core::TensorView view_;
};

std::vector<float> random_rows(std::int64_t rows, std::int64_t inputs, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * inputs));
  for (float& value : x) value = normal(random);
  for (std::int64_t i = 0; i < inputs && i < 32; ++i)
    x[static_cast<std::size_t>(i)] = 0;  // one block of zeros
  return x;
}

struct Case {
  DType dtype;
  std::int64_t inputs, outputs;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (DType dtype : kWeightTypes) {
    const int block = core::dtype_info(dtype).block_elements;
    for (std::int64_t inputs : {1, 7, 32, 64, 96, 256, 640, 2048}) {
      if (inputs % block != 0) continue;
      for (std::int64_t outputs : {1, 15, 16, 17, 33}) out.push_back({dtype, inputs, outputs});
    }
    out.push_back({dtype, 512, 640});
  }
  return out;
}

std::string name_of(const Case& c, IsaLevel isa) {
  return std::string(core::isa_name(isa)) + " " + std::string(core::dtype_info(c.dtype).name) +
         " " + std::to_string(c.inputs) + " -> " + std::to_string(c.outputs);
}

class MatrixTest : public testing::Test {
 protected:
  Matrix prepare(const core::TensorView& view, IsaLevel isa) {
    Result<Matrix> matrix = Matrix::prepare(view, isa, memory_, pool_);
    EXPECT_TRUE(matrix.ok());
    return std::move(matrix).value();
  }
  /// y [rows, outputs] and poison beyond every row, checked to be untouched.
  std::vector<float> product(const Matrix& w, const float* x, std::int64_t rows,
                             core::ThreadPool& pool) {
    const std::int64_t stride = w.outputs() + 3;
    std::vector<float> y(static_cast<std::size_t>(rows * stride), kPoison);
    Rows activations(w.isa());
    activations.assign(x, rows, w.inputs());
    matmul(activations, {&w, y.data(), stride}, pool);
    std::vector<float> out;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < stride; ++i) {
        const float value = y[static_cast<std::size_t>(row * stride + i)];
        if (i < w.outputs()) {
          out.push_back(value);
        } else {
          EXPECT_TRUE(std::isnan(value)) << "wrote past row " << row;
        }
      }
    }
    return out;
  }

  core::ThreadPool pool_{2};
  WeightMemory memory_;
};

TEST_F(MatrixTest, ProductsAreWithinRoundingOfTheDoubleReference) {
  double worst = 0;
  for (const Case& c : cases()) {
    const RandomTensor tensor(c.dtype, c.inputs, c.outputs, 1);
    constexpr std::int64_t kRows = 3;
    const std::vector<float> x = random_rows(kRows, c.inputs, 2);
    const bool quantised = core::dtype_info(c.dtype).block_elements > 1;
    std::vector<double> expected, bounds;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const float* in = x.data() + row * c.inputs;
      reference::QuantisedRow q;
      if (quantised) q = reference::quantise(in, c.inputs);
      for (std::int64_t output = 0; output < c.outputs; ++output) {
        const reference::Sum sum = quantised ? reference::dot(tensor.view(), output, q)
                                             : reference::dot(tensor.view(), output, in);
        expected.push_back(sum.value);
        bounds.push_back(core::summation_bound(sum.terms, sum.absolute));
      }
    }
    for (IsaLevel isa : levels()) {
      const std::vector<float> y = product(prepare(tensor.view(), isa), x.data(), kRows, pool_);
      const core::Verdict verdict = core::within_bounds(y, expected, bounds);
      EXPECT_TRUE(verdict.ok) << name_of(c, isa) << ": " << verdict.message;
      worst = std::max(worst, verdict.worst_ratio);
    }
  }
  std::cout << "worst error / bound: " << worst << "\n";
}

TEST_F(MatrixTest, ExtremeWeightsAndActivationsDoNotOverflow) {
  for (const DType dtype : kWeightTypes) {
    if (core::dtype_info(dtype).block_elements == 1) continue;
    for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
      const RandomTensor tensor(dtype, 256, 17, 20, fill);
      for (const float sign : {1.0f, -1.0f}) {
        const std::vector<float> x(256, sign * 0.7f);
        const reference::QuantisedRow q = reference::quantise(x.data(), 256);
        std::vector<double> expected, bounds;
        for (std::int64_t row = 0; row < 2; ++row) {
          for (std::int64_t output = 0; output < 17; ++output) {
            const reference::Sum sum = reference::dot(tensor.view(), output, q);
            expected.push_back(sum.value);
            bounds.push_back(core::summation_bound(sum.terms, sum.absolute));
          }
        }
        std::vector<float> both = x;
        both.insert(both.end(), x.begin(), x.end());
        for (IsaLevel isa : levels()) {
          const Matrix w = prepare(tensor.view(), isa);
          const core::Verdict verdict =
              core::within_bounds(product(w, both.data(), 2, pool_), expected, bounds);
          EXPECT_TRUE(verdict.ok) << name_of({dtype, 256, 17}, isa) << ": " << verdict.message;
        }
      }
    }
  }
}

TEST_F(MatrixTest, ARowHasTheSameBitsAloneAndBesideOthers) {
  for (const Case& c : cases()) {
    const RandomTensor tensor(c.dtype, c.inputs, c.outputs, 3);
    const std::vector<float> x = random_rows(70, c.inputs, 4);
    for (IsaLevel isa : levels()) {
      const Matrix w = prepare(tensor.view(), isa);
      const std::vector<float> all = product(w, x.data(), 70, pool_);
      for (std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 64}) {
        for (std::int64_t first : {0, 5}) {
          const std::vector<float> some = product(w, x.data() + first * c.inputs, rows, pool_);
          const std::span<const float> expected(all.data() + first * c.outputs, some.size());
          const core::Verdict verdict = core::exact(some, expected);
          ASSERT_TRUE(verdict.ok) << name_of(c, isa) << ", " << rows
                                  << " rows: " << verdict.message;
        }
      }
    }
  }
}

TEST_F(MatrixTest, ManyRowsInManyTasksHaveTheBitsOfOne) {
  core::ThreadPool one(1);
  for (DType dtype : kWeightTypes) {
    const Case c{dtype, 256, 200};
    const RandomTensor tensor(c.dtype, c.inputs, c.outputs, 5);
    const std::vector<float> x = random_rows(600, c.inputs, 6);
    for (IsaLevel isa : levels()) {
      const Matrix w = prepare(tensor.view(), isa);
      const std::vector<float> all = product(w, x.data(), 600, pool_);
      for (std::int64_t row : {0, 255, 256, 257, 599}) {
        const std::vector<float> alone = product(w, x.data() + row * c.inputs, 1, one);
        const core::Verdict verdict =
            core::exact(alone, std::span<const float>(all.data() + row * c.outputs, alone.size()));
        ASSERT_TRUE(verdict.ok) << name_of(c, isa) << ", row " << row << ": " << verdict.message;
      }
    }
  }
}

TEST_F(MatrixTest, ThreadsAndSharedRegionsChangeNoBit) {
  core::ThreadPool one(1), three(3);
  const RandomTensor a(DType::kQ5_0, 640, 1024, 7), b(DType::kQ8_0, 640, 40, 8),
      d(DType::kF16, 640, 7, 9);
  const std::vector<float> x = random_rows(40, 640, 10);
  for (IsaLevel isa : levels()) {
    const Matrix wa = prepare(a.view(), isa), wb = prepare(b.view(), isa),
                 wd = prepare(d.view(), isa);
    for (std::int64_t rows : {1, 5, 40}) {
      const std::vector<float> ya = product(wa, x.data(), rows, one),
                               yb = product(wb, x.data(), rows, one),
                               yd = product(wd, x.data(), rows, one);
      for (core::ThreadPool* pool : {&one, &pool_, &three}) {
        std::vector<float> ta(ya.size(), kPoison), tb(yb.size(), kPoison), td(yd.size(), kPoison);
        Rows activations(isa);
        activations.assign(x.data(), rows, 640);
        const Product products[] = {
            {&wa, ta.data(), 1024}, {&wb, tb.data(), 40}, {&wd, td.data(), 7}};
        matmul(activations, products, *pool);
        EXPECT_TRUE(core::exact(ta, ya).ok);
        EXPECT_TRUE(core::exact(tb, yb).ok);
        EXPECT_TRUE(core::exact(td, yd).ok);
      }
    }
  }
}

TEST_F(MatrixTest, DequantisedRowsAreTheStoredWeights) {
  for (const Case& c : cases()) {
    const RandomTensor tensor(c.dtype, c.inputs, c.outputs, 11);
    const Matrix w = prepare(tensor.view(), IsaLevel::kPortable);
    for (std::int64_t output = 0; output < c.outputs; output += 5) {
      std::vector<float> row(static_cast<std::size_t>(c.inputs), kPoison);
      w.dequantize_row(output, row.data());
      std::vector<double> bounds;
      const std::vector<double> expected = reference::weights_of(tensor.view(), output);
      // Two roundings at most, of a product that may be cancelled by the minimum.
      for (double value : expected)
        bounds.push_back(core::summation_bound(2, std::fabs(value) + 1));
      const core::Verdict verdict = core::within_bounds(row, expected, bounds);
      ASSERT_TRUE(verdict.ok) << name_of(c, IsaLevel::kPortable) << ": " << verdict.message;
    }
  }
}

TEST_F(MatrixTest, BytesPerWeightAreThoseOfTheFile) {
  for (DType dtype : kWeightTypes) {
    const RandomTensor tensor(dtype, 1024, 64, 12);
    EXPECT_EQ(prepare(tensor.view(), IsaLevel::kPortable).bytes(), tensor.view().bytes)
        << core::dtype_info(dtype).name;
  }
}

TEST_F(MatrixTest, NanAndInfinityInARowReachItsOutputsAndNoOthers) {
  const RandomTensor tensor(DType::kQ8_0, 64, 16, 13);
  for (IsaLevel isa : levels()) {
    const Matrix w = prepare(tensor.view(), isa);
    for (float bad : {kPoison, std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = random_rows(3, 64, 14);
      const std::vector<float> clean = product(w, x.data(), 3, pool_);
      x[64 + 40] = bad;
      const std::vector<float> y = product(w, x.data(), 3, pool_);
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (i / 16 == 1) {
          EXPECT_FALSE(std::isfinite(y[i]));
        } else {
          EXPECT_EQ(y[i], clean[i]);
        }
      }
    }
  }
}

TEST_F(MatrixTest, TinyActivationsBecomeZeroAndHugeOnesStayFinite) {
  const RandomTensor tensor(DType::kQ8_0, 32, 16, 15);
  for (IsaLevel isa : levels()) {
    const Matrix w = prepare(tensor.view(), isa);
    const std::vector<float> tiny(32, 1e-40f), huge(32, 1e30f);
    EXPECT_THAT(product(w, tiny.data(), 1, pool_), testing::Each(0.0f));
    for (float value : product(w, huge.data(), 1, pool_)) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST_F(MatrixTest, RefusesTensorsThatAreNoMatrixOfTheirType) {
  const RandomTensor tensor(DType::kQ4_K, 256, 4, 16);
  core::TensorView view = tensor.view();
  view.shape[0] = 128;
  EXPECT_EQ(Matrix::prepare(view, IsaLevel::kPortable, memory_, pool_).error().code,
            ErrorCode::kInvalidFile);
  view = tensor.view();
  view.bytes -= 1;
  EXPECT_EQ(Matrix::prepare(view, IsaLevel::kPortable, memory_, pool_).error().code,
            ErrorCode::kInvalidFile);
  view = tensor.view();
  view.shape[2] = 2;
  EXPECT_EQ(Matrix::prepare(view, IsaLevel::kPortable, memory_, pool_).error().code,
            ErrorCode::kInvalidFile);
  view = tensor.view();
  view.dtype = DType::kI32;
  EXPECT_EQ(Matrix::prepare(view, IsaLevel::kPortable, memory_, pool_).error().code,
            ErrorCode::kUnsupported);
}

TEST(WeightMemoryTest, HandsOutAlignedZeroedMemoryThatSurvivesAMove) {
  WeightMemory memory;
  std::byte* small = memory.allocate(100);
  std::byte* large = memory.allocate(std::int64_t{40} << 20);
  ASSERT_NE(small, nullptr);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.allocate(1)) % 64, 0u);
  EXPECT_EQ(large[(std::int64_t{40} << 20) - 1], std::byte{0});
  small[99] = std::byte{7};
  WeightMemory moved(std::move(memory));
  EXPECT_EQ(small[99], std::byte{7});
  EXPECT_EQ(moved.bytes(), 100 + (std::int64_t{40} << 20) + 1);
  EXPECT_EQ(WeightMemory().allocate(std::int64_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace segue::ops
