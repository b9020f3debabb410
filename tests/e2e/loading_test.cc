// SPDX-License-Identifier: Apache-2.0
// A model with its tokenizer, as engine and lab load it, and the shapes that explain reads from its
// config.
#include "engine/load_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/file.h"
#include "e2e/program.h"
#include "e2e/tiny_model.h"
#include "lab/model_shapes.h"

namespace segue::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A file whose config is that of a Llama of one layer, so that random weights are made at once.
std::string small_config(int vocab) {
  return write_tiny({.architecture = "llama", .layers = 1, .vocab = vocab}, "config");
}

Result<engine::LoadedModel> load(const std::string& model) {
  static core::ThreadPool pool(1);
  return engine::load_model(model, pool, {});
}

Error refused(const std::string& model) {
  const Result<engine::LoadedModel> loaded = load(model);
  EXPECT_FALSE(loaded.ok()) << model;
  return loaded.ok() ? Error{ErrorCode::kUsage, ""} : loaded.error();
}

TEST(LoadModel, RandomWeightsReadAndWriteEveryByte) {
  const Result<engine::LoadedModel> loaded = load("random:7:" + small_config(300));
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const text::Tokenizer& tokenizer = *loaded->tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(loaded->model->config().vocab, 300);
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  EXPECT_EQ(tokenizer.lost_bytes(bytes, false), 0);
  const std::vector<std::int32_t> ids = tokenizer.encode_prompt(bytes, false);
  EXPECT_EQ(ids.front(), tokenizer.bos());
  EXPECT_GE(ids.size(), 257u);
  for (std::int32_t id = 0; id < 300; ++id) EXPECT_FALSE(tokenizer.piece(id, true).empty()) << id;
}

TEST(LoadModel, RandomWeightsAreAFunctionOfTheSeed) {
  const std::string config = small_config(300);
  const auto completion = [&](const std::string& seed) {
    const Outcome result = run_program("run --random-weights " + config + " --seed " + seed +
                                       " -p abc -n 12 --ignore-eos -q --json -");
    EXPECT_EQ(result.code, 0) << result.output;
    return at(json_of(result.output), "tokens").dump();
  };
  EXPECT_EQ(completion("1"), completion("1"));
  EXPECT_NE(completion("1"), completion("2"));
}

TEST(LoadModel, RefusesRandomWeightsThatCannotBeMade) {
  const std::string config = small_config(200);
  EXPECT_THAT(refused("random:1:" + config).message,
              AllOf(HasSubstr("config-llama"), HasSubstr("vocab_size is 200"), HasSubstr("260")));
  for (const std::string& text :
       std::vector<std::string>{"random:", "random:1", "random:x:" + config, "random:-1:" + config,
                                "random:18446744073709551616:" + config}) {
    const Error error = refused(text);
    EXPECT_EQ(error.code, ErrorCode::kUsage) << text;
    EXPECT_THAT(error.message, AllOf(HasSubstr(text), HasSubstr("random:SEED:PATH"))) << text;
    EXPECT_EQ(engine::read_model_config(text).error().message, error.message);
  }
  EXPECT_THAT(refused("random:1:/nonexistent/config.json").message, HasSubstr("/nonexistent"));
}

TEST(LoadModel, RefusesATokenizerWithMoreTokensThanTheModelHasRows) {
  gguf::Writer writer = tiny_writer({.vocab = 259});
  std::vector<std::string> tokens;
  for (int i = 0; i < 260; ++i) tokens.push_back(fmt::format("t{}", i));
  writer.set("tokenizer.ggml.tokens", tokens);
  writer.set("tokenizer.ggml.scores", std::vector<float>(260, 0.0f));
  writer.set("tokenizer.ggml.token_type", std::vector<std::int32_t>(260, 1));
  const std::string path = temporary_path("more.gguf");
  ASSERT_TRUE(writer.write(path).ok());
  EXPECT_THAT(refused(path).message,
              AllOf(HasSubstr("more.gguf"), HasSubstr("260"), HasSubstr("259")));
}

TEST(LoadModel, TheConfigAloneIsThatOfTheLoadedModel) {
  const std::string model = write_tiny({});
  const Result<model::Config> config = engine::read_model_config(model);
  const Result<engine::LoadedModel> loaded = load(model);
  ASSERT_TRUE(config.ok() && loaded.ok());
  EXPECT_EQ(config->vocab, loaded->model->config().vocab);
  EXPECT_EQ(config->context, loaded->model->config().context);
  EXPECT_EQ(config->layers.size(), loaded->model->config().layers.size());
}

TEST(ModelShapes, AreOneForEachKindOfLayerWithItsWindow) {
  const Result<lab::ModelShapes> found = lab::model_shapes(write_tiny({.window = 48}));
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->context, 2048);
  ASSERT_EQ(found->shapes.size(), 2u);
  int windows = 0;
  int layers = 0;
  for (const lab::NamedShape& shape : found->shapes) {
    EXPECT_EQ(shape.shape.q_heads, 4);
    EXPECT_EQ(shape.shape.kv_heads, 2);
    EXPECT_EQ(shape.shape.head_dim, 64);
    EXPECT_EQ(shape.shape.page_size, 64);
    windows += shape.shape.window;
    layers += std::stoi(shape.name.substr(shape.name.find('(') + 1));
  }
  EXPECT_EQ(windows, 48);  // of the sliding layers; the global ones have none
  EXPECT_EQ(layers, 7);
}

TEST(ModelShapes, ComeFromAConfigWithoutWeightsToo) {
  const Result<lab::ModelShapes> found =
      lab::model_shapes(std::string(SEGUE_MODELS_DIR) + "/segue-pair/target/config.json");
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_GT(found->context, 0);
  EXPECT_FALSE(found->shapes.empty());
  for (const lab::NamedShape& shape : found->shapes) EXPECT_TRUE(validate(shape.shape).ok());
}

TEST(ModelShapes, RefuseWhatHasNoConfigByName) {
  EXPECT_THAT(lab::model_shapes("/nonexistent.gguf").error().message,
              HasSubstr("/nonexistent.gguf"));
  const std::string text = temporary_path("text.json");
  ASSERT_TRUE(core::write_file(text, "[1]").ok());
  EXPECT_THAT(lab::model_shapes(text).error().message, HasSubstr("text.json"));
}

}  // namespace
}  // namespace segue::e2e
