// SPDX-License-Identifier: Apache-2.0
// What SentencePiece-style vocabularies share: a mark instead of spaces, and one token per byte for
// characters that have none of their own.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/vocabulary.h"

namespace segue::text {

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581 stands for a space

/// "<0x41>" -> 0x41; -1 for anything else.
int byte_of_token(std::string_view text);

/// Appends `text` with a mark for every space.
void append_marked(std::string_view text, std::string& out);
/// Appends what the token `id` stands for: its byte, or its text with spaces for the marks.
void append_decoded(const Vocabulary& vocabulary, std::int32_t id, std::string& out);

/// The ids of the tokens of type kByte, by byte; -1: none.
class ByteTokens {
 public:
  ByteTokens() { ids_.fill(-1); }
  /// kInvalidFile for a byte token that is not spelled <0xXX>. types has one entry per token.
  static Result<ByteTokens> of(const Vocabulary& vocabulary);

  std::int32_t operator[](char byte) const { return ids_[static_cast<unsigned char>(byte)]; }
  int missing() const;
  int first_missing() const;  // -1: none is

 private:
  std::array<std::int32_t, 256> ids_{};
};

}  // namespace segue::text
