// SPDX-License-Identifier: Apache-2.0
// Both real vocabularies against the ids that llama.cpp gives (tests/golden/tokenizer,
// tools/goldens).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>

#include <fmt/format.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/json.h"
#include "format/gguf/gguf.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace segue::text {
namespace {

std::string model_path(const std::string& name) {
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "" : home) + "/.cache/segue/models/" + name;
}

core::Json golden(const std::string& name) {
  Result<std::string> text = core::read_file(std::string(SEGUE_GOLDEN_DIR) + "/tokenizer/" + name);
  EXPECT_TRUE(text.ok());
  Result<core::Json> json = core::Json::parse(text.ok() ? *text : "null");
  EXPECT_TRUE(json.ok());
  return json.ok() ? *json : core::Json();
}

std::vector<std::int32_t> ids_of(const core::Json& json) {
  std::vector<std::int32_t> ids;
  for (const core::Json& id : *json.as_array())
    ids.push_back(static_cast<std::int32_t>(*id.as_int()));
  return ids;
}

/// Empty when equal; otherwise the first difference with what surrounds it.
std::string first_difference(const Tokenizer& tokenizer, const std::vector<std::int32_t>& got,
                             const std::vector<std::int32_t>& want) {
  const auto at = static_cast<std::size_t>(
      std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first - got.begin());
  if (at == got.size() && at == want.size()) return {};
  std::string text =
      fmt::format("{} ids, expected {}; first difference at {}:", got.size(), want.size(), at);
  for (const auto* ids : {&got, &want}) {
    text += ids == &got ? " got" : " expected";
    for (std::size_t i = at < 2 ? 0 : at - 2; i < std::min(at + 4, ids->size()); ++i) {
      text += fmt::format(" {}'{}'", (*ids)[i], tokenizer.piece((*ids)[i], true));
    }
  }
  return text;
}

class RealVocabulary : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ = golden(std::string(GetParam()) + ".json");
    ASSERT_NE(golden_.find("model"), nullptr);
    const std::string path = model_path(*golden_.find("model")->as_string());
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
    Result<gguf::File> file = gguf::File::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    const double start_us = core::now_us();
    Result<Vocabulary> vocabulary = vocabulary_from_gguf(*file);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.error().message;
    if (const core::Json* pre = golden_.find("pre"); !pre->is_null())
      vocabulary->pre = *pre->as_string();
    Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::create(std::move(vocabulary).value());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    create_us_ = core::now_us() - start_us;
    tokenizer_ = std::move(tokenizer).value();
  }

  core::Json golden_;
  double create_us_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(RealVocabulary, GivesTheIdsOfLlamaCppForEveryCase) {
  const core::Json texts = golden("cases.json");
  ASSERT_EQ(tokenizer_->vocab_size(), *golden_.find("vocab_size")->as_int());
  EXPECT_EQ(tokenizer_->encode_prompt("Hello", false), ids_of(*golden_.find("with_bos")));
  const core::Json::Array& cases = *golden_.find("cases")->as_array();
  ASSERT_EQ(texts.as_array()->size(), cases.size());
  std::size_t ids = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string& text = *(*texts.as_array())[i].find("text")->as_string();
    const std::vector<std::int32_t> plain = ids_of(*cases[i].find("plain"));
    const core::Json* with_special = cases[i].find("special");
    const std::vector<std::int32_t> special =
        with_special == nullptr ? plain : ids_of(*with_special);
    EXPECT_EQ(first_difference(*tokenizer_, tokenizer_->encode(text, false), plain), "")
        << *cases[i].find("name")->as_string();
    EXPECT_EQ(first_difference(*tokenizer_, tokenizer_->encode(text, true), special), "")
        << *cases[i].find("name")->as_string();
    ids += plain.size() + special.size();
  }
  std::cout << GetParam() << ": " << ids << " ids compared with "
            << *golden_.find("recorded_with")->as_string() << "\n";
}

TEST_P(RealVocabulary, DecodesWhatItEncoded) {
  const core::Json texts = golden("cases.json");
  for (const core::Json& item : *texts.as_array()) {
    std::string text = *item.find("text")->as_string();
    const std::int64_t bytes = std::ssize(text);
    const std::int64_t lost = tokenizer_->lost_bytes(text, false);
    if (tokenizer_->missing_bytes() > 0) {
      // Bytes that no token has are dropped: compare without them.
      std::erase_if(
          text, [&](char byte) { return tokenizer_->encode(std::string(1, byte), false).empty(); });
    }
    EXPECT_EQ(lost, bytes - std::ssize(text)) << *item.find("name")->as_string();
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, false)), text)
        << *item.find("name")->as_string();
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, true), true), text)
        << *item.find("name")->as_string();
  }
}

TEST_P(RealVocabulary, EncodesAMillionBytesOfAnyShapeInAFewSeconds) {
  std::mt19937 random(5);
  constexpr std::size_t kBytes = 1'000'000;
  std::string letters(kBytes, 'a');
  std::string noise(kBytes, 'a');
  std::string alternating(kBytes, ' ');
  for (char& c : letters) c = static_cast<char>('a' + random() % 26);
  for (char& c : noise) c = static_cast<char>(random() % 256);
  for (std::size_t i = 0; i < kBytes; i += 2) alternating[i] = '\n';
  const std::vector<std::pair<std::string, std::string>> shapes{
      {"random letters", letters},
      {"one letter", std::string(kBytes, 'a')},
      {"spaces", std::string(kBytes, ' ')},
      {"newlines", std::string(kBytes, '\n')},
      {"random bytes", noise},
      {"newlines and spaces", alternating},
      {"digits", std::string(kBytes, '7')},
      {"angle brackets", std::string(kBytes, '<')}};
  for (const auto& [name, text] : shapes) {
    const double start_us = core::now_us();
    const std::vector<std::int32_t> ids = tokenizer_->encode(text, true);
    const double us = core::now_us() - start_us;
    std::cout << fmt::format("{}: {}: {} ids in {:.0f} ms\n", GetParam(), name, ids.size(),
                             us / 1000);
    EXPECT_LT(us, 20e6) << name;
  }
}

TEST_P(RealVocabulary, IsReadyInAMomentAndEncodesTheTextInMilliseconds) {
  const core::Json texts = golden("cases.json");
  const std::string& text = *(*texts.as_array())[0].find("text")->as_string();
  double best_us = 1e30;
  for (int i = 0; i < 5; ++i) {
    const double start_us = core::now_us();
    const std::vector<std::int32_t> ids = tokenizer_->encode(text, true);
    best_us = std::min(best_us, core::now_us() - start_us);
    ASSERT_FALSE(ids.empty());
  }
  std::cout << fmt::format("{}: created in {:.1f} ms, {} bytes encoded in {:.2f} ms\n", GetParam(),
                           create_us_ / 1000, text.size(), best_us / 1000);
  EXPECT_LT(create_us_, 3e6);
  EXPECT_LT(best_us, 1e6);
}

std::string short_name(const testing::TestParamInfo<const char*>& info) {
  const std::string name = info.param;
  if (name.starts_with("gemma")) return "Gemma3";
  return name.ends_with("llama-bpe") ? "SmolLm2WithThePreTokenizerOfLlama3" : "SmolLm2";
}

INSTANTIATE_TEST_SUITE_P(Models, RealVocabulary,
                         testing::Values("gemma-3-270m-q4_k_m", "SmolLM2-135M-Instruct.Q4_1",
                                         "SmolLM2-135M-Instruct.Q4_1.llama-bpe"),
                         short_name);

}  // namespace
}  // namespace segue::text
