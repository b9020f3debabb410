// SPDX-License-Identifier: Apache-2.0
// Folders that do not fit their config: refused with the name and both numbers. Each case spoils
// one tensor of a golden folder.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "format/safetensors/writer.h"
#include "model/golden_model.h"

namespace segue::model {
namespace {

using testing::HasSubstr;

/// Loads `variant` after `spoil` has looked at every tensor: false leaves it out.
Result<std::unique_ptr<LanguageModel>> load_spoiled(
    const std::string& variant, const std::function<bool(safetensors::Tensor&)>& spoil,
    const std::function<void(safetensors::Writer&)>& extra = {}) {
  const Result<Config> config = read_config(golden_folder(variant));
  const Result<safetensors::Checkpoint> whole =
      safetensors::Checkpoint::open(golden_folder(variant));
  EXPECT_TRUE(config.ok() && whole.ok());
  safetensors::Writer writer;
  for (safetensors::Tensor tensor : whole->tensors()) {
    if (spoil(tensor)) writer.tensor(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
  }
  if (extra) extra(writer);
  const std::vector<std::byte> bytes = writer.bytes();
  const Result<safetensors::Checkpoint> spoiled =
      safetensors::Checkpoint::parse(bytes, "spoiled.safetensors");
  EXPECT_TRUE(spoiled.ok()) << spoiled.error().message;
  core::ThreadPool pool(1);
  return LanguageModel::load(*config, *folder_tensors(*spoiled), pool, {});
}

void expect_refused(const Result<std::unique_ptr<LanguageModel>>& model,
                    std::initializer_list<const char*> parts) {
  ASSERT_FALSE(model.ok());
  for (const char* part : parts) EXPECT_THAT(model.error().message, HasSubstr(part));
}

bool is(const safetensors::Tensor& tensor, const char* end) { return tensor.name.ends_with(end); }

TEST(Loader, TakesTheWholeFolder) {
  const auto model = load_spoiled("dense", [](safetensors::Tensor&) { return true; });
  EXPECT_TRUE(model.ok()) << model.error().message;
}

TEST(Loader, NamesATensorThatIsMissing) {
  const auto without = [](const char* name) {
    return [name](safetensors::Tensor& tensor) { return !is(tensor, name); };
  };
  for (const char* name : {"layers.2.self_attn.k_norm.weight", "layers.0.mlp.up_proj.weight",
                           "layers.4.layer_scalar", "language_model.norm.weight"}) {
    expect_refused(load_spoiled("dense", without(name)), {name, "missing", "spoiled"});
  }
  expect_refused(load_spoiled("moe", without("layers.1.router.per_expert_scale")),
                 {"per_expert_scale", "missing"});
  expect_refused(load_spoiled("e2b", without("embed_tokens_per_layer.weight")),
                 {"embed_tokens_per_layer", "missing"});
  expect_refused(load_spoiled("dense-w4a16", without("layers.0.mlp.up_proj.weight_scale")),
                 {"up_proj.weight_scale"});
}

TEST(Loader, SaysBothShapesWhenTheyDiffer) {
  // q_proj of a sliding layer is [4 * 64, 32]; the same bytes as [128, 64].
  expect_refused(load_spoiled("dense",
                              [](safetensors::Tensor& tensor) {
                                if (is(tensor, "layers.0.self_attn.q_proj.weight"))
                                  tensor.shape = {128, 64};
                                return true;
                              }),
                 {"layers.0.self_attn.q_proj.weight", "[64, 128]", "[32, 256]"});
  expect_refused(load_spoiled("moe",
                              [](safetensors::Tensor& tensor) {
                                if (is(tensor, "layers.0.experts.down_proj"))
                                  tensor.shape = {12, 16, 32};
                                return true;
                              }),
                 {"layers.0.experts.down_proj", "[32, 16, 12]", "[32, 32, 6]"});
}

TEST(Loader, RefusesElementTypesThatNoWeightHas) {
  const auto retype = [](const char* name) {
    return [name](safetensors::Tensor& tensor) {
      if (is(tensor, name)) tensor.dtype = safetensors::Dtype::kI16;
      return true;
    };
  };
  expect_refused(load_spoiled("dense", retype("layers.0.self_attn.q_proj.weight")),
                 {"q_proj.weight", "I16"});
  expect_refused(load_spoiled("dense", retype("layers.0.input_layernorm.weight")),
                 {"input_layernorm.weight", "I16"});
}

TEST(Loader, RefusesWhatItWouldIgnore) {
  const std::vector<float> one(1, 0.5f);
  const auto add = [&](const char* name) {
    return load_spoiled(
        "dense", [](safetensors::Tensor&) { return true; },
        [&](safetensors::Writer& writer) { writer.tensor(name, {1}, one); });
  };
  expect_refused(add("model.language_model.layers.0.self_attn.q_proj.bias"),
                 {"layers.0.self_attn.q_proj.bias", "ignoring it would change the output"});
  // A dense global layer takes V from K: a projection of its own would change the output.
  expect_refused(add("model.language_model.layers.2.self_attn.v_proj.weight"),
                 {"layers.2", "v_proj"});
  // Parts that text never meets.
  EXPECT_TRUE(add("model.vision_tower.encoder.layers.0.norm.weight").ok());
}

TEST(Loader, KeysOfLayersThatShareThemAreNotNeeded) {
  const std::vector<float> one(1, 0.5f);
  const auto model = load_spoiled(
      "e2b", [](safetensors::Tensor&) { return true; },
      [&](safetensors::Writer& writer) {
        for (const char* part : {"k_proj", "v_proj", "k_norm"})
          writer.tensor(fmt::format("model.language_model.layers.4.self_attn.{}.weight", part), {1},
                        one);
      });
  EXPECT_TRUE(model.ok()) << model.error().message;
}

TEST(Loader, RandomWeightsAreAFunctionOfTheSeed) {
  core::ThreadPool pool(1);
  const Golden golden("e2b");
  const Result<Config> config = read_config(golden_folder("e2b"));
  ASSERT_TRUE(config.ok());
  Config wide = *config;
  wide.per_layer_input = 32;  // whole blocks of Q4_0
  std::vector<std::vector<float>> logits;
  for (const std::uint64_t seed : {7, 7, 8}) {
    const auto model = LanguageModel::load(wide, *random_tensors(seed), pool, {});
    ASSERT_TRUE(model.ok()) << model.error().message;
    logits.push_back(run_prompt(**model, golden.tokens, {512, 0}).logits);
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_NE(logits[0], logits[2]);
  for (float value : logits[0]) ASSERT_LT(value * value, 900.0f);  // the softcap's limit, no NaN
}

}  // namespace
}  // namespace segue::model
