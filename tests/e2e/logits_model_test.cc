// SPDX-License-Identifier: Apache-2.0
// Logits of real models against llama.cpp's, recorded on the same files (tests/golden/logits), and
// against the same weights in f32.
#include <gtest/gtest.h>

#include "core/file.h"
#include "core/tolerance.h"
#include "e2e/tiny_model.h"
#include "lab/evaluate.h"

namespace segue::e2e {
namespace {

double figure(const core::Json& json, std::string_view part, std::string_view name) {
  double value = -1;
  const core::Json* found = json.find(part);
  if (found == nullptr || found->find(name) == nullptr) return value;
  static_cast<void>(found->find(name)->as_double(value));
  return value;
}

struct Golden {
  const char* model;
  const char* reference;
  bool against_float;
};

class Logits : public testing::TestWithParam<Golden> {};

TEST_P(Logits, AgreeWithLlamaCppAndWithTheFloatReference) {
  const std::string path = real_model(GetParam().model);
  if (path.empty()) GTEST_SKIP() << GetParam().model << " is not in ~/.cache/segue/models";
  const Result<std::string> text =
      core::read_file(std::string(SEGUE_GOLDEN_DIR) + "/logits/" + GetParam().reference);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const Result<core::Json> recorded = core::Json::parse(*text);
  ASSERT_TRUE(recorded.ok());
  lab::EvaluateOptions options;
  options.recorded = &*recorded;
  options.against_float = GetParam().against_float;
  const Result<lab::Evaluation> evaluated = lab::evaluate(path, options);
  ASSERT_TRUE(evaluated.ok()) << evaluated.error().message;
  const core::Json* const result = &evaluated->figures;
  EXPECT_EQ(*result->find("positions")->as_int(), 512);
  EXPECT_LT(figure(*result, "recorded", "mean_kl"), core::kLogitsMeanKl);
  EXPECT_GE(figure(*result, "recorded", "top1_agreement"), core::kLogitsTop1);
  if (GetParam().against_float) {
    EXPECT_LT(figure(*result, "float_reference", "mean_kl"), core::kLogitsMeanKl);
    EXPECT_GE(figure(*result, "float_reference", "top1_agreement"), core::kLogitsTop1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, Logits,
    testing::Values(Golden{"gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m.prose.json", true},
                    Golden{"gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m.licence.json", false},
                    Golden{"SmolLM2-135M-Instruct.Q4_1.gguf",
                           "SmolLM2-135M-Instruct.Q4_1.prose.json", true}),
    [](const auto& param) { return "Golden" + std::to_string(param.index); });

}  // namespace
}  // namespace segue::e2e
