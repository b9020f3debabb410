// SPDX-License-Identifier: Apache-2.0
// The CPU rows of the kernel table, and their launch: items of the plan are handed to threads one
// by one; when all are done, the partials of every (row tile, kv head) are merged left to right,
// many rows at a time. Nothing here computes a number; which thread runs what changes no bit.
#include <algorithm>
#include <array>
#include <limits>
#include <new>

#include "attention/cpu/level.h"
#include "attention/kernel.h"
#include "core/check.h"

namespace segue::attention {
namespace {

using cpu::Job;
using cpu::Level;
using cpu::Partial;

/// What all items of a launch share.
struct Launch {
  const Params& params;
  const Level& level;

  const Plan& plan() const { return *params.plan; }
  int head_dim() const { return plan().shape.head_dim; }
  std::int64_t row_stride() const { return std::int64_t{plan().shape.q_heads} * head_dim(); }

  /// Output of a row of the packed rows and a query head.
  float* out(std::int64_t row, int head) const {
    return params.out + row * row_stride() + std::int64_t{head} * head_dim();
  }
  Partial partial(std::int64_t index) const {
    return {params.partial_m + index, params.partial_l + index,
            params.partial_o + index * head_dim()};
  }
  void finish(const Partial& acc, std::int64_t row, int head) const {
    const float* sink = params.sinks == nullptr ? nullptr : params.sinks + head;
    const float lse = level.finish(acc, head_dim(), sink, plan().shape.kv);
    if (params.lse != nullptr) params.lse[row * plan().shape.q_heads + head] = lse;
  }
};

cpu::Keys keys_of(const Launch& launch, const RowTile& tile, int kv_head) {
  const kv::View& view = launch.params.kv;
  const kv::PageTable& table = launch.params.tables[tile.sequence];
  const std::int64_t head = kv_head * view.head_stride;
  return {.k = view.k + head,
          .v = view.v + head,
          .page_stride = view.page_stride,
          .token_stride = view.token_stride,
          .table = table.pages,
          .table_count = table.count,
          .pages = view.pages,
          .page_size = view.page_size,
          .natural = view.layout != kv::Layout::kTiled16};
}

/// Rows [first, first + rows) of the item's tile.
void run_rows(const Launch& launch, const WorkItem& item, int first, int rows,
              cpu::Scratch& scratch) {
  const Plan& plan = launch.plan();
  const Shape& shape = plan.shape;
  const RowTile& tile = plan.tiles[static_cast<std::size_t>(item.tile)];
  const int group = shape.group();
  const int head = item.kv_head * group;
  const std::int64_t row = tile.token + first;
  const bool final = item.partial < 0;
  std::array<float, 2 * cpu::kMaxRows>
      state;  // maximum and sum of final rows, which need no partial

  Job job{.keys = keys_of(launch, tile, item.kv_head),
          .q = launch.params.q + row * launch.row_stride() + std::int64_t{head} * shape.head_dim,
          .row_stride = launch.row_stride(),
          .rows = rows,
          .group = group,
          .head_dim = shape.head_dim,
          .window = shape.window,
          .position = tile.position + first,
          .unit = tile.unit,
          .unit_first = item.unit_first,
          .unit_last = item.unit_last,
          .scale = launch.params.scale,
          .softcap = launch.params.softcap,
          .fold = final || item.unit_first == tile.unit_first,
          .entry_stride = std::int64_t{tile.rows} * group,
          .m = state.data(),
          .l = state.data() + cpu::kMaxRows,
          .o = launch.out(row, head),
          .o_entry = shape.head_dim,
          .o_row = launch.row_stride()};
  if (!final) {
    const Partial partial = launch.partial(item.partial + std::int64_t{first} * group);
    job.m = partial.m;
    job.l = partial.l;
    job.o = partial.o;
    job.o_row = std::int64_t{group} * shape.head_dim;
  }
  launch.level.run[static_cast<int>(shape.kv)](job, scratch);
  if (!final) return;
  for (int entry = 0; entry < rows * group; ++entry) {
    const Partial acc{job.m + entry, job.l + entry,
                      launch.out(row + entry / group, head + entry % group)};
    launch.finish(acc, row + entry / group, head + entry % group);
  }
}

/// Merges the runs of row `row` of the reduction's tile into the output, left to right.
void reduce_row(const Launch& launch, const Reduction& reduction, int row) {
  const Plan& plan = launch.plan();
  const RowTile& tile = plan.tiles[static_cast<std::size_t>(reduction.tile)];
  const int group = plan.shape.group();
  for (int g = 0; g < group; ++g) {
    float m = -std::numeric_limits<float>::infinity();
    float l = 0.0f;
    const std::int64_t token = tile.token + row;
    const int head = reduction.kv_head * group + g;
    const Partial acc{&m, &l, launch.out(token, head)};
    std::fill_n(acc.o, launch.head_dim(), 0.0f);
    for (std::int32_t i = reduction.item_first; i < reduction.item_last; ++i) {
      const WorkItem& item = plan.items[static_cast<std::size_t>(i)];
      const std::int64_t runs = item.unit_first == tile.unit_first ? 1 : item.units();
      for (std::int64_t run = 0; run < runs; ++run) {
        const std::int64_t index = item.partial + (run * tile.rows + row) * group + g;
        launch.level.merge(acc, launch.partial(index), launch.head_dim());
      }
    }
    launch.finish(acc, token, head);
  }
}

void launch_items(const Level& level, const Params& params, Stream& stream) {
  const Launch launch{params, level};
  const Plan& plan = launch.plan();
  CHECK(params.kv.layout == plan.shape.layout && params.kv.type == plan.shape.kv);
  const int group = plan.shape.group();
  const int most_rows = cpu::kMaxRows / group;

  stream.pool->reserve_scratch(sizeof(cpu::Scratch));
  const auto items = static_cast<std::int64_t>(plan.items.size());
  stream.pool->for_each(items, [&](std::int64_t task, int worker) {
    // Warm from the item before. Its lifetime begins without any of its bytes being written.
    cpu::Scratch& scratch = *new (stream.pool->scratch(worker)) cpu::Scratch;
    const WorkItem& item = plan.items[static_cast<std::size_t>(task)];
    const int rows = plan.tiles[static_cast<std::size_t>(item.tile)].rows;
    for (int first = 0; first < rows; first += most_rows) {
      run_rows(launch, item, first, std::min(most_rows, rows - first), scratch);
    }
  });

  // A second region rather than "the last arriver merges": rows of one reduction are then shared by
  // all threads.
  const auto reductions = static_cast<std::int64_t>(plan.reductions.size());
  if (reductions == 0) return;
  const int shares = reductions >= 4 * stream.pool->threads() ? 1 : 2 * stream.pool->threads();
  stream.pool->for_each(reductions * shares, [&](std::int64_t task, int) {
    const Reduction& reduction = plan.reductions[static_cast<std::size_t>(task / shares)];
    const int rows = plan.tiles[static_cast<std::size_t>(reduction.tile)].rows;
    const auto share = static_cast<int>(task % shares);
    for (int row = rows * share / shares; row < rows * (share + 1) / shares; ++row)
      reduce_row(launch, reduction, row);
  });
}

template <KvType type>
bool supports(const Shape& shape) {
  return shape.kv == type && shape.layout != kv::Layout::kSwizzled8 && shape.head_dim % 16 == 0 &&
         shape.head_dim <= cpu::kMaxHeadDim && shape.group() <= cpu::kMaxGroup &&
         shape.page_size % 8 == 0;
}

template <const Level& level>
void launch(const Params& params, Stream& stream) {
  launch_items(level, params, stream);
}

template <KvType type, const Level& level>
constexpr Kernel row(std::string_view name, std::string_view bits_class, core::IsaLevel isa) {
  return {.name = name,
          .bits_class = bits_class,
          .device = DeviceKind::kCpu,
          .isa = isa,
          .supports = &supports<type>,
          .launch = &launch<level>,
          .scratch_bytes = sizeof(cpu::Scratch)};
}

using core::IsaLevel;

constexpr std::array kRows {
#if defined(__x86_64__)
  row<KvType::kBF16, avx512::kLevel>("cpu.avx512.bf16", "cpu-avx512-1", IsaLevel::kAvx512),
      row<KvType::kF16, avx512::kLevel>("cpu.avx512.f16", "cpu-avx512-1", IsaLevel::kAvx512),
      row<KvType::kF32, avx512::kLevel>("cpu.avx512.f32", "cpu-avx512-1", IsaLevel::kAvx512),
      row<KvType::kBF16, avx2::kLevel>("cpu.avx2.bf16", "cpu-avx2-1", IsaLevel::kAvx2),
      row<KvType::kF16, avx2::kLevel>("cpu.avx2.f16", "cpu-avx2-1", IsaLevel::kAvx2),
      row<KvType::kF32, avx2::kLevel>("cpu.avx2.f32", "cpu-avx2-1", IsaLevel::kAvx2),
#elif defined(__aarch64__)
  row<KvType::kBF16, neon::kLevel>("cpu.neon.bf16", "cpu-neon-1", IsaLevel::kNeon),
      row<KvType::kF16, neon::kLevel>("cpu.neon.f16", "cpu-neon-1", IsaLevel::kNeon),
      row<KvType::kF32, neon::kLevel>("cpu.neon.f32", "cpu-neon-1", IsaLevel::kNeon),
#endif
      row<KvType::kBF16, portable::kLevel>("cpu.portable.bf16", "cpu-portable-1",
                                           IsaLevel::kPortable),
      row<KvType::kF16, portable::kLevel>("cpu.portable.f16", "cpu-portable-1",
                                          IsaLevel::kPortable),
      row<KvType::kF32, portable::kLevel>("cpu.portable.f32", "cpu-portable-1",
                                          IsaLevel::kPortable),
};

}  // namespace

std::span<const Kernel> cpu_kernels() { return kRows; }

}  // namespace segue::attention
