// SPDX-License-Identifier: Apache-2.0
// The demonstration target (models/segue-pair) against what transformers computed with its unpacked
// weights in float32: the likeliest tokens of 64 steps after a prompt of 600.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/tolerance.h"
#include "model/golden_model.h"

namespace segue::model {
namespace {

std::vector<double> numbers(const core::Json* json) {
  std::vector<double> out;
  EXPECT_TRUE(json != nullptr && json->is_array());
  if (json == nullptr || !json->is_array()) return out;
  for (const core::Json& value : *json->as_array()) {
    double number = NAN;
    EXPECT_TRUE(value.as_double(number));
    out.push_back(number);
  }
  return out;
}

std::vector<std::int32_t> tokens_of(const core::Json* json) {
  const std::vector<double> values = numbers(json);
  return std::vector<std::int32_t>(values.begin(), values.end());
}

TEST(DemonstrationTarget, HasTheLikeliestTokensOfTheReference) {
  const GoldenPair golden;
  const std::vector<std::int32_t>& tokens = golden.tokens;
  ASSERT_FALSE(tokens.empty());
  const std::size_t prompt = golden.document.find("prompt")->as_array()->size();
  double largest = 0;
  ASSERT_TRUE(golden.document.find("largest_logit")->as_double(largest));

  core::ThreadPool pool(1);
  LoadOptions options;
  options.dequantise = true;
  const auto model =
      LanguageModel::open(std::string(SEGUE_MODELS_DIR) + "/segue-pair/target", pool, options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const PromptRows rows = run_prompt(**model, tokens, {512, 0});
  const auto vocab = static_cast<std::size_t>((*model)->config().vocab);
  const core::Json::Array& steps = *golden.document.find("steps")->as_array();
  double worst = 0;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const float* logits = rows.logits.data() + (prompt - 1 + step) * vocab;
    const std::vector<std::int32_t> ids = tokens_of(steps[step].find("ids"));
    const std::vector<double> expected = numbers(steps[step].find("logits"));
    EXPECT_EQ(std::max_element(logits, logits + vocab) - logits, ids.front()) << step;
    for (std::size_t i = 0; i < ids.size(); ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(logits[ids[i]]) - expected[i]));
  }
  EXPECT_EQ(steps.size(), 64u);
  EXPECT_LT(worst / largest, core::kFloatModel);
  RecordProperty("worst", std::to_string(worst / largest));
}

}  // namespace
}  // namespace segue::model
