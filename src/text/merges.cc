// SPDX-License-Identifier: Apache-2.0
#include "text/merges.h"

#include <bit>
#include <string>

#include <fmt/format.h>

namespace segue::text {

std::int32_t text_token(const Vocabulary& vocabulary, const TokenMap& map, std::string_view text) {
  const std::int32_t token = map.find(text);
  if (token < 0) return -1;
  const auto type = static_cast<TokenType>(vocabulary.types[static_cast<std::size_t>(token)]);
  const bool spelled_out =
      type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kByte;
  return spelled_out ? -1 : token;
}

Merges::Merges(std::size_t count)
    : slots_(std::bit_ceil(2 * count + 2)), mask_(slots_.size() - 1) {}

void Merges::insert(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = slot_of(key);
  for (; slots_[slot].merge.token >= 0; slot = (slot + 1) & mask_) {
    if (slots_[slot].key == key) return;
  }
  slots_[slot] = {key, merge};
}

Result<Merges> Merges::of(const Vocabulary& vocabulary, const TokenMap& map) {
  Merges merges(vocabulary.merges.size());
  std::string text;
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view merge = vocabulary.merges[rank];
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("merge {} is not two texts with a space between them", rank)};
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    text.assign(left).append(right);
    const std::int32_t left_token = text_token(vocabulary, map, left);
    const std::int32_t right_token = text_token(vocabulary, map, right);
    const std::int32_t merged = text_token(vocabulary, map, text);
    if (left_token < 0 || right_token < 0 || merged < 0) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("merge {} needs a token that the vocabulary lacks (both parts and "
                               "the whole must be tokens of text)",
                               rank)};
    }
    merges.insert(left_token, right_token, {merged, static_cast<std::uint32_t>(rank)});
  }
  return merges;
}

}  // namespace segue::text
