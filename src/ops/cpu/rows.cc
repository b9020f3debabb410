// SPDX-License-Identifier: Apache-2.0
// Packing of activations into panels: by the caller for a few rows, in parallel for many.
#include "ops/cpu/rows.h"

#include <algorithm>

#include "core/check.h"
#include "ops/cpu/layout.h"

namespace segue::ops {
namespace {

/// Rows whose packing takes longer than a parallel region costs.
constexpr std::int64_t kSerialElements = 32 * 1024;

/// Calls fn(first, count) for runs of whole panels that cover all rows.
template <class Fn>
void for_panels(std::int64_t rows, std::int64_t inputs, int panel_rows, core::ThreadPool& pool,
                Fn fn) {
  if (rows * inputs <= kSerialElements) return fn(std::int64_t{0}, rows);
  const std::int64_t panels = (rows + panel_rows - 1) / panel_rows;
  pool.for_each(panels, [&](std::int64_t panel, int) {
    const std::int64_t first = panel * panel_rows;
    fn(first, std::min<std::int64_t>(panel_rows, rows - first));
  });
}

}  // namespace

Rows::Rows(core::IsaLevel isa) : kernels_(&ops::kernels(isa)) {}

void Rows::assign(const float* x, std::int64_t rows, std::int64_t inputs, std::int64_t stride) {
  CHECK(rows >= 0 && inputs > 0 && (stride == 0 || stride >= inputs));
  x_ = x;
  rows_ = rows;
  inputs_ = inputs;
  stride_ = stride == 0 ? inputs : stride;
  quantised_ready_ = floats_ready_ = false;
}

const std::uint8_t* Rows::quantised(core::ThreadPool& pool) {
  if (quantised_ready_) return quantised_.data();
  CHECK(inputs_ % kBlock == 0);
  const std::int64_t row_bytes = inputs_ / kBlock * kRowBlockBytes;
  const auto needed = static_cast<std::size_t>(rows_ * row_bytes);
  if (quantised_.size() < needed) quantised_.resize(needed);
  for_panels(rows_, inputs_, kernels_->panel_rows, pool,
             [&](std::int64_t first, std::int64_t count) {
               kernels_->quantise(x_ + first * stride_, stride_, count, inputs_,
                                  quantised_.data() + first * row_bytes);
             });
  quantised_ready_ = true;
  return quantised_.data();
}

const float* Rows::floats(core::ThreadPool& pool) {
  if (floats_ready_) return floats_.data();
  const auto needed = static_cast<std::size_t>(rows_ * inputs_);
  if (floats_.size() < needed) floats_.resize(needed);
  const int panel_rows = kernels_->panel_rows;
  for_panels(rows_, inputs_, panel_rows, pool, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t row = first; row < first + count; row += panel_rows) {
      const std::int64_t width = std::min<std::int64_t>(panel_rows, first + count - row);
      float* panel = floats_.data() + row * inputs_;
      for (std::int64_t k = 0; k < inputs_; ++k) {
        for (std::int64_t m = 0; m < width; ++m) panel[k * width + m] = x_[(row + m) * stride_ + k];
      }
    }
  });
  floats_ready_ = true;
  return floats_.data();
}

void Rows::reserve_scratch(int threads) {
  scratch_stride_ = (scratch_bytes(inputs_) + kLineBytes - 1) / kLineBytes * kLineBytes;
  const auto needed = static_cast<std::size_t>(threads * scratch_stride_ + kLineBytes);
  if (scratch_.size() < needed) scratch_.resize(needed);
}

std::uint8_t* Rows::scratch(int worker) {
  const auto address = reinterpret_cast<std::uintptr_t>(scratch_.data());
  return scratch_.data() + (-address % kLineBytes) + worker * scratch_stride_;
}

}  // namespace segue::ops
