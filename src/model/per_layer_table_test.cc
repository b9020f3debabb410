// SPDX-License-Identifier: Apache-2.0
// The table of per-layer embeddings beside a GPU: the model's rows in bf16, whoever reads them.
#include "model/per_layer_table.h"

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/tolerance.h"
#include "model/golden_model.h"

namespace segue::model {
namespace {

TEST(PerLayerTable, RowsAreThoseOfTheModelInBf16AndItsMemoryIsItsOwn) {
  const std::string folder = golden_folder("e2b");
  const Config config = read_config(folder).value();
  const auto checkpoint = safetensors::Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint.ok());
  const auto source = folder_tensors(*checkpoint);
  core::ThreadPool pool(3);
  Weights weights = load_weights(*source, config, {core::best_isa(), false, {}}, pool, {}).value();
  const std::int64_t width = weights.per_layer_embedding.inputs();
  ASSERT_EQ(width, std::int64_t{config.layer_count()} * config.per_layer_input);
  EXPECT_EQ(weights.per_layer_memory.bytes(), width * config.per_layer_vocab * 2);
  EXPECT_EQ(per_layer_bytes(*source, config), width * config.per_layer_vocab * 2);
  const std::vector<std::int32_t> tokens{7, 159, 0, 7, 16, 15};
  std::vector<std::uint16_t> expected;
  std::vector<float> row(static_cast<std::size_t>(width));
  for (const std::int32_t token : tokens) {
    weights.per_layer_embedding.dequantize_row(token, row.data());
    for (const float value : row) expected.push_back(core::f32_to_bf16(value));
  }
  PerLayerTable table(std::move(weights), pool);
  weights = {};
  std::vector<std::uint16_t> found(expected.size(), 0xffff);
  table.read(tokens, found.data());
  core::Verdict verdict = core::exact(found, expected);
  EXPECT_TRUE(verdict.ok) << verdict.message;
  std::vector<std::uint16_t> one(row.size());
  table.read(std::span(tokens).subspan(1, 1), one.data());
  verdict = core::exact(one, std::span(expected).subspan(row.size(), row.size()));
  EXPECT_TRUE(verdict.ok) << verdict.message;
  EXPECT_EQ(per_layer_bytes(*random_tensors(0), config), 0);
}

}  // namespace
}  // namespace segue::model
