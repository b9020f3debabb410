// SPDX-License-Identifier: Apache-2.0
// The table of per-layer embeddings (Gemma 4 E2B, E4B) beside a GPU: half of a small model's bytes,
// of which a step reads one row per token. So it stays in the host's memory, in the file's own
// form, and a step brings its rows along. Private to this folder.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "model/weights.h"

namespace segue::model {

class PerLayerTable {
 public:
  /// Takes the table and its memory out of `weights`; `pool` must outlive this.
  PerLayerTable(Weights&& weights, core::ThreadPool& pool);

  /// Rows of these tokens, rounded to bf16.
  void read(std::span<const std::int32_t> tokens, std::uint16_t* out /*[tokens, layers * width]*/);

 private:
  ops::WeightMemory memory_;
  ops::Matrix table_;
  core::ThreadPool& pool_;
  std::vector<std::vector<float>> rows_;  // [threads][layers * width]
};

/// Bytes of the table in `source`; 0 where the model has none or nothing is stored.
std::int64_t per_layer_bytes(TensorSource& source, const Config& config);

}  // namespace segue::model
