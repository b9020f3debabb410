// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <thread>

#include "text/test_vocabulary.h"

namespace segue::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Tokenizer> make(Vocabulary vocabulary) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::create(std::move(vocabulary));
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

std::string refusal(Vocabulary vocabulary) {
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::create(std::move(vocabulary));
  return tokenizer.ok() ? "accepted" : tokenizer.error().message;
}

/// The pieces of `text`, control tokens included.
std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text,
                                bool parse_special = false) {
  std::vector<std::string> out;
  for (std::int32_t id : tokenizer.encode(text, parse_special))
    out.emplace_back(tokenizer.piece(id, true));
  return out;
}

/// Random bytes, letters of the tiny vocabularies, spelled tokens and pieces of valid UTF-8.
std::string random_text(std::mt19937& random) {
  constexpr std::array<std::string_view, 22> kParts{
      "hello",        " hello",       "abc",      " a",       "\n",         "\n\n\n\n",
      "   ",          "<bos>",        "<eos",     "</b>",     "<|im_end|>", "<tool>",
      "\u00e9\u00e9", "\u65e5\u672c", "\xe2\x96", "\xf0\x9f", "123456",     "'s",
      "'LL",          "\r\n",         "\u3000",   "</s>"};
  std::string text;
  const std::size_t parts = random() % 30;
  for (std::size_t i = 0; i < parts; ++i) {
    if (random() % 3 == 0) {
      text += static_cast<char>(random() % 256);
    } else {
      text += kParts[random() % kParts.size()];
    }
  }
  return text;
}

TEST(Tokenizer, MergesTheHighestScoreFirstAndTiesLeftmost) {
  const auto spm = make(tiny_spm());
  EXPECT_THAT(pieces(*spm, "abc"), ElementsAre("abc"));
  EXPECT_THAT(pieces(*spm, "abbc"), ElementsAre("ab", "bc"));
  EXPECT_THAT(pieces(*spm, " hello hello"), ElementsAre(" hello", " hello"));
  // "ab" outranks the space before it, so " abc" is reached; " a" is taken where no "b" follows.
  EXPECT_THAT(pieces(*spm, " abc a"), ElementsAre(" abc", " a"));
  EXPECT_THAT(pieces(*spm, "\u00e9\u00e9\u00e9"), ElementsAre("\u00e9\u00e9", "\u00e9"));
}

TEST(Tokenizer, MergesPairsInTheOrderOfTheirRanks) {
  const auto bpe = make(tiny_bpe("smollm"));
  EXPECT_THAT(pieces(*bpe, "hello hello"), ElementsAre("hello", " hello"));
  EXPECT_THAT(pieces(*bpe, "abbc"), ElementsAre("ab", "bc"));
  EXPECT_THAT(pieces(*bpe, "\u00e9"), ElementsAre("\u00e9"));
  EXPECT_THAT(pieces(*bpe, "zzz"), ElementsAre("z", "z", "z"));
}

TEST(Tokenizer, MergesCharactersByRankAndSpellsUnknownOnesInBytes) {
  const auto gemma = make(tiny_gemma4());
  EXPECT_THAT(pieces(*gemma, "hello hello"), ElementsAre("hello", " hello"));
  EXPECT_THAT(pieces(*gemma, "abbc"), ElementsAre("ab", "bc"));
  // "c " comes after every other merge, but before nothing.
  EXPECT_THAT(pieces(*gemma, "abc hello"), ElementsAre("abc", " hello"));
  EXPECT_THAT(pieces(*gemma, "bc a"), ElementsAre("bc", " ", "a"));
  EXPECT_THAT(pieces(*gemma, "     a"), ElementsAre("    ", " ", "a"));
  EXPECT_THAT(pieces(*gemma, "\u00e9\u00e9\u00e9\u00fc"),
              ElementsAre("\u00e9\u00e9", "\u00e9", "\xc3", "\xbc"));
  EXPECT_THAT(pieces(*gemma, "\xe2 a"), ElementsAre("\xe2", " ", "a"));
  EXPECT_EQ(gemma->missing_bytes(), 0);
  EXPECT_TRUE(gemma->is_stop(*gemma->find("<turn|>")));
}

TEST(Tokenizer, TakesRunsOfNewlinesWholeWhereThePreTokenizerSays) {
  const auto gemma = make(tiny_gemma4());
  EXPECT_THAT(pieces(*gemma, "a\n\nb\n"), ElementsAre("a", "\n\n", "b", "\n"));
  EXPECT_THAT(pieces(*gemma, "\n\n\n\n"), ElementsAre("\n", "\n", "\n", "\n"))
      << "a run that is no token is merged, and no merge leads to the others";
  Vocabulary uncut = tiny_gemma4();
  uncut.pre.clear();
  const auto plain = make(std::move(uncut));
  EXPECT_THAT(pieces(*plain, "a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  Vocabulary unknown = tiny_gemma4();
  unknown.pre = "gemma5";
  EXPECT_THAT(refusal(std::move(unknown)), HasSubstr("\"gemma5\" of a gemma4 vocabulary"));
}

TEST(Tokenizer, CutsWordsAsThePreTokenizerSays) {
  const auto smollm = make(tiny_bpe("smollm"));
  EXPECT_THAT(pieces(*smollm, "123"), ElementsAre("1", "2", "3"));
  EXPECT_THAT(pieces(*smollm, "hello  hello"), ElementsAre("hello", " ", " hello"));
  EXPECT_THAT(pieces(*smollm, "x's"), ElementsAre("x", "'s"));
  const auto llama = make(tiny_bpe("llama-bpe"));
  EXPECT_THAT(pieces(*llama, "1231234"), ElementsAre("123", "123", "4"));
  EXPECT_THAT(pieces(*llama, "zzz zzz"),
              ElementsAre("zzz", " ", "z", "z", "z"));  // whole words are taken as they are
}

TEST(Tokenizer, SpellsUnknownCharactersInBytes) {
  const auto spm = make(tiny_spm());
  EXPECT_THAT(pieces(*spm, "a\u00fcb"), ElementsAre("a", "\xc3", "\xbc", "b"));
  EXPECT_THAT(pieces(*spm, "\xe2 a"), ElementsAre("\xe2", " a"));
}

TEST(Tokenizer, FallsBackToUnknownWithoutByteTokens) {
  VocabularyBuilder builder;
  builder.vocabulary.model = "llama";
  builder.vocabulary.unk = builder.add("<unk>", TokenType::kUnknown);
  builder.add("a", TokenType::kNormal);
  const auto spm = make(std::move(builder.vocabulary));
  EXPECT_THAT(spm->encode("a\u00fca", false), ElementsAre(1, 0, 1));
  EXPECT_EQ(spm->missing_bytes(), 256);
  EXPECT_EQ(spm->lost_bytes("a\u00fca", false), 2);
}

TEST(Tokenizer, CutsControlTokensOnlyWhereTheyAreParsed) {
  const auto spm = make(tiny_spm());
  EXPECT_THAT(pieces(*spm, "a<eos>b", true), ElementsAre("a", "<eos>", "b"));
  for (std::int32_t id : spm->encode("a<eos>b", false)) EXPECT_FALSE(spm->is_control(id));
  EXPECT_THAT(pieces(*spm, "a<b>b"), ElementsAre("a", "<b>", "b"));
  EXPECT_EQ(spm->decode(spm->encode("a<eos>b", false)), "a<eos>b");
  EXPECT_EQ(spm->decode(spm->encode("a<eos>b", true)), "ab");
  EXPECT_EQ(spm->decode(spm->encode("a<eos>b", true), true), "a<eos>b");
}

TEST(Tokenizer, PrefersLongerSpecialTokens) {
  const auto spm = make(tiny_spm());
  EXPECT_THAT(pieces(*spm, "\n\n\n\n\n"), ElementsAre("\n\n\n", "\n\n"));
  EXPECT_THAT(pieces(*spm, "    a"), ElementsAre("   ", " a"));
  EXPECT_THAT(pieces(*spm, std::string(7, '\n')), ElementsAre("\n\n\n", "\n\n\n", "\n"));
}

TEST(Tokenizer, LetsTheLongestSpecialTokenWinEvenWhenAShorterOneBeginsEarlier) {
  Vocabulary vocabulary = tiny_spm();
  for (std::string_view text : {"xy", "yzzz", "zz"}) {
    vocabulary.tokens.add(text);
    vocabulary.types.push_back(static_cast<std::int32_t>(TokenType::kUserDefined));
    vocabulary.scores.push_back(0);
  }
  const auto spm = make(std::move(vocabulary));
  EXPECT_THAT(pieces(*spm, "xyzzzzz"), ElementsAre("x", "yzzz", "zz"));
  EXPECT_THAT(pieces(*spm, "xyzz"), ElementsAre("xy", "zz"));
}

TEST(Tokenizer, LetsTheLeftmostSpecialTokenWinWhereTheFileIsFromHuggingFace) {
  Vocabulary vocabulary = tiny_gemma4();
  for (std::string_view text : {"xy", "yzzz", "zz", "zzz", "</s>"}) {
    vocabulary.tokens.add(text);
    vocabulary.types.push_back(static_cast<std::int32_t>(TokenType::kUserDefined));
  }
  vocabulary.leftmost_special = true;
  const auto gemma = make(std::move(vocabulary));
  EXPECT_THAT(pieces(*gemma, "xyzzzzz"), ElementsAre("xy", "zzz", "zz"));
  EXPECT_THAT(pieces(*gemma, "yzzzz</s>"), ElementsAre("yzzz", "z", "</s>"));
}

TEST(Tokenizer, KeepsControlTokensOutOfPlainRanges) {
  const auto spm = make(tiny_spm());
  const std::string text = "<eos>a<eos>b<eos>";
  const std::vector<TextRange> plain{{6, 11}};  // the one in the middle
  const std::vector<std::int32_t> ids = spm->encode(text, plain);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), spm->eos()), 2);
  EXPECT_EQ(spm->decode(ids, true), text);
  const std::vector<TextRange> touching{{4, 5}};  // one byte of the first
  const std::vector<std::int32_t> fewer = spm->encode(text, touching);
  EXPECT_NE(fewer.front(), spm->eos());
  EXPECT_EQ(std::count(fewer.begin(), fewer.end(), spm->eos()), 2);
}

TEST(Tokenizer, PutsBosAndEosWhereTheFileSays) {
  Vocabulary vocabulary = tiny_spm();
  vocabulary.add_eos = true;
  const auto spm = make(std::move(vocabulary));
  EXPECT_THAT(spm->encode_prompt("", false), ElementsAre(spm->bos(), spm->eos()));
  EXPECT_EQ(spm->encode("", false).size(), 0u);
  const auto bpe = make(tiny_bpe("smollm"));
  EXPECT_EQ(bpe->encode_prompt("", false).size(), 0u);
}

TEST(Tokenizer, AddsASpaceBeforeTextAndAfterSpecialTokensWhenAsked) {
  Vocabulary vocabulary = tiny_spm();
  vocabulary.add_space_prefix = true;
  const auto spm = make(std::move(vocabulary));
  EXPECT_THAT(pieces(*spm, "a<eos>abc", true), ElementsAre(" a", "<eos>", " abc"));
}

TEST(Tokenizer, DecodesWhateverItEncoded) {
  std::mt19937 random(1);
  for (const auto& tokenizer : {make(tiny_spm()), make(tiny_bpe("smollm")),
                                make(tiny_bpe("llama-bpe")), make(tiny_gemma4())}) {
    for (int i = 0; i < 20000; ++i) {
      const std::string text = random_text(random);
      if (text.find("\u2581") != std::string::npos) continue;
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text, false)), text);
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text, true), true), text);
    }
  }
}

TEST(Tokenizer, ReadsTheSpaceMarkAsASpace) {
  const auto spm = make(tiny_spm());
  EXPECT_EQ(spm->decode(spm->encode("a\u2581a", false)), "a a");
}

TEST(Tokenizer, GivesTheSameIdsInEveryThread) {
  const auto bpe = make(tiny_bpe("llama-bpe"));
  const std::string text = "hello hello's 12345 \u00e9\u65e5\u672c\n\n";
  const std::vector<std::int32_t> expected = bpe->encode(text, true);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) wrong[t] += bpe->encode(text, true) != expected ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(Tokenizer, StopsAtEveryKnownEndOfTurn) {
  const auto spm = make(tiny_spm());
  EXPECT_TRUE(spm->is_stop(spm->eos()));
  EXPECT_TRUE(spm->is_stop(*spm->find("<end_of_turn>")));
  EXPECT_FALSE(spm->is_stop(spm->bos()));
  EXPECT_FALSE(spm->is_stop(*spm->find("</s>")));  // a tag of HTML in this vocabulary
  EXPECT_FALSE(spm->is_stop(-1));
  Vocabulary further = tiny_gemma4();
  further.stops = {4, 4, 1};
  EXPECT_THAT(make(std::move(further))->stop_ids(), ElementsAre(1, 4, 5));
  further = tiny_gemma4();
  further.stops = {100'000};
  EXPECT_THAT(refusal(std::move(further)), HasSubstr("generation ends with token 100000"));
  Vocabulary mislabelled = tiny_bpe("smollm");
  mislabelled.types[2] = static_cast<std::int32_t>(TokenType::kNormal);
  const auto bpe = make(std::move(mislabelled));
  EXPECT_TRUE(bpe->is_stop(2));
  EXPECT_TRUE(bpe->is_control(2));
}

TEST(Tokenizer, HasNoPieceForIdsOutsideTheVocabulary) {
  const auto spm = make(tiny_spm());
  EXPECT_EQ(spm->piece(-1), "");
  EXPECT_EQ(spm->piece(spm->vocab_size(), true), "");
  EXPECT_EQ(spm->piece(std::numeric_limits<std::int32_t>::max()), "");
  EXPECT_EQ(spm->find("no such token"), std::nullopt);
  EXPECT_EQ(spm->find(""), std::nullopt);
}

TEST(Tokenizer, RefusesBadVocabulariesAndSaysWhy) {
  Vocabulary vocabulary;
  vocabulary.model = "unigram";
  EXPECT_THAT(refusal(std::move(vocabulary)),
              HasSubstr("\"unigram\" (known: llama, gpt2, gemma4)"));
  EXPECT_THAT(refusal(tiny_bpe("qwen2")), HasSubstr("\"qwen2\" (known: smollm, gpt-2, llama-bpe"));
  EXPECT_THAT(refusal(tiny_bpe("default")), HasSubstr("known: smollm"));
  vocabulary = {};
  vocabulary.model = "llama";
  EXPECT_THAT(refusal(std::move(vocabulary)), HasSubstr("no tokens"));

  const auto broken = [](auto&& change) {
    Vocabulary spm = tiny_spm();
    change(spm);
    return refusal(std::move(spm));
  };
  EXPECT_THAT(broken([](Vocabulary& v) { v.scores.pop_back(); }), HasSubstr("scores"));
  EXPECT_THAT(
      broken([](Vocabulary& v) { v.scores[285] = std::numeric_limits<float>::quiet_NaN(); }),
      HasSubstr("token 285"));
  EXPECT_THAT(broken([](Vocabulary& v) { v.types.pop_back(); }), HasSubstr("types"));
  EXPECT_THAT(broken([](Vocabulary& v) { v.types[7] = 9; }), HasSubstr("token 7 has type 9"));
  EXPECT_THAT(broken([](Vocabulary& v) { v.bos = 1 << 20; }), HasSubstr("bos token is 1048576"));
  EXPECT_THAT(broken([](Vocabulary& v) { v.eos = -7; }), HasSubstr("eos token is -7"));
  EXPECT_THAT(broken([](Vocabulary& v) { v.bos = -1; }), HasSubstr("no bos"));
  EXPECT_THAT(broken([](Vocabulary& v) { v.types[280] = 6; }), HasSubstr("byte token 280"));
  EXPECT_THAT(broken([](Vocabulary& v) { v.unk = -1, v.types[100] = 1; }),
              HasSubstr("1 of the 256 bytes"));

  Vocabulary bpe = tiny_bpe("smollm");
  bpe.merges.add("nospace");
  EXPECT_THAT(refusal(std::move(bpe)), HasSubstr("merge 15"));
  bpe = tiny_bpe("smollm");
  bpe.merges.add("q q");
  EXPECT_THAT(refusal(std::move(bpe)), HasSubstr("lacks"));
}

TEST(Tokenizer, IsNotSlowOnLongWords) {
  const auto spm = make(tiny_spm());
  const auto bpe = make(tiny_bpe("llama-bpe"));
  for (const std::string& text : {std::string(1 << 20, 'a'), std::string(1 << 20, ' '),
                                  std::string(1 << 20, '\n'), std::string(1 << 20, '<')}) {
    EXPECT_EQ(spm->decode(spm->encode(text, true)), text);
    EXPECT_EQ(bpe->decode(bpe->encode(text, true)), text);
  }
}

TEST(StreamDecoder, NeverEndsInsideACharacter) {
  const auto spm = make(tiny_spm());
  StreamDecoder stream(*spm);
  std::vector<std::string> parts;
  for (std::int32_t id : spm->encode("a\u20acb", false)) parts.push_back(stream.push(id));
  EXPECT_THAT(parts, ElementsAre("a", "", "", "\u20ac", "b"));
  EXPECT_EQ(stream.flush(), "");
}

TEST(StreamDecoder, PassesBytesThatAreNotUtf8AndFlushesTheRest) {
  const auto spm = make(tiny_spm());
  StreamDecoder stream(*spm);
  std::string joined;
  for (std::int32_t id : spm->encode("\xff\xe2\x82"
                                     "a\xf0\x9f",
                                     false))
    joined += stream.push(id);
  EXPECT_EQ(joined,
            "\xff\xe2\x82"
            "a");
  EXPECT_EQ(stream.flush(), "\xf0\x9f");
  EXPECT_EQ(stream.flush(), "");
}

TEST(StreamDecoder, JoinsToWhatDecodeGives) {
  std::mt19937 random(2);
  const auto spm = make(tiny_spm());
  for (int i = 0; i < 2000; ++i) {
    const std::vector<std::int32_t> ids = spm->encode(random_text(random), true);
    StreamDecoder stream(*spm);
    std::string joined;
    for (std::int32_t id : ids) joined += stream.push(id);
    ASSERT_EQ(joined + stream.flush(), spm->decode(ids));
  }
}

}  // namespace
}  // namespace segue::text
