// SPDX-License-Identifier: Apache-2.0
// TensorView: a named, typed, read-only view of stored bytes (a mapped file). Owns nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/dtype.h"

namespace segue::core {

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  int dims = 0;
  std::array<std::int64_t, 4> shape{
      1, 1, 1, 1};  // shape[0] is the contiguous axis (inputs), shape[1] outputs
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;

  std::int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

}  // namespace segue::core
