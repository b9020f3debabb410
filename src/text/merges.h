// SPDX-License-Identifier: Apache-2.0
// The merges of a BPE vocabulary: which neighbours become which token, best first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "segue/error.h"
#include "text/merge.h"
#include "text/token_map.h"
#include "text/vocabulary.h"

namespace segue::text {

/// A token that plain text may become, or -1: the texts of control, unknown and byte tokens are
/// spelled out instead.
std::int32_t text_token(const Vocabulary& vocabulary, const TokenMap& map, std::string_view text);

/// (left token, right token) -> rank and merged token: an open-addressing table, built once.
class Merges {
 public:
  /// kInvalidFile for a merge that is not two texts with a space between them, or whose parts or
  /// whole are no tokens of text.
  static Result<Merges> of(const Vocabulary& vocabulary, const TokenMap& map);

  Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    std::size_t slot = slot_of(key);
    for (; slots_[slot].merge.token >= 0; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
    }
    return {};
  }

 private:
  explicit Merges(std::size_t count);
  /// The first of equal pairs counts.
  void insert(std::int32_t left, std::int32_t right, Merge merge);

  struct Slot {
    std::uint64_t key = 0;
    Merge merge;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    const std::uint64_t hash = key * 0x9e3779b97f4a7c15ull;
    return (hash ^ (hash >> 32)) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_;
};

}  // namespace segue::text
