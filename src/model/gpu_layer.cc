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
  gpu::gate({rows.gate_up.data(), launch.config.activation == Activation::kGeluTanh,
             rows.gated.data(), launch.rows, w.down.inputs()},
            launch.stream);
  launch.product(w.down, rows.gated.data(), rows.branch.data());
  join.post_norm = w.post_ffn_norm;
  join.scale = w.scalar;
  join.norm = end.next_norm;
  gpu::add_norm(join, launch.stream);
}

}  // namespace segue::model
#endif
