// SPDX-License-Identifier: Apache-2.0
// What the layers of a target and of an assistant have in common on a GPU: the rows of a step
// between their launches, the norm before the first of them, and all of a layer that comes after
// its attention, the per-layer embedding of some targets included. Private to this folder, CUDA
// builds only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "model/config.h"
#include "model/gpu_step.h"
#include "model/gpu_weights.h"
#include "ops/cuda/matrix.h"

namespace segue::model {

/// The rows of a step on their way through the layers.
struct LayerRows {
  Rows<float> x;               // [rows, hidden] what all halves of layers add to
  Rows<float> branch;          // [rows, hidden] what the half at hand adds
  Rows<float> qkv;             // [rows, widest q, k and v]
  Rows<float> gate_up;         // [rows, 2 * widest MLP] or [rows, per_layer_input]
  Rows<std::uint16_t> normed;  // bf16, as all below: [rows, hidden]
  Rows<std::uint16_t> q;       // [rows, widest q]
  Rows<std::uint16_t> attended;
  Rows<std::uint16_t> gated;  // [rows, widest MLP or per_layer_input]

  /// Room for so many rows in all of the layers. Nothing may be in flight.
  void of(std::span<const GpuLayer> layers, std::int64_t rows);
  /// Where the buffers are.
  std::array<const void*, 8> addresses() const;
};

/// What every launch of a step needs.
struct LayerLaunch {
  const Config& config;
  const LayerRows& buffers;
  std::int64_t rows;  // of the step
  int multiprocessors;
  const device::Stream& stream;

  /// y [rows, outputs] = w x, x [rows, inputs] in bf16. `early` as in ops::cuda::Product.
  void product(const ops::cuda::Matrix& w, const std::uint16_t* x, float* y,
               bool early = true) const {
    ops::cuda::product({&w, x, y, rows, early}, multiprocessors, stream);
  }
};

/// normed = norm(x), before the first layer.
void enqueue_first_norm(const LayerLaunch& launch, const float* norm);  // [hidden]

/// What a layer does with its attended rows: output projection, MLP and what they add to x; then
/// normed = next_norm(x), for the layer after it or for the head.
struct LayerEnd {
  const GpuLayer& weights;
  const float* next_norm;  // [hidden], or null: normed is not written
  /// [rows, per_layer_input] what this layer adds, rows of all layers' parts apart; or null.
  const float* per_layer = nullptr;
};
void enqueue_layer_end(const LayerLaunch& launch, const LayerEnd& end);

}  // namespace segue::model
