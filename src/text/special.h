// SPDX-License-Identifier: Apache-2.0
// Cutting a text at special tokens before a tokenizer model sees it. Where tokens overlap, a GGUF
// file means what llama.cpp does (longer tokens win, then the one with the smaller id, then the
// leftmost) and a tokenizer.json what Hugging Face does (the leftmost wins, then the longer).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace segue::text {

/// Bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct SpecialMatch {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t token = -1;
};

inline constexpr std::size_t kMaxSpecialBytes = 4096;

class SpecialCutter {
 public:
  SpecialCutter() = default;
  /// Control, unknown and user-defined tokens of `vocabulary` (types has one entry per token); none
  /// is longer than kMaxSpecialBytes. Unless the leftmost wins, "</s>" counts as a control token
  /// even where it is a user-defined tag of HTML (Gemma), as in llama.cpp.
  explicit SpecialCutter(const Vocabulary& vocabulary);

  /// The special tokens in `text`, in text order, disjoint. Inside `plain` ranges (ascending,
  /// disjoint), and where a token would touch one, only user-defined tokens count. Time and memory
  /// are linear in the text.
  std::vector<SpecialMatch> find(std::string_view text, std::span<const TextRange> plain) const;

 private:
  struct Node {
    std::int32_t child = -1;    // first of its children
    std::int32_t sibling = -1;  // next child of the same parent
    std::int32_t parent = -1;   // always a smaller index
    std::int32_t token = -1;    // that ends here
    std::int32_t shorter = -1;  // nearest ancestor that has a token
    std::uint32_t depth = 0;    // bytes from the root
    unsigned char byte = 0;
    bool control = false;  // the token is a control or unknown token
  };
  std::int32_t step(std::int32_t node, unsigned char byte) const;
  /// The longest token that begins at `begin` and may stand there, as a node; -1: none.
  std::int32_t longest_at(std::string_view text, std::size_t begin,
                          std::span<const TextRange> plain) const;
  /// `node` or the nearest shorter token on its way to the root that may stand at `begin`.
  std::int32_t admissible(std::int32_t node, std::size_t begin,
                          std::span<const TextRange> plain) const;
  std::vector<SpecialMatch> find_leftmost(std::string_view text,
                                          std::span<const TextRange> plain) const;
  void insert(std::string_view text, std::int32_t token, bool control);

  std::array<std::int32_t, 256> roots_{};  // node by first byte, -1: none
  std::vector<Node> nodes_;
  std::uint32_t longest_ = 0;
  bool leftmost_ = false;
};

}  // namespace segue::text
