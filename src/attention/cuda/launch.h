// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU: what one launch is given.
#pragma once

#include <cstdint>

#include "attention/cuda/device_plan.h"
#include "attention/kernel.h"
#include "attention/shape.h"
#include "device/device.h"
#include "kv/view.h"

namespace segue::attention {

/// Arguments of one launch on a GPU: one layer, all rows of the step. Pointers are device memory, q
/// and out have the KV's type. Entries of page tables that no visible key needs may hold anything,
/// and so may memory that no visible key lies in, NaN included.
struct DeviceParams {
  const cuda::DevicePlan* plan = nullptr;
  const void* q = nullptr;               // [rows, q_heads, head_dim]
  void* out = nullptr;                   // [rows, q_heads, head_dim]
  float* lse = nullptr;                  // [rows, q_heads] as Params::lse, or null
  const float* sinks = nullptr;          // [q_heads] or null
  float* partials = nullptr;             // plan->partial_bytes(), or null where the plan owns them
  const std::int32_t* tables = nullptr;  // [sequences, stride] or null where the plan has them
  kv::View kv;                           // kSwizzled8 or a natural layout
  Shape shape;
  float scale = 1.0f;  // above 0
  float softcap = 0.0f;
  int multiprocessors = 132;
  /// For capture into a graph: the grid is the plan's capacity, not its live counts,
  bool whole_capacity = false;
  /// or this, at least the counts of every plan that the graph will replay with; null: neither.
  const cuda::Grid* grid = nullptr;
  /// The kernel before this one in the stream writes no key or value of this step: reading may
  /// start before it ends.
  bool early_reads = false;
};

}  // namespace segue::attention
