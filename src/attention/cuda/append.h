// SPDX-License-Identifier: Apache-2.0
// Writing the K and V rows of a step into a GPU's pool, for callers whose own kernels do not know
// the layout.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/shape.h"
#include "device/device.h"
#include "kv/view.h"

namespace segue::attention::cuda {

/// Where the packed rows of one sequence go.
struct alignas(16) RowRange {
  std::int32_t token;     // of its first row in the packed rows of the step
  std::int32_t rows;      // 0: padding
  std::int32_t position;  // of its first row
  std::int32_t unused;
};

/// One launch: rows of K and V, of the pool's type. All pointers are device memory.
struct AppendArguments {
  const std::byte* k;  // rows of [kv_heads, head_dim], k_stride bytes apart
  const std::byte* v;
  std::int64_t k_stride;
  std::int64_t v_stride;
  kv::View view;
  const std::int32_t* tables;  // [sequences, table_stride]
  std::int32_t table_stride;
  const RowRange* ranges;  // [sequences], ascending tokens
  std::int32_t sequences;
  const std::int32_t* rows;  // of the step; blocks past them return at once
};

/// `most_rows` blocks. A row whose page lies outside the pool is not written.
void append(const AppendArguments& args, std::int64_t most_rows, const device::Stream& stream);

/// The ranges of a step on the device, in buffers that a captured graph may read.
class RowRanges {
 public:
  explicit RowRanges(int sequences);
  RowRanges(const RowRanges&) = delete;
  RowRanges& operator=(const RowRanges&) = delete;

  /// Enqueues one copy. Not while the stream is captured.
  void upload(std::span<const SequenceRows> sequences, const device::Stream& stream);
  void fill(AppendArguments& args) const;
  std::int64_t rows() const { return rows_; }

 private:
  struct Slot {
    device::PinnedBuffer list;
    device::Event copied;
    bool used = false;
  };
  int sequences_;
  std::int64_t rows_ = 0;
  std::array<Slot, 4> slots_;
  std::size_t next_slot_ = 0;
  device::Buffer list_;  // [sequences] RowRange, then the rows of the step
};

}  // namespace segue::attention::cuda
