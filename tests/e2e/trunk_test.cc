// SPDX-License-Identifier: Apache-2.0
// What ladder and cells measure on: the cache at a depth, and forks that all start from it.
#include "lab/trunk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>

#include "tiny_model.h"

namespace segue::e2e {
namespace {

using testing::HasSubstr;

struct Grown {
  std::unique_ptr<engine::Runtime> runtime;
  std::unique_ptr<lab::Trunk> trunk;
};

/// Room for two forks; the context of the tiny model is 2048.
Grown make(lab::TrunkOptions options) {
  Grown made;
  const std::string model = write_tiny({});
  made.runtime =
      engine::Runtime::load({.model = model, .draft_model = model, .threads = 1}).value();
  engine::LoopOptions loop;
  loop.prefill_chunk = 32;
  loop.max_sequences = 2;
  made.trunk = lab::Trunk::create(*made.runtime, loop, std::move(options)).value();
  return made;
}

TEST(Trunk, ForksOfEveryDepthStandThereAndSayTheSame) {
  std::int64_t prefilled = 0;
  const Grown made =
      make({.depth = 100, .room = 20, .prefilled = [&](std::int64_t rows) { prefilled += rows; }});
  std::vector<std::int32_t> prompt;  // of the depth before: the next one's beginning
  for (const std::int64_t depth : {33, 100}) {
    ASSERT_TRUE(made.trunk->grow(depth).ok());
    EXPECT_EQ(prefilled, depth);
    const std::vector<std::int32_t> own = made.trunk->own_tokens().value();
    EXPECT_EQ(own.size(), static_cast<std::size_t>(depth + 20));
    EXPECT_EQ(prompt, std::vector<std::int32_t>(own.begin(), own.begin() + std::ssize(prompt)));
    prompt.assign(own.begin(), own.begin() + depth);
    for (int i = 0; i < 2; ++i) {
      engine::Sequence fork = made.trunk->fork().value();
      EXPECT_EQ(made.trunk->loop().cached(fork), depth);
      EXPECT_EQ(fork.tokens, std::vector<std::int32_t>(own.begin(), own.begin() + depth + 1));
      EXPECT_TRUE(fork.drafters.empty());
      made.trunk->loop().release(fork);
    }
  }
}

TEST(Trunk, HasRoomForAsManyForksAsTheLoopWasAskedForWhileItLives) {
  const Grown made = make({.depth = 40, .room = 8});
  ASSERT_TRUE(made.trunk->grow(40).ok());
  engine::Sequence first = made.trunk->fork().value();
  engine::Sequence second = made.trunk->fork().value();
  EXPECT_NE(first.key, second.key);
  made.trunk->loop().release(first);
  made.trunk->loop().release(second);
  EXPECT_EQ(made.trunk->loop().cache().sequences(), 1);
}

TEST(Trunk, ATextIsRepeatedToTheDepth) {
  const Grown made = make({.depth = 70, .room = 8, .text = "abc def"});
  const std::vector<std::int32_t> text = made.runtime->tokenizer->encode_prompt("abc def", false);
  ASSERT_TRUE(made.trunk->grow(70).ok());
  const engine::Sequence fork = made.trunk->fork().value();
  for (std::size_t i = 0; i < 70; ++i) EXPECT_EQ(fork.tokens[i], text[i % text.size()]) << i;
}

TEST(Trunk, ReadsThePromptForTheDraftersThatItPrepares) {
  for (const bool prepares : {false, true}) {
    const Grown made = make({.depth = 70, .room = 8});
    const std::vector<speculate::Drafter*> drafters =
        made.trunk->loop().drafters(SpecMode::kDraft).value();
    if (prepares) made.trunk->prepare(drafters);
    if (prepares) made.trunk->prepare(drafters);  // as another alternative would
    ASSERT_TRUE(made.trunk->grow(70).ok());
    const engine::Sequence fork = made.trunk->fork().value();
    EXPECT_EQ(drafters.front()->behind(fork.key, fork.tokens), prepares ? 0 : 70);
  }
}

TEST(Trunk, RefusesADepthThatTheModelHasNoPositionsFor) {
  const auto runtime = engine::Runtime::load({.model = write_tiny({}), .threads = 1}).value();
  const auto refused = lab::Trunk::create(*runtime, {}, {.depth = 2000, .room = 49});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUsage);
  EXPECT_THAT(refused.error().message, HasSubstr("2049 positions; the model has 2048"));
  EXPECT_TRUE(lab::Trunk::create(*runtime, {}, {.depth = 2000, .room = 48}).ok());
}

Status filled(const gguf::Writer& writer, const std::string& text) {
  const std::string path = temporary_path("fill.gguf");
  EXPECT_TRUE(writer.write(path).ok());
  const auto runtime = engine::Runtime::load({.model = path, .threads = 1}).value();
  const auto trunk = lab::Trunk::create(*runtime, {}, {.depth = 40, .room = 8, .text = text});
  return trunk.ok() ? Status() : Status(trunk.error());
}

TEST(Trunk, RefusesAVocabularyOfControlTokensOnly) {
  gguf::Writer writer = tiny_writer({});
  std::vector<std::int32_t> types(kTinyVocab, 3);
  writer.set("tokenizer.ggml.token_type", types);
  const Status status = filled(writer, "");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(status.error().message, HasSubstr("all 260 tokens"));
  EXPECT_TRUE(filled(writer, "abc").ok());
  types[kTinyVocab - 1] = 1;
  writer.set("tokenizer.ggml.token_type", types);
  EXPECT_TRUE(filled(writer, "").ok());
}

TEST(Trunk, RefusesATextWithoutATokenOfTheVocabulary) {
  gguf::Writer writer = tiny_writer({});
  writer.set("tokenizer.ggml.model", "gpt2");  // whose tokens are not called "<0x61>"
  writer.set("tokenizer.ggml.pre", "smollm");
  writer.set("tokenizer.ggml.merges", std::vector<std::string>{});
  writer.set("tokenizer.ggml.add_bos_token", false);
  const Status status = filled(writer, "abc");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("has no token"));
  EXPECT_TRUE(filled(writer, "").ok());
}

TEST(Trunk, StopsBetweenTwoStepsWhenItIsCancelled) {
  int asked = 0;
  const Grown made = make({.depth = 100, .room = 8, .cancelled = [&] { return ++asked == 3; }});
  const Status status = made.trunk->grow(100);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(made.trunk->check_cancelled().ok());  // asked again, says no
}

}  // namespace
}  // namespace segue::e2e
