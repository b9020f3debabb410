// SPDX-License-Identifier: Apache-2.0
// Launchers of the harness's kernels; synthetic.cu.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/view.h"

namespace segue::attention::cuda {

enum class Which : std::uint32_t { kKey, kValue, kQuery };

/// Writes K and V of tokens [0, length) of a sequence through its page table (device memory).
void fill_sequence(const kv::View& view, const std::int32_t* table, std::int64_t length,
                   int sequence, std::uint64_t seed, const device::Stream& stream);

/// Queries of rows at positions [depth, depth + rows) of a sequence: q [rows, q_heads, head_dim].
void fill_queries(void* q, KvType type, int rows, int q_heads, int head_dim, std::int64_t depth,
                  int sequence, float spread, std::uint64_t seed, const device::Stream& stream);

struct ReferenceTask {
  KvType type = KvType::kBF16;
  int rows = 0, q_heads = 0, group = 1, head_dim = 0, window = 0, sequence = 0;
  std::int64_t depth = 0;
  float scale = 1, softcap = 0, spread = 1;
  std::uint64_t seed = 0;
  const float* sinks = nullptr;  // [q_heads] device memory, or null
};

/// All device memory, all written: out and absolute_sum [rows, q_heads, head_dim]; lse, score_sum
/// [rows, q_heads]; `scores` is scratch of 2 * rows * q_heads * (depth + rows) doubles.
void reference(const ReferenceTask& task, double* out, double* absolute_sum, double* lse,
               double* score_sum, double* scores, const device::Stream& stream);

/// Reads `bytes` (a multiple of 16) and writes nothing.
void read_bytes(const void* data, std::int64_t bytes, const device::Stream& stream);

}  // namespace segue::attention::cuda
