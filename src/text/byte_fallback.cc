// SPDX-License-Identifier: Apache-2.0
#include "text/byte_fallback.h"

#include <algorithm>

#include <fmt/format.h>

namespace segue::text {

int byte_of_token(std::string_view text) {
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

void append_marked(std::string_view text, std::string& out) {
  for (char byte : text) {
    if (byte == ' ') {
      out += kSpaceMark;
    } else {
      out += byte;
    }
  }
}

void append_decoded(const Vocabulary& vocabulary, std::int32_t id, std::string& out) {
  const auto index = static_cast<std::size_t>(id);
  std::string_view text = vocabulary.tokens[index];
  if (static_cast<TokenType>(vocabulary.types[index]) == TokenType::kByte) {
    out += static_cast<char>(byte_of_token(text));
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

Result<ByteTokens> ByteTokens::of(const Vocabulary& vocabulary) {
  ByteTokens tokens;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (static_cast<TokenType>(vocabulary.types[id]) != TokenType::kByte) continue;
    const int byte = byte_of_token(vocabulary.tokens[id]);
    if (byte < 0) {
      return Error{ErrorCode::kInvalidFile, fmt::format("byte token {} is not spelled <0xXX>", id)};
    }
    tokens.ids_[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(id);
  }
  return tokens;
}

int ByteTokens::missing() const {
  return static_cast<int>(std::count(ids_.begin(), ids_.end(), -1));
}

int ByteTokens::first_missing() const {
  const auto found = std::find(ids_.begin(), ids_.end(), -1);
  return found == ids_.end() ? -1 : static_cast<int>(found - ids_.begin());
}

}  // namespace segue::text
