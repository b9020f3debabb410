// SPDX-License-Identifier: Apache-2.0
// The kernel table: one row per kernel, the same type for every device. Planner, unit tests, sweep,
// exactness check and `segue kernels` read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "attention/plan.h"
#include "attention/shape.h"
#include "core/cpu.h"
#include "core/thread_pool.h"
#include "device/device.h"

namespace segue::attention {

/// Where a kernel runs: the CPU's thread pool (a device's stream later).
struct Stream {
  core::ThreadPool* pool = nullptr;
};

/// Arguments of one launch: one layer, all rows of the step.
struct Params {
  const Plan* plan = nullptr;
  const float* q = nullptr;  // [rows, q_heads, head_dim], packed rows of all sequences in order
  float* out = nullptr;      // [rows, q_heads, head_dim]
  float* lse =
      nullptr;  // [rows, q_heads] natural log-sum-exp of the scaled scores (sink included), or null
  const float* sinks =
      nullptr;  // [q_heads] or null: a score that takes part in the sum and has no value
  kv::View kv;
  const kv::PageTable* tables = nullptr;  // [sequences]
  float scale = 1.0f;                     // multiplies q.k
  float softcap = 0.0f;                   // c > 0: scores become c * tanh(score / c)
  float* partial_m = nullptr;             // [partials] maximum
  float* partial_l = nullptr;             // [partials] sum of exponentials
  float* partial_o = nullptr;             // [partials, head_dim] unnormalised output
};

/// Arguments of one launch on a GPU: attention/cuda/launch.h.
struct DeviceParams;

/// Kernels of one bits class give a row the same bytes.
struct Kernel {
  std::string_view name;        // "cpu.avx512.bf16"
  std::string_view bits_class;  // instruction sequence and unit rule
  DeviceKind device = DeviceKind::kCpu;
  core::IsaLevel isa = core::IsaLevel::kPortable;    // CPU rows: needs this level
  GpuFamily family = GpuFamily::kNone;               // GPU rows: which GPUs it is for (gpu.h)
  bool (*supports)(const Shape&) = nullptr;          // pure, host only
  void (*launch)(const Params&, Stream&) = nullptr;  // CPU rows
  void (*launch_on_gpu)(const DeviceParams&, device::Stream&) = nullptr;  // GPU rows
  std::size_t scratch_bytes =
      0;  // CPU rows: what they take of a thread's scratch, reserved at launch
  KvType p_type = KvType::kF32;  // in which exponentials meet V: error bounds follow from it
};

/// The table of this build, best first; the last row is the double-precision reference, which
/// supports every shape. Rows whose instruction level this CPU lacks are left out.
std::span<const Kernel* const> kernels();

/// The message lists the names there are.
Result<const Kernel*> find_kernel(std::string_view name);

/// The rows of the CPU backend, best first; defined in attention/cpu, all levels that were
/// compiled.
std::span<const Kernel> cpu_kernels();

#ifdef SEGUE_CUDA
/// The rows of the GPU backend; defined in attention/cuda.
std::span<const Kernel> cuda_kernels();
#endif

/// The reference kernel: double accumulation, every layout, mask and shape; also written in
/// attention/.
extern const Kernel kReference;

}  // namespace segue::attention
