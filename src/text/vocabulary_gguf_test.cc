// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/gguf/gguf.h"
#include "format/gguf/writer.h"
#include "text/test_vocabulary.h"
#include "text/tokenizer.h"

namespace segue::text {
namespace {

using testing::HasSubstr;

/// The file of `vocabulary`, with what `change` does to it.
template <class Change>
Result<Vocabulary> through_a_file(const Vocabulary& vocabulary, Change change) {
  gguf::Writer writer;
  std::vector<std::string> tokens;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
    tokens.emplace_back(vocabulary.tokens[id]);
  std::vector<std::string> merges;
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank)
    merges.emplace_back(vocabulary.merges[rank]);
  writer.set("tokenizer.ggml.model", vocabulary.model);
  writer.set("tokenizer.ggml.tokens", tokens);
  writer.set("tokenizer.ggml.token_type", vocabulary.types);
  if (vocabulary.model == "llama") writer.set("tokenizer.ggml.scores", vocabulary.scores);
  if (!merges.empty()) writer.set("tokenizer.ggml.merges", merges);
  change(writer);
  const std::vector<std::byte> bytes = writer.bytes();
  Result<gguf::File> file = gguf::File::parse(bytes, "test.gguf");
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
  return vocabulary_from_gguf(*file);
}

TEST(VocabularyFromGguf, ReadsEveryKey) {
  const Result<Vocabulary> read = through_a_file(tiny_spm(), [](gguf::Writer& writer) {
    writer.set("general.architecture", "gemma3");
    writer.set("tokenizer.ggml.pre", "default");
    writer.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    writer.set("tokenizer.ggml.eos_token_id", std::int32_t{2});
    writer.set("tokenizer.ggml.eot_token_id", std::uint32_t{4});
    writer.set("tokenizer.ggml.unknown_token_id", std::uint32_t{0xffffffffu});
    writer.set("tokenizer.ggml.add_bos_token", false);
    writer.set("tokenizer.ggml.add_eos_token", true);
    writer.set("tokenizer.ggml.add_space_prefix", false);
    writer.set("tokenizer.chat_template", "{{ x }}");
  });
  ASSERT_TRUE(read.ok()) << read.error().message;
  const Vocabulary expected = tiny_spm();
  EXPECT_EQ(read->model, "llama");
  EXPECT_EQ(read->pre, "default");
  EXPECT_EQ(read->architecture, "gemma3");
  EXPECT_EQ(read->chat_template, "{{ x }}");
  ASSERT_EQ(read->tokens.size(), expected.tokens.size());
  for (std::size_t id = 0; id < expected.tokens.size(); ++id)
    EXPECT_EQ(read->tokens[id], expected.tokens[id]);
  EXPECT_EQ(read->scores, expected.scores);
  EXPECT_EQ(read->types, expected.types);
  EXPECT_EQ(read->bos, 1);
  EXPECT_EQ(read->eos, 2);
  EXPECT_EQ(read->eot, 4);
  EXPECT_EQ(read->unk, -1);
  EXPECT_FALSE(read->add_bos);
  EXPECT_TRUE(read->add_eos);
  EXPECT_FALSE(read->add_space_prefix);
}

TEST(VocabularyFromGguf, TakesTheDefaultsOfTheTokenizerModel) {
  const Result<Vocabulary> spm = through_a_file(tiny_spm(), [](gguf::Writer&) {});
  ASSERT_TRUE(spm.ok());
  EXPECT_EQ(spm->bos, 1);
  EXPECT_EQ(spm->eos, 2);
  EXPECT_TRUE(spm->add_bos);
  EXPECT_TRUE(spm->add_space_prefix);
  const auto bos = [](std::string_view pre) {
    return [pre](gguf::Writer& writer) {
      writer.set("tokenizer.ggml.pre", pre);
      writer.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    };
  };
  const Result<Vocabulary> smollm = through_a_file(tiny_bpe("smollm"), bos("smollm"));
  ASSERT_TRUE(smollm.ok());
  EXPECT_FALSE(smollm->add_bos);
  EXPECT_FALSE(smollm->add_space_prefix);
  EXPECT_EQ(smollm->merges.size(), tiny_bpe("smollm").merges.size());
  for (const char* pre : {"llama-bpe", "llama3", "llama-v3"}) {
    EXPECT_TRUE(through_a_file(tiny_bpe(pre), bos(pre))->add_bos) << pre;
  }
  EXPECT_FALSE(through_a_file(tiny_bpe("gpt-2"), bos("gpt-2"))->add_bos);
}

TEST(VocabularyFromGguf, RefusesAbsentKeysAndOtherTypes) {
  gguf::Writer empty;
  const std::vector<std::byte> bytes = empty.bytes();
  const Result<gguf::File> file = gguf::File::parse(bytes, "empty.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(vocabulary_from_gguf(*file).error().message, HasSubstr("tokenizer.ggml.model"));

  Vocabulary no_merges = tiny_bpe("smollm");
  no_merges.merges = {};
  EXPECT_THAT(through_a_file(no_merges, [](gguf::Writer&) {}).error().message,
              HasSubstr("tokenizer.ggml.merges"));
  EXPECT_THAT(through_a_file(tiny_spm(),
                             [](gguf::Writer& w) { w.set("tokenizer.ggml.add_bos_token", "yes"); })
                  .error()
                  .message,
              HasSubstr("add_bos_token"));
  EXPECT_THAT(through_a_file(tiny_spm(),
                             [](gguf::Writer& w) {
                               w.set("tokenizer.ggml.bos_token_id", std::int64_t{1} << 40);
                             })
                  .error()
                  .message,
              HasSubstr("1099511627776"));
}

TEST(VocabularyFromGguf, RefusesAVocabularySizeThatIsNotTheNumberOfTokens) {
  const auto with_size = [](std::uint32_t size) {
    return through_a_file(tiny_spm(), [size](gguf::Writer& w) {
      w.set("general.architecture", "llama");
      w.set("llama.vocab_size", size);
    });
  };
  const auto count = static_cast<std::uint32_t>(tiny_spm().tokens.size());
  EXPECT_TRUE(with_size(count).ok());
  EXPECT_THAT(with_size(count + 7).error().message,
              testing::AllOf(HasSubstr(std::to_string(count + 7)),
                             HasSubstr(std::to_string(count) + " tokens")));
}

TEST(VocabularyFromGguf, LeavesOddTokenTypesForTheTokenizerToRefuse) {
  Vocabulary odd = tiny_spm();
  odd.types[3] = -5;
  Result<Vocabulary> read = through_a_file(odd, [](gguf::Writer&) {});
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(Tokenizer::create(std::move(read).value()).error().message, HasSubstr("token 3"));
}

}  // namespace
}  // namespace segue::text
