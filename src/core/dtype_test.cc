// SPDX-License-Identifier: Apache-2.0
// Every f16 and bf16 value, and every tie between two of them, against the definition of the
// formats.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace segue::core {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The value of a half or bfloat by its definition, in double: sign, exponent, mantissa.
double by_definition(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? kNan : sign * kInf;
  const int scale = (exponent == 0 ? 1 : exponent) - bias - mantissa_bits;
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(significand, scale);
}

template <class Widen, class Narrow>
void check_all_values(int exponent_bits, Widen widen, Narrow narrow) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = widen(bits);
    const double expected = by_definition(bits, exponent_bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << i;
      ASSERT_TRUE(std::isnan(widen(narrow(value)))) << i;
      continue;
    }
    ASSERT_EQ(value, expected) << i;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << i;
    ASSERT_EQ(narrow(value), bits);
  }
}

/// Between every two neighbours: the middle goes to the even one, a step to either side to the
/// nearer one.
template <class Widen, class Narrow>
void check_all_ties(std::uint16_t largest, Widen widen, Narrow narrow) {
  for (std::uint32_t i = 0; i < largest; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const auto even = (low & 1) == 0 ? low : high;
    const double exact_middle = (double{widen(low)} + double{widen(high)}) / 2;
    const auto middle = static_cast<float>(exact_middle);
    ASSERT_EQ(middle, exact_middle) << "a tie is a float";
    ASSERT_EQ(narrow(middle), even) << i;
    ASSERT_EQ(narrow(std::nextafter(middle, -kInf)), low) << i;
    ASSERT_EQ(narrow(std::nextafter(middle, kInf)), high) << i;
    ASSERT_EQ(narrow(-middle), even | 0x8000) << i;
  }
}

TEST(DType, EveryHalfHasItsValueAndRoundTrips) { check_all_values(5, f16_to_f32, f32_to_f16); }

TEST(DType, EveryBfloatHasItsValueAndRoundTrips) { check_all_values(8, bf16_to_f32, f32_to_bf16); }

TEST(DType, HalfTiesGoToEven) { check_all_ties(0x7bff, f16_to_f32, f32_to_f16); }

TEST(DType, BfloatTiesGoToEven) { check_all_ties(0x7f7f, bf16_to_f32, f32_to_bf16); }

TEST(DType, HalfOverflowsToInfinityFromTheMiddleOfTheLastStep) {
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-65520.0f), 0xfc00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(f32_to_f16(kInf), 0x7c00);
}

TEST(DType, BfloatOverflowsToInfinity) {
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-kInf), 0xff80);
}

TEST(DType, TinyValuesBecomeZeroOfTheirSign) {
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);  // a tie between 0 and the least subnormal
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::denorm_min()), 0x8000);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

TEST(DType, NanOfAnyPayloadStaysNan) {
  for (const std::uint32_t payload :
       {0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0xff800001u, 0xffc00000u}) {
    const auto value = std::bit_cast<float>(payload);
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value)))) << payload;
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value)))) << payload;
  }
}

TEST(DType, BlockSizesAreThoseOfTheFormat) {
  EXPECT_EQ(dtype_info(DType::kQ4_0).block_bytes, 2 + 16);
  EXPECT_EQ(dtype_info(DType::kQ4_1).block_bytes, 2 + 2 + 16);
  EXPECT_EQ(dtype_info(DType::kQ5_0).block_bytes, 2 + 4 + 16);
  EXPECT_EQ(dtype_info(DType::kQ5_1).block_bytes, 2 + 2 + 4 + 16);
  EXPECT_EQ(dtype_info(DType::kQ8_0).block_bytes, 2 + 32);
  EXPECT_EQ(dtype_info(DType::kQ4_K).block_bytes, 2 + 2 + 12 + 128);
  EXPECT_EQ(dtype_info(DType::kQ5_K).block_bytes, 2 + 2 + 12 + 32 + 128);
  EXPECT_EQ(dtype_info(DType::kQ6_K).block_bytes, 128 + 64 + 16 + 2);
}

}  // namespace
}  // namespace segue::core
