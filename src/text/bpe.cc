// SPDX-License-Identifier: Apache-2.0
// The "gpt2" tokenizer model: every byte is a token, neighbours are merged in the order in which
// training found the pairs. Inside the vocabulary bytes are written as printable characters.
// (Byte-level BPE: Radford et al., "Language models are unsupervised multitask learners", 2019;
// BPE: Sennrich et al., 2016, arXiv 1508.07909.)
#include <array>
#include <memory>

#include "text/merges.h"
#include "text/model.h"
#include "text/utf8.h"
#include "text/words.h"

namespace segue::text {
namespace {

/// The printable character of every byte, and back.
struct ByteAlphabet {
  std::array<std::uint16_t, 256> code_point{};
  std::array<std::int16_t, 0x180> byte{};  // -1: not in the alphabet

  constexpr ByteAlphabet() {
    byte.fill(-1);
    std::uint16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      const auto code = printable ? static_cast<std::uint16_t>(b) : next++;
      code_point[static_cast<std::size_t>(b)] = code;
      byte[code] = static_cast<std::int16_t>(b);
    }
  }

  /// Appends byte `b` as its character.
  void write(unsigned char b, std::string& out) const {
    const unsigned code = code_point[b];
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else {
      out += static_cast<char>(0xc0u | (code >> 6));
      out += static_cast<char>(0x80u | (code & 0x3fu));
    }
  }

  /// Appends the bytes that `text` writes. False, and nothing appended, when it has a character
  /// outside the alphabet.
  bool read(std::string_view text, std::string& out) const {
    const std::size_t before = out.size();
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t length = utf8_character(text, i);
      unsigned code = 0xffff;
      if (length == 1) code = static_cast<unsigned char>(text[i]);
      if (length == 2)
        code = ((static_cast<unsigned char>(text[i]) & 0x1fu) << 6) |
               (static_cast<unsigned char>(text[i + 1]) & 0x3fu);
      if (code >= byte.size() || byte[code] < 0) {
        out.resize(before);
        return false;
      }
      out += static_cast<char>(byte[code]);
      i += length;
    }
    return true;
  }
};
constexpr ByteAlphabet kAlphabet;

class BpeModel final : public TokenModel {
 public:
  BpeModel(const Vocabulary& vocabulary, const TokenMap& map, WordSplitter splitter, Merges merges)
      : vocabulary_(vocabulary),
        map_(map),
        splitter_(std::move(splitter)),
        merges_(std::move(merges)) {
    std::string text;
    for (int byte = 0; byte < 256; ++byte) {
      text.clear();
      kAlphabet.write(static_cast<unsigned char>(byte), text);
      byte_tokens_[static_cast<std::size_t>(byte)] = text_token(vocabulary_, map_, text);
    }
  }

  void encode(std::string_view fragment, bool /*after_special*/, Scratch& scratch,
              std::vector<std::int32_t>& out) const override {
    splitter_.split(fragment, scratch.words, scratch.pieces);
    for (std::string_view word : scratch.words) encode_word(word, scratch, out);
  }

  void decode(std::int32_t id, std::string& out) const override {
    const auto index = static_cast<std::size_t>(id);
    const std::string_view text = vocabulary_.tokens[index];
    // User-defined tokens are written as they are, and so is what the alphabet cannot have written.
    if (static_cast<TokenType>(vocabulary_.types[index]) == TokenType::kUserDefined ||
        !kAlphabet.read(text, out))
      out += text;
  }

  int missing_bytes() const override {
    int missing = 0;
    for (std::int32_t token : byte_tokens_) missing += token < 0 ? 1 : 0;
    return missing;
  }

 private:
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const {
    if (splitter_.whole_words_first()) {
      scratch.bytes.clear();
      for (char byte : word) kAlphabet.write(static_cast<unsigned char>(byte), scratch.bytes);
      if (const std::int32_t token = text_token(vocabulary_, map_, scratch.bytes); token >= 0) {
        out.push_back(token);
        return;
      }
    }
    Merger& merger = scratch.merger;
    merger.clear();
    for (std::size_t i = 0; i < word.size(); ++i) {
      merger.add(i, i + 1, byte_tokens_[static_cast<unsigned char>(word[i])]);
    }
    merger.run([&](const Symbol& left, const Symbol& right) {
      return merges_.find(left.token, right.token);
    });
    merger.for_each([&](const Symbol& symbol) {
      if (symbol.token >= 0) {
        out.push_back(symbol.token);
      } else {
        ++scratch.lost_bytes;  // dropped, as llama.cpp and Hugging Face do
      }
    });
  }

  const Vocabulary& vocabulary_;
  const TokenMap& map_;
  WordSplitter splitter_;
  Merges merges_;
  std::array<std::int32_t, 256> byte_tokens_{};
};

}  // namespace

Result<std::unique_ptr<TokenModel>> create_bpe(const Vocabulary& vocabulary, const TokenMap& map) {
  Result<WordSplitter> splitter = WordSplitter::create(vocabulary.pre);
  if (!splitter) return splitter.error();
  Result<Merges> merges = Merges::of(vocabulary, map);
  if (!merges) return merges.error();
  return std::unique_ptr<TokenModel>(std::make_unique<BpeModel>(
      vocabulary, map, std::move(splitter).value(), std::move(merges).value()));
}

}  // namespace segue::text
