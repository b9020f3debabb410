// SPDX-License-Identifier: Apache-2.0
// Tiny vocabularies for tests and fuzz targets: every byte has a token, and a few merges make it
// interesting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "text/vocabulary.h"

namespace segue::text {

class VocabularyBuilder {
 public:
  std::int32_t add(std::string_view text, TokenType type, float score = 0.0f) {
    vocabulary.tokens.add(text);
    vocabulary.types.push_back(static_cast<std::int32_t>(type));
    vocabulary.scores.push_back(score);
    return static_cast<std::int32_t>(vocabulary.tokens.size()) - 1;
  }
  Vocabulary vocabulary;
};

/// SentencePiece-style, with byte fallback, control tokens, user-defined runs and a few words.
inline Vocabulary tiny_spm() {
  VocabularyBuilder builder;
  Vocabulary& vocabulary = builder.vocabulary;
  vocabulary.model = "llama";
  vocabulary.unk = builder.add("<unk>", TokenType::kUnknown);
  vocabulary.bos = builder.add("<bos>", TokenType::kControl);
  vocabulary.eos = builder.add("<eos>", TokenType::kControl);
  vocabulary.add_bos = true;
  builder.add("<start_of_turn>", TokenType::kControl);
  builder.add("<end_of_turn>", TokenType::kControl);
  for (std::string_view run : {"\n", "\n\n", "\n\n\n", "  ", "   ", "<b>", "</b>", "</s>"}) {
    builder.add(run, TokenType::kUserDefined);
  }
  for (int byte = 0; byte < 256; ++byte)
    builder.add(fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  float score = -1.0f;
  for (std::string_view word : {"ab", "bc", "abc", "\u2581a", "\u2581abc", "he", "ll", "hell",
                                "hello", "\u2581hello", "\u00e9\u00e9", "\u65e5\u672c"}) {
    builder.add(word, TokenType::kNormal, score);
    score -= 1.0f;
  }
  for (std::string_view letter :
       {"a", "b", "c", "h", "e", "l", "o", "\u2581", "\u00e9", "\u65e5", "<", ">"}) {
    builder.add(letter, TokenType::kNormal, score);
    score -= 1.0f;
  }
  return std::move(vocabulary);
}

/// Characters with byte fallback, merged by rank; runs of up to three newlines are tokens that no
/// merge leads to.
inline Vocabulary tiny_gemma4() {
  VocabularyBuilder builder;
  Vocabulary& vocabulary = builder.vocabulary;
  vocabulary.model = "gemma4";
  vocabulary.pre = "gemma4";
  builder.add("<pad>", TokenType::kControl);
  vocabulary.eos = builder.add("<eos>", TokenType::kControl);
  vocabulary.bos = builder.add("<bos>", TokenType::kControl);
  vocabulary.unk = builder.add("<unk>", TokenType::kUnknown);
  vocabulary.add_bos = true;
  builder.add("<|turn>", TokenType::kControl);
  builder.add("<turn|>", TokenType::kControl);
  builder.add("<b>", TokenType::kUserDefined);
  for (std::string_view run : {"\n", "\n\n", "\n\n\n"}) builder.add(run, TokenType::kNormal);
  for (int byte = 0; byte < 256; ++byte)
    builder.add(fmt::format("<0x{:02X}>", byte), TokenType::kNormal);  // known by name
  for (std::string_view letter :
       {"a", "b", "c", "h", "e", "l", "o", "\u2581", "\u00e9", "\u65e5", "<", ">"})
    builder.add(letter, TokenType::kNormal);
  for (std::string_view merge :
       {"h e", "l l", "he ll", "hell o", "\u2581 hello", "a b", "ab c", "b c", "\u2581 \u2581",
        "\u2581\u2581 \u2581\u2581", "\u00e9 \u00e9", "c \u2581"}) {
    vocabulary.merges.add(merge);
    const std::size_t space = merge.find(' ');
    builder.add(std::string(merge.substr(0, space)) + std::string(merge.substr(space + 1)),
                TokenType::kNormal);
  }
  return std::move(vocabulary);
}

/// Byte-level, with the given pre-tokenizer.
inline Vocabulary tiny_bpe(std::string_view pre) {
  VocabularyBuilder builder;
  Vocabulary& vocabulary = builder.vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  vocabulary.eos = builder.add("<|endoftext|>", TokenType::kControl);
  vocabulary.bos = builder.add("<|im_start|>", TokenType::kControl);
  builder.add("<|im_end|>", TokenType::kControl);
  builder.add("<tool>", TokenType::kUserDefined);
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const unsigned code = printable ? byte : next++;
    std::string text;
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0u | (code >> 6));
      text += static_cast<char>(0x80u | (code & 0x3fu));
    }
    builder.add(text, TokenType::kNormal);
  }
  for (std::string_view merge :
       {"h e", "l l", "he ll", "hell o", "\u0120 hello", "a b", "ab c", "b c", "1 2", "12 3",
        "\u00c3 \u00a9", "\u010a \u010a", "\u0120 \u0120", "' s", "x y"}) {
    vocabulary.merges.add(merge);
    const std::size_t space = merge.find(' ');
    builder.add(std::string(merge.substr(0, space)) + std::string(merge.substr(space + 1)),
                TokenType::kNormal);
  }
  builder.add("zzz", TokenType::kNormal);  // no merge leads here
  return std::move(vocabulary);
}

}  // namespace segue::text
