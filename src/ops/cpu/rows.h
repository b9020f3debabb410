// SPDX-License-Identifier: Apache-2.0
// Rows: the activations of one matrix product, quantised once and read by every matrix that shares
// them (q, k, v; gate and up). A row is cut into blocks of 32 values with one f32 scale (largest
// magnitude / 127) and int8 values; nothing about a row depends on its neighbours.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cpu.h"
#include "core/thread_pool.h"
#include "ops/cpu/kernels.h"

namespace segue::ops {

class Rows {
 public:
  /// Rows and the matrices they meet must be of the same instruction level.
  explicit Rows(core::IsaLevel isa);

  /// Names the activations; reads nothing yet. `x` must stay unchanged until the last product over
  /// these rows. Buffers grow to the largest size seen and are kept. `stride` (floats between rows)
  /// 0 means `inputs`.
  void assign(const float* x /*[rows, stride]*/, std::int64_t rows, std::int64_t inputs,
              std::int64_t stride = 0);

  std::int64_t rows() const { return rows_; }
  std::int64_t inputs() const { return inputs_; }
  core::IsaLevel isa() const { return kernels_->isa; }
  const Kernels& kernels() const { return *kernels_; }

  /// The packed panels that kernels read (kernels.h), made by the first product that needs them.
  const std::uint8_t* quantised(core::ThreadPool& pool);
  const float* floats(core::ThreadPool& pool);

  /// One unpacked tile per thread, for the kernels.
  void reserve_scratch(int threads);
  std::uint8_t* scratch(int worker);

 private:
  const Kernels* kernels_;
  const float* x_ = nullptr;
  std::int64_t rows_ = 0, inputs_ = 0, stride_ = 0;
  bool quantised_ready_ = false, floats_ready_ = false;
  std::vector<std::uint8_t> quantised_;
  std::vector<float> floats_;
  std::vector<std::uint8_t> scratch_;
  std::int64_t scratch_stride_ = 0;
};

}  // namespace segue::ops
