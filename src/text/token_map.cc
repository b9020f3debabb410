// SPDX-License-Identifier: Apache-2.0
#include "text/token_map.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace segue::text {

std::uint64_t TokenMap::hash_of(std::string_view text) {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ull;
  std::uint64_t hash = text.size() * kMultiplier;
  while (!text.empty()) {
    std::uint64_t word = 0;
    const std::size_t bytes = std::min<std::size_t>(8, text.size());
    if (bytes == 8) {
      std::memcpy(&word, text.data(), 8);
    } else {
      for (std::size_t i = 0; i < bytes; ++i)
        word |= std::uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
    }
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 32;
    text.remove_prefix(bytes);
  }
  hash *= kMultiplier;
  return hash ^ (hash >> 29);
}

TokenMap::TokenMap(const StringTable& tokens) : tokens_(&tokens) {
  slots_.resize(std::bit_ceil(2 * tokens.size() + 2));
  mask_ = slots_.size() - 1;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view text = tokens[id];
    if (text.empty()) continue;
    longest_ = std::max(longest_, text.size());
    const std::uint64_t hash = hash_of(text);
    std::size_t slot = hash & mask_;
    while (slots_[slot].id >= 0 && !(slots_[slot].tag == tag_of(hash) &&
                                     tokens[static_cast<std::size_t>(slots_[slot].id)] == text)) {
      slot = (slot + 1) & mask_;
    }
    slots_[slot] = {tag_of(hash), static_cast<std::int32_t>(id)};
  }
}

}  // namespace segue::text
