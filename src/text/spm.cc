// SPDX-License-Identifier: Apache-2.0
// The "llama" tokenizer model: characters are merged to the tokens of highest score, a character
// without a token becomes one byte token per byte. (SentencePiece: Kudo and Richardson, 2018, arXiv
// 1808.06226.)
#include <array>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "text/model.h"
#include "text/utf8.h"

namespace segue::text {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581 stands for a space inside tokens

/// "<0x41>" -> 0x41; -1 for anything else.
int byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int value = 0;
  for (char digit : text.substr(3, 2)) {
    if (digit >= '0' && digit <= '9') {
      value = 16 * value + (digit - '0');
    } else if (digit >= 'A' && digit <= 'F') {
      value = 16 * value + (digit - 'A' + 10);
    } else if (digit >= 'a' && digit <= 'f') {
      value = 16 * value + (digit - 'a' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

/// Larger scores give smaller numbers; 0 and -0 the same one.
std::uint32_t priority_of(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);
  const std::uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

class SpmModel final : public TokenModel {
 public:
  SpmModel(const Vocabulary& vocabulary, const TokenMap& map) : vocabulary_(vocabulary), map_(map) {
    byte_tokens_.fill(-1);
  }

  Status init() {
    const std::size_t count = vocabulary_.tokens.size();
    if (vocabulary_.scores.size() != count) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("the vocabulary has {} tokens but {} scores", count,
                               vocabulary_.scores.size())};
    }
    for (std::size_t id = 0; id < count; ++id) {
      if (std::isnan(vocabulary_.scores[id])) {
        return Error{ErrorCode::kInvalidFile,
                     fmt::format("token {} has a score that is no number", id)};
      }
      if (static_cast<TokenType>(vocabulary_.types[id]) != TokenType::kByte) continue;
      const int byte = byte_of(vocabulary_.tokens[id]);
      if (byte < 0) {
        return Error{ErrorCode::kInvalidFile,
                     fmt::format("byte token {} is not spelled <0xXX>", id)};
      }
      byte_tokens_[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(id);
    }
    if (vocabulary_.unk < 0 && missing_bytes() > 0) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("the vocabulary has neither an unknown token nor a byte token for "
                               "{} of the 256 bytes",
                               missing_bytes())};
    }
    return {};
  }

  void encode(std::string_view fragment, bool after_special, Scratch& scratch,
              std::vector<std::int32_t>& out) const override {
    std::string& text = scratch.bytes;
    text.clear();
    if (vocabulary_.add_space_prefix && after_special) text += kSpaceMark;
    for (char byte : fragment) {
      if (byte == ' ') {
        text += kSpaceMark;
      } else {
        text += byte;
      }
    }
    Merger& merger = scratch.merger;
    merger.clear();
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t bytes = std::max<std::size_t>(1, utf8_character(text, begin));
      merger.add(static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(begin + bytes), -1);
      begin += bytes;
    }
    const std::string_view view = text;
    merger.run([&](const Symbol& left, const Symbol& right) -> Merge {
      const std::int32_t token = text_token(view.substr(left.begin, right.end - left.begin));
      if (token < 0) return {};
      return {token, priority_of(vocabulary_.scores[static_cast<std::size_t>(token)])};
    });
    const std::vector<Symbol>& symbols = merger.symbols();
    for (std::int32_t i = symbols.empty() ? -1 : 0; i >= 0;
         i = symbols[static_cast<std::size_t>(i)].next) {
      const Symbol& symbol = symbols[static_cast<std::size_t>(i)];
      emit(view.substr(symbol.begin, symbol.end - symbol.begin), symbol.token, out);
    }
  }

  void decode(std::int32_t id, std::string& out) const override {
    std::string_view text = vocabulary_.tokens[static_cast<std::size_t>(id)];
    if (static_cast<TokenType>(vocabulary_.types[static_cast<std::size_t>(id)]) ==
        TokenType::kByte) {
      out += static_cast<char>(byte_of(text));
      return;
    }
    for (std::size_t mark = text.find(kSpaceMark); mark != std::string_view::npos;
         mark = text.find(kSpaceMark)) {
      out += text.substr(0, mark);
      out += ' ';
      text.remove_prefix(mark + kSpaceMark.size());
    }
    out += text;
  }

  int missing_bytes() const override {
    int missing = 0;
    for (std::int32_t token : byte_tokens_) missing += token < 0 ? 1 : 0;
    return missing;
  }

 private:
  /// A token that plain text may become: the texts of control, unknown and byte tokens are spelled
  /// out instead.
  std::int32_t text_token(std::string_view text) const {
    const std::int32_t token = map_.find(text);
    if (token < 0) return -1;
    switch (static_cast<TokenType>(vocabulary_.types[static_cast<std::size_t>(token)])) {
      case TokenType::kNormal:
      case TokenType::kUserDefined:
      case TokenType::kUnused: return token;
      case TokenType::kUnknown:
      case TokenType::kControl:
      case TokenType::kByte: return -1;
    }
    return -1;
  }

  void emit(std::string_view text, std::int32_t merged, std::vector<std::int32_t>& out) const {
    const std::int32_t token = merged >= 0 ? merged : text_token(text);
    if (token >= 0) {
      out.push_back(token);
      return;
    }
    for (char byte : text) {
      const std::int32_t byte_token = byte_tokens_[static_cast<unsigned char>(byte)];
      if (byte_token < 0) {
        out.push_back(vocabulary_.unk);
        return;
      }
      out.push_back(byte_token);
    }
  }

  const Vocabulary& vocabulary_;
  const TokenMap& map_;
  std::array<std::int32_t, 256> byte_tokens_{};
};

}  // namespace

Result<std::unique_ptr<TokenModel>> create_spm(const Vocabulary& vocabulary, const TokenMap& map) {
  auto model = std::make_unique<SpmModel>(vocabulary, map);
  if (Status status = model->init(); !status) return status.error();
  return std::unique_ptr<TokenModel>(std::move(model));
}

}  // namespace segue::text
