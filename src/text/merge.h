// SPDX-License-Identifier: Apache-2.0
// The loop that both tokenizer models share: neighbouring symbols are merged, best pair first,
// until no pair is left. A heap of candidates makes it n log n; candidates that a merge has
// overtaken are skipped when they come up. (The idea is that of SentencePiece's bpe_model: Kudo and
// Richardson, 2018, arXiv 1808.06226.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace segue::text {

/// A run of bytes that may become one token. Symbols form a list in text order.
struct Symbol {
  std::uint32_t begin = 0;  // bytes within the fragment
  std::uint32_t end = 0;
  std::int32_t token = -1;  // meaning belongs to the rule; -1: none
  std::int32_t previous = -1;
  std::int32_t next = -1;  // index of the following symbol, -1 at the end
};

/// What a rule answers for two neighbours.
struct Merge {
  std::int32_t token = -1;     // of the merged symbol; -1: they do not merge
  std::uint32_t priority = 0;  // smaller goes first; of equal ones the leftmost
};

/// Scratch of one call chain, reused so that short fragments allocate nothing.
class Merger {
 public:
  /// Starts a fragment of symbols that will be `add`ed in order.
  void clear() { symbols_.clear(); }
  void add(std::size_t begin, std::size_t end, std::int32_t token) {
    const auto index = static_cast<std::int32_t>(symbols_.size());
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back(
        {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), token, index - 1, -1});
  }
  /// Starts a fragment: the characters of `text`, of tokens `token_of(character)`. A byte that is
  /// not UTF-8 is a character.
  template <class TokenOf>
  void start(std::string_view text, const TokenOf& token_of) {
    clear();
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t bytes = std::max<std::size_t>(1, utf8_character(text, begin));
      add(begin, begin + bytes, token_of(text.substr(begin, bytes)));
      begin += bytes;
    }
  }

  /// Merges all that `rule(left, right) -> Merge` admits.
  template <class Rule>
  void run(const Rule& rule) {
    candidates_.clear();
    for (std::size_t left = 0; left + 1 < symbols_.size(); ++left) {
      if (Candidate candidate; propose(rule, static_cast<std::int32_t>(left), candidate))
        candidates_.push_back(candidate);
    }
    std::make_heap(candidates_.begin(), candidates_.end());
    while (!candidates_.empty()) {
      std::pop_heap(candidates_.begin(), candidates_.end());
      const Candidate best = candidates_.back();
      candidates_.pop_back();
      Symbol& left = symbols_[best.left()];
      // A symbol only ever grows to the right and keeps its index, so these two comparisons find
      // every stale pair.
      if (left.next != best.right || symbols_[static_cast<std::size_t>(best.right)].end != best.end)
        continue;
      Symbol& right = symbols_[static_cast<std::size_t>(best.right)];
      left.end = right.end;
      left.token = best.token;
      left.next = right.next;
      right.next = kDead;
      if (left.next >= 0)
        symbols_[static_cast<std::size_t>(left.next)].previous =
            static_cast<std::int32_t>(best.left());
      push(rule, left.previous);
      push(rule, static_cast<std::int32_t>(best.left()));
    }
  }

  /// The symbols that are left, in order.
  template <class Take>
  void for_each(const Take& take) const {
    for (std::int32_t i = symbols_.empty() ? -1 : 0; i >= 0;) {
      const Symbol& symbol = symbols_[static_cast<std::size_t>(i)];
      take(symbol);
      i = symbol.next;
    }
  }

 private:
  static constexpr std::int32_t kDead = -2;

  struct Candidate {
    std::uint64_t key = 0;  // priority, then index of the left symbol
    std::int32_t right = -1;
    std::uint32_t end = 0;  // of the right symbol when this was proposed
    std::int32_t token = -1;
    std::size_t left() const { return key & 0xffffffffu; }
    bool operator<(const Candidate& other) const {
      return key > other.key;
    }  // the heap's top is the smallest key
  };

  template <class Rule>
  bool propose(const Rule& rule, std::int32_t left, Candidate& candidate) const {
    if (left < 0) return false;
    const Symbol& first = symbols_[static_cast<std::size_t>(left)];
    if (first.next < 0) return false;
    const Symbol& second = symbols_[static_cast<std::size_t>(first.next)];
    const Merge merge = rule(first, second);
    if (merge.token < 0) return false;
    candidate = {(std::uint64_t{merge.priority} << 32) | static_cast<std::uint32_t>(left),
                 first.next, second.end, merge.token};
    return true;
  }
  template <class Rule>
  void push(const Rule& rule, std::int32_t left) {
    if (Candidate candidate; propose(rule, left, candidate)) {
      candidates_.push_back(candidate);
      std::push_heap(candidates_.begin(), candidates_.end());
    }
  }

  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;
};

}  // namespace segue::text
