// SPDX-License-Identifier: Apache-2.0
// From DeviceParams to a kernel's arguments and into the stream, and the reductions after it: what
// the launches of all families have in common.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <numeric>

#include "attention/cuda/arguments.h"
#include "attention/cuda/launch.h"
#include "device/cuda/overlap.cuh"

namespace segue::attention::cuda {

/// What all families read of it.
inline Arguments arguments_of(const DeviceParams& params, int tile_keys) {
  Arguments args{};
  params.plan->fill(args, params.partials, params.tables);
  args.q = params.q;
  args.out = params.out;
  args.lse = params.lse;
  args.sinks = params.sinks;
  args.k = params.kv.k;
  args.v = params.kv.v;
  args.page_stride = params.kv.page_stride;
  args.head_stride = params.kv.head_stride;
  args.pages = params.kv.pages;
  args.page_size = params.kv.page_size;
  const auto page = static_cast<unsigned>(params.kv.page_size);
  args.page_inverse = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / page);
  args.page_shift = std::has_single_bit(page) ? std::countr_zero(page) : -1;
  args.piece = std::gcd(params.kv.page_size, tile_keys);
  args.q_heads = params.shape.q_heads;
  args.group = params.shape.group();
  args.group_inverse = 65536 / args.group + 1;
  args.window = params.shape.window;
  args.early = params.early_reads ? 1 : 0;
  constexpr float kLog2E = 1.44269504088896340736f;
  args.capped = params.softcap > 0 ? 1 : 0;
  args.score_scale = args.capped ? params.scale / params.softcap : 1.0f;
  args.exponent_scale = (args.capped ? params.softcap : params.scale) * kLog2E;
  return args;
}

/// The grids of a launch, live or for capture.
inline Grid grid_of(const DeviceParams& params) {
  if (params.grid != nullptr) return *params.grid;
  Grid grid = grid_of(params.plan->live());
  if (!params.whole_capacity) return grid;
  const Capacity& capacity = params.plan->capacity();
  return {capacity.items, capacity.reductions, capacity.tile_rows, capacity.runs, grid.folds};
}

using device::BlockFacts;
using device::enqueue;
using device::launches_overlap;

/// What there is to reduce: rows x group of the largest tile, live (or captured) reductions,
/// partials of the longest one.
struct ReductionList {
  int tile_rows = 0;
  int reductions = 0;
  int runs = 0;
};

/// Enqueues the ordered reduction of any family's partials; reduce.cu.
void launch_reductions(const DeviceParams& params, const Arguments& args, const ReductionList& list,
                       cudaStream_t stream);

}  // namespace segue::attention::cuda
