// SPDX-License-Identifier: Apache-2.0
// A block per row: it finds its sequence, then writes 16-byte pieces, which are contiguous in every
// layout that a GPU has. Moves 4 * kv_heads * head_dim * bytes a row; bound by its launch.
#include <cuda_runtime.h>

#include <cstring>

#include "attention/cuda/append.h"
#include "core/check.h"
#include "device/cuda/check.h"

namespace segue::attention::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 8;  // elements of two bytes

/// The last sequence whose first row is not behind `row`; padding has the token of the sequence
/// after it, so it is never the last.
__device__ const RowRange* range_of(const AppendArguments& args, int row, int& sequence) {
  int low = 0;
  int high = args.sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (args.ranges[middle].token <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  sequence = low;
  return args.ranges + low;
}

__global__ void append_rows(const __grid_constant__ AppendArguments args) {
  const int row = static_cast<int>(blockIdx.x);
  if (row >= *args.rows) return;
  int sequence = 0;
  const RowRange range = *range_of(args, row, sequence);
  const std::int64_t position = std::int64_t{range.position} + row - range.token;
  const auto entry = static_cast<std::int32_t>(position / args.view.page_size);
  const int t = static_cast<int>(position % args.view.page_size);
  if (entry >= args.table_stride) return;
  const std::int32_t page =
      args.tables[static_cast<std::int64_t>(sequence) * args.table_stride + entry];
  if (page < 0 || page >= args.view.pages) return;
  const int pieces = args.view.kv_heads * args.view.head_dim / kPiece;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
    const int head = i * kPiece / args.view.head_dim;
    const int d = i * kPiece % args.view.head_dim;
    const std::int64_t block = page * args.view.page_stride + head * args.view.head_stride;
    *reinterpret_cast<uint4*>(args.view.k + block + args.view.k_offset(t, d)) =
        *reinterpret_cast<const uint4*>(args.k + row * args.k_stride + std::int64_t{i} * 16);
    *reinterpret_cast<uint4*>(args.view.v + block + args.view.v_offset(t, d)) =
        *reinterpret_cast<const uint4*>(args.v + row * args.v_stride + std::int64_t{i} * 16);
  }
}

}  // namespace

void append(const AppendArguments& args, std::int64_t most_rows, const device::Stream& stream) {
  if (most_rows == 0) return;
  append_rows<<<static_cast<unsigned>(most_rows), kThreads, 0, device::cuda_stream(stream)>>>(args);
  device::cuda_check(cudaGetLastError());
}

RowRanges::RowRanges(int sequences)
    : sequences_(sequences),
      list_(static_cast<std::size_t>(sequences) * sizeof(RowRange) + sizeof(RowRange)) {
  for (Slot& slot : slots_) slot.list = device::PinnedBuffer(list_.bytes());
}

void RowRanges::upload(std::span<const SequenceRows> sequences, const device::Stream& stream) {
  CHECK(sequences.size() <= static_cast<std::size_t>(sequences_));
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  if (slot.used) slot.copied.synchronize();
  auto* const ranges = reinterpret_cast<RowRange*>(slot.list.data());
  rows_ = 0;
  for (int i = 0; i < sequences_; ++i) {
    const bool live = static_cast<std::size_t>(i) < sequences.size();
    const SequenceRows rows = live ? sequences[static_cast<std::size_t>(i)] : SequenceRows{};
    ranges[i] = {static_cast<std::int32_t>(rows_), rows.rows, static_cast<std::int32_t>(rows.depth),
                 0};
    rows_ += rows.rows;
  }
  ranges[sequences_] = {static_cast<std::int32_t>(rows_), 0, 0, 0};
  device::copy_to_device(list_.as<>(), slot.list.data(), list_.bytes(), stream);
  slot.copied.record(stream);
  slot.used = true;
}

void RowRanges::fill(AppendArguments& args) const {
  args.ranges = list_.as<RowRange>();
  args.sequences = sequences_;
  args.rows = &list_.as<RowRange>()[sequences_].token;
}

}  // namespace segue::attention::cuda
