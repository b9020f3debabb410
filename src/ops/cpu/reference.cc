// SPDX-License-Identifier: Apache-2.0
// Block formats element by element, as their definition states them.
#include "ops/cpu/reference.h"

#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"

namespace segue::ops::reference {
namespace {

using core::DType;

double half(const std::uint8_t* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  return static_cast<double>(core::f16_to_f32(bits));
}

int bit(const std::uint8_t* bytes, int index) { return (bytes[index / 8] >> (index % 8)) & 1; }

/// Q4_0, Q4_1, Q5_0, Q5_1: element e < 16 in the low nibble of byte e, e >= 16 in the high nibble
/// of byte e - 16.
double legacy(DType type, const std::uint8_t* block, int e) {
  const bool has_minimum = type == DType::kQ4_1 || type == DType::kQ5_1;
  const bool has_fifth = type == DType::kQ5_0 || type == DType::kQ5_1;
  const std::uint8_t* fifth = block + (has_minimum ? 4 : 2);
  const std::uint8_t* qs = fifth + (has_fifth ? 4 : 0);
  int q = e < 16 ? qs[e] & 15 : qs[e - 16] >> 4;
  if (has_fifth) q += 16 * bit(fifth, e);
  if (has_minimum) return half(block) * q + half(block + 2);
  return half(block) * (q - (has_fifth ? 16 : 8));
}

struct KScales {
  int scale, minimum;
};

/// The 6-bit scale and minimum of sub-block b of Q4_K and Q5_K.
KScales k_scales(const std::uint8_t* block, int b) {
  const std::uint8_t* s = block + 4;
  if (b < 4) return {s[b] & 63, s[b + 4] & 63};
  return {(s[b + 4] & 15) | ((s[b - 4] >> 6) << 4), (s[b + 4] >> 4) | ((s[b] >> 6) << 4)};
}

double k_four_or_five(DType type, const std::uint8_t* block, int e) {
  const int b = e / 32, l = e % 32;
  const std::uint8_t* qs = block + (type == DType::kQ5_K ? 48 : 16);
  int q = (qs[32 * (b / 2) + l] >> (4 * (b % 2))) & 15;
  if (type == DType::kQ5_K) q += 16 * ((block[16 + l] >> b) & 1);
  const KScales k = k_scales(block, b);
  return half(block) * k.scale * q - half(block + 2) * k.minimum;
}

double k_six(const std::uint8_t* block, int e) {
  const int n = e / 128, quarter = e % 128 / 32, l = e % 32;
  const std::uint8_t* ql = block + 64 * n + 32 * (quarter % 2);
  const std::uint8_t* qh = block + 128 + 32 * n;
  const int q = ((ql[l] >> (4 * (quarter / 2))) & 15) | (((qh[l] >> (2 * quarter)) & 3) << 4);
  const auto scale = static_cast<std::int8_t>(block[192 + e / 16]);
  return half(block + 208) * scale * (q - 32);
}

double w4(DType type, const std::uint8_t* block, int e) {
  const std::uint8_t* qs = block + core::dtype_info(type).block_bytes - 16;
  const int q = (e < 16 ? qs[e] & 15 : qs[e - 16] >> 4) - 8;
  float scale;
  if (type == DType::kW4_F32) {
    std::memcpy(&scale, block, 4);
  } else {
    scale = core::bf16_to_f32(static_cast<std::uint16_t>(block[0] | (block[1] << 8)));
  }
  return static_cast<double>(scale) * q;
}

double element(DType type, const std::uint8_t* block, int e) {
  switch (type) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, block, 4);
      return static_cast<double>(value);
    }
    case DType::kF16: return half(block);
    case DType::kBF16: {
      std::uint16_t bits;
      std::memcpy(&bits, block, 2);
      return static_cast<double>(core::bf16_to_f32(bits));
    }
    case DType::kQ8_0: return half(block) * static_cast<std::int8_t>(block[2 + e]);
    case DType::kQ4_K:
    case DType::kQ5_K: return k_four_or_five(type, block, e);
    case DType::kQ6_K: return k_six(block, e);
    case DType::kW4_BF16:
    case DType::kW4_F32: return w4(type, block, e);
    default: return legacy(type, block, e);
  }
}

/// The part of a weight that its whole block shares (the minimum), added as a term of its own by
/// the kernels.
double shared_part(DType type, const std::uint8_t* block, int e) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1: return half(block + 2);
    case DType::kQ4_K:
    case DType::kQ5_K: return -half(block + 2) * k_scales(block, e / 32).minimum;
    default: return 0;
  }
}

}  // namespace

std::vector<double> weights_of(const core::TensorView& tensor, std::int64_t output) {
  const core::DTypeInfo info = core::dtype_info(tensor.dtype);
  const std::int64_t inputs = tensor.shape[0];
  const auto* row = reinterpret_cast<const std::uint8_t*>(tensor.data) +
                    output * (inputs / info.block_elements) * info.block_bytes;
  std::vector<double> out;
  for (std::int64_t i = 0; i < inputs; ++i) {
    const std::int64_t block = i / info.block_elements;
    out.push_back(element(tensor.dtype, row + block * info.block_bytes,
                          static_cast<int>(i % info.block_elements)));
  }
  return out;
}

QuantisedRow quantise(const float* x, std::int64_t inputs) {
  QuantisedRow row;
  for (std::int64_t block = 0; block < inputs; block += 32) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[block + i]));
    row.scales.push_back(largest / 127.0f);
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    for (int i = 0; i < 32; ++i)
      row.q.push_back(static_cast<int>(std::nearbyintf(x[block + i] * inverse)));
  }
  return row;
}

Sum dot(const core::TensorView& tensor, std::int64_t output, const QuantisedRow& row) {
  const core::DTypeInfo info = core::dtype_info(tensor.dtype);
  const std::vector<double> w = weights_of(tensor, output);
  const auto inputs = static_cast<std::int64_t>(w.size());
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(tensor.data) +
                      output * (inputs / info.block_elements) * info.block_bytes;
  Sum sum;
  for (std::int64_t i = 0; i < inputs; i += 16) {
    const std::int64_t block = i / info.block_elements;
    const double shared = shared_part(tensor.dtype, bytes + block * info.block_bytes,
                                      static_cast<int>(i % info.block_elements));
    const auto scale = static_cast<double>(row.scales[static_cast<std::size_t>(i / 32)]);
    double scaled = 0, total = 0;
    for (std::int64_t j = i; j < i + 16; ++j) {
      const auto at = static_cast<std::size_t>(j);
      scaled += (w[at] - shared) * row.q[at] * scale;
      total += row.q[at] * scale;
    }
    sum.value += scaled + shared * total;
    sum.absolute += std::fabs(scaled) + std::fabs(shared * total);
    sum.terms += 2;
  }
  return sum;
}

Sum dot(const core::TensorView& tensor, std::int64_t output, const float* x) {
  const std::vector<double> w = weights_of(tensor, output);
  Sum sum;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double product = w[i] * static_cast<double>(x[i]);
    sum.value += product;
    sum.absolute += std::fabs(product);
    ++sum.terms;
  }
  return sum;
}

double gelu_tanh(double x) {
  const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-2 * u));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

}  // namespace segue::ops::reference
