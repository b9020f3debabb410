// SPDX-License-Identifier: Apache-2.0
// What the kernels are judged by: plain loops in double over the file's own blocks, sharing nothing
// with the repacked path.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace segue::ops::reference {

/// One output's weights, read from the tensor's bytes.
std::vector<double> weights_of(const core::TensorView& tensor, std::int64_t output);

/// The 8-bit form of a row: largest magnitude / 127 per block of 32, nearest even.
struct QuantisedRow {
  std::vector<int> q;         // [inputs]
  std::vector<float> scales;  // [inputs / 32]
};
QuantisedRow quantise(const float* x /*[inputs]*/, std::int64_t inputs);

struct Sum {
  double value = 0;
  double absolute =
      0;  // of the float terms that a kernel adds: one or two per block, or one per input
  std::int64_t terms = 0;
};

/// What a kernel computes for one output, without rounding.
Sum dot(const core::TensorView& tensor, std::int64_t output, const QuantisedRow& row);
Sum dot(const core::TensorView& tensor, std::int64_t output, const float* x /*[inputs]*/);

/// 0.5 x (1 + tanh(u)) written as x / (1 + exp(-2 u)): 1 + tanh would lose small results in double
/// too.
double gelu_tanh(double x);
double silu(double x);

}  // namespace segue::ops::reference
