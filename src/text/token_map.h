// SPDX-License-Identifier: Apache-2.0
// Token text to id: an open-addressing hash table over a StringTable, which it does not own. Built
// once, then read by any number of threads. A quarter of a million entries are built in a few
// milliseconds.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace segue::text {

class TokenMap {
 public:
  TokenMap() = default;
  /// `tokens` must outlive this. Empty texts are left out; of equal texts the last one counts.
  explicit TokenMap(const StringTable& tokens);

  /// -1: no such token.
  std::int32_t find(std::string_view text) const {
    if (text.empty() || text.size() > longest_) return -1;
    const std::uint64_t hash = hash_of(text);
    for (std::size_t slot = hash & mask_;; slot = (slot + 1) & mask_) {
      const Slot& found = slots_[slot];
      if (found.id < 0) return -1;
      if (found.tag == tag_of(hash) && (*tokens_)[static_cast<std::size_t>(found.id)] == text)
        return found.id;
    }
  }

 private:
  struct Slot {
    std::uint32_t tag = 0;
    std::int32_t id = -1;
  };
  static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }
  static std::uint64_t hash_of(std::string_view text);

  const StringTable* tokens_ = nullptr;
  std::size_t longest_ = 0;
  std::size_t mask_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace segue::text
