// SPDX-License-Identifier: Apache-2.0
#include "model/per_layer_table.h"

#include <utility>

#include "core/dtype.h"

namespace segue::model {

PerLayerTable::PerLayerTable(Weights&& weights, core::ThreadPool& pool)
    : memory_(std::move(weights.per_layer_memory)),
      table_(weights.per_layer_embedding),
      pool_(pool),
      rows_(static_cast<std::size_t>(pool.threads()),
            std::vector<float>(static_cast<std::size_t>(table_.inputs()))) {}

void PerLayerTable::read(std::span<const std::int32_t> tokens, std::uint16_t* out) {
  const auto one = [&](std::int64_t i, int worker) {
    std::vector<float>& row = rows_[static_cast<std::size_t>(worker)];
    table_.dequantize_row(tokens[static_cast<std::size_t>(i)], row.data());
    std::uint16_t* const to = out + i * table_.inputs();
    for (std::size_t element = 0; element < row.size(); ++element)
      to[element] = core::f32_to_bf16(row[element]);
  };
  if (tokens.size() == 1) return one(0, 0);
  pool_.for_each(std::ssize(tokens), one);
}

std::int64_t per_layer_bytes(TensorSource& source, const Config& config) {
  if (config.per_layer_input == 0 || source.total_bytes() == 0) return 0;  // random weights
  const std::int64_t width = std::int64_t{config.layer_count()} * config.per_layer_input;
  const Result<core::TensorView> table = source.find(
      {tensor_name(source.naming(), Part::kPerLayerEmbedding), width, config.per_layer_vocab});
  if (!table.ok()) return 0;
  const std::int64_t bytes = table->bytes;
  source.release(*table);
  return bytes;
}

}  // namespace segue::model
