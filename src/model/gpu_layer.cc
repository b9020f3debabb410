// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "model/gpu_layer.h"

#include "ops/cuda/rows.h"

namespace segue::model {
namespace gpu = ops::cuda;

void LayerRows::of(std::span<const GpuLayer> layers, std::int64_t rows) {
  for (const GpuLayer& w : layers) {
    x.of(rows * w.o.outputs());
    branch.of(rows * w.o.outputs());
    qkv.of(rows * w.qkv.outputs());
    gate_up.of(rows * w.gate_up.outputs());
    normed.of(rows * w.o.outputs());
    q.of(rows * w.o.inputs());
    attended.of(rows * w.o.inputs());
    gated.of(rows * w.down.inputs());
    gate_up.of(rows * w.per_layer_gate.outputs());
    gated.of(rows * w.per_layer_projection.inputs());
  }
}

std::array<const void*, 8> LayerRows::addresses() const {
  return {x.data(),      branch.data(), qkv.data(),      gate_up.data(),
          normed.data(), q.data(),      attended.data(), gated.data()};
}

void enqueue_first_norm(const LayerLaunch& launch, const float* norm) {
  gpu::AddNorm first;
  first.x = launch.buffers.x.data();
  first.norm = norm;
  first.out = launch.buffers.normed.data();
  first.eps = launch.config.rms_eps;
  first.rows = launch.rows;
  first.width = launch.config.hidden;
  gpu::add_norm(first, launch.stream);
}

namespace {

/// normed has x, x += norm(projection (gelu(gate x) * per_layer)), times the scalar; then the norm.
void enqueue_per_layer(const LayerLaunch& launch, const LayerEnd& end, gpu::AddNorm join) {
  const LayerRows& rows = launch.buffers;
  const GpuLayer& w = end.weights;
  const std::int64_t width = w.per_layer_gate.outputs();
  launch.product(w.per_layer_gate, rows.normed.data(), rows.gate_up.data());
  gpu::Gate gate;
  gate.gate = rows.gate_up.data();
  gate.gate_stride = width;
  gate.up = end.per_layer;
  gate.up_stride = width * launch.config.layer_count();
  gate.gelu = true;
  gate.out = rows.gated.data();
  gate.rows = launch.rows;
  gate.width = width;
  gpu::gate(gate, launch.stream);
  launch.product(w.per_layer_projection, rows.gated.data(), rows.branch.data());
  join.post_norm = w.per_layer_norm;
  gpu::add_norm(join, launch.stream);
}

}  // namespace

void enqueue_layer_end(const LayerLaunch& launch, const LayerEnd& end) {
  const LayerRows& rows = launch.buffers;
  const GpuLayer& w = end.weights;
  // Attention leaves some multiprocessors free: blocks that start early would all be there.
  launch.product(w.o, rows.attended.data(), rows.branch.data(), false);
  gpu::AddNorm join;
  join.x = rows.x.data();
  join.branch = rows.branch.data();
  join.post_norm = w.post_attention_norm;
  join.norm = w.ffn_norm;
  join.out = rows.normed.data();
  join.eps = launch.config.rms_eps;
  join.rows = launch.rows;
  join.width = launch.config.hidden;
  gpu::add_norm(join, launch.stream);
  launch.product(w.gate_up, rows.normed.data(), rows.gate_up.data());
  const std::int64_t wide = w.down.inputs();
  gpu::Gate gate;
  gate.gate = rows.gate_up.data();
  gate.up = rows.gate_up.data() + wide;
  gate.gate_stride = gate.up_stride = 2 * wide;
  gate.gelu = launch.config.activation == Activation::kGeluTanh;
  gate.out = rows.gated.data();
  gate.rows = launch.rows;
  gate.width = wide;
  gpu::gate(gate, launch.stream);
  launch.product(w.down, rows.gated.data(), rows.branch.data());
  join.post_norm = w.post_ffn_norm;
  join.norm = nullptr;
  if (end.per_layer != nullptr) gpu::add_norm(join, launch.stream);  // normed = x
  join.scale = w.scalar;
  join.norm = end.next_norm;
  if (end.next_norm == nullptr) join.out = nullptr;
  if (end.per_layer != nullptr) return enqueue_per_layer(launch, end, join);
  gpu::add_norm(join, launch.stream);
}

}  // namespace segue::model
#endif
