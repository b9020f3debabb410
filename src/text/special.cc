// SPDX-License-Identifier: Apache-2.0
#include "text/special.h"

#include <algorithm>

namespace segue::text {

SpecialCutter::SpecialCutter(const Vocabulary& vocabulary)
    : leftmost_(vocabulary.leftmost_special) {
  roots_.fill(-1);
  for (std::size_t id = 0; id < vocabulary.types.size(); ++id) {
    const auto type = static_cast<TokenType>(vocabulary.types[id]);
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
    if (!special && type != TokenType::kUserDefined) continue;
    const std::string_view text = vocabulary.tokens[id];
    insert(text, static_cast<std::int32_t>(id), special || (text == "</s>" && !leftmost_));
  }
  for (Node& node : nodes_) {
    if (node.parent < 0) continue;
    const Node& parent = nodes_[static_cast<std::size_t>(node.parent)];
    node.shorter = parent.token >= 0 ? node.parent : parent.shorter;
  }
}

std::int32_t SpecialCutter::step(std::int32_t node, unsigned char byte) const {
  std::int32_t child = nodes_[static_cast<std::size_t>(node)].child;
  while (child >= 0 && nodes_[static_cast<std::size_t>(child)].byte != byte)
    child = nodes_[static_cast<std::size_t>(child)].sibling;
  return child;
}

void SpecialCutter::insert(std::string_view text, std::int32_t token, bool control) {
  std::int32_t node = -1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    std::int32_t next = i == 0 ? roots_[byte] : step(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      Node created;
      created.byte = byte;
      created.parent = node;
      created.depth = static_cast<std::uint32_t>(i + 1);
      if (i == 0) {
        roots_[byte] = next;
      } else {
        created.sibling = nodes_[static_cast<std::size_t>(node)].child;
        nodes_[static_cast<std::size_t>(node)].child = next;
      }
      nodes_.push_back(created);
    }
    node = next;
  }
  if (node < 0) return;
  Node& end = nodes_[static_cast<std::size_t>(node)];
  if (end.token >= 0) return;  // a second token of the same text is never found
  end.token = token;
  end.control = control;
  longest_ = std::max(longest_, end.depth);
}

std::int32_t SpecialCutter::admissible(std::int32_t node, std::size_t begin,
                                       std::span<const TextRange> plain) const {
  const auto touches_plain = [&](std::size_t end) {
    const auto after = std::partition_point(
        plain.begin(), plain.end(), [&](const TextRange& range) { return range.end <= begin; });
    return after != plain.end() && after->begin < end;
  };
  for (; node >= 0; node = nodes_[static_cast<std::size_t>(node)].shorter) {
    const Node& found = nodes_[static_cast<std::size_t>(node)];
    if (found.token >= 0 && !(found.control && touches_plain(begin + found.depth))) break;
  }
  return node;
}

std::int32_t SpecialCutter::longest_at(std::string_view text, std::size_t begin,
                                       std::span<const TextRange> plain) const {
  std::int32_t longest = -1;
  std::int32_t node = roots_[static_cast<unsigned char>(text[begin])];
  for (std::size_t at = begin; node >= 0;) {
    if (nodes_[static_cast<std::size_t>(node)].token >= 0) longest = node;
    if (++at == text.size()) break;
    node = step(node, static_cast<unsigned char>(text[at]));
  }
  return admissible(longest, begin, plain);
}

std::vector<SpecialMatch> SpecialCutter::find_leftmost(std::string_view text,
                                                       std::span<const TextRange> plain) const {
  std::vector<SpecialMatch> matches;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::int32_t found = longest_at(text, begin, plain);
    if (found < 0) {
      ++begin;
      continue;
    }
    const Node& node = nodes_[static_cast<std::size_t>(found)];
    matches.push_back({begin, begin + node.depth, node.token});
    begin += node.depth;
  }
  return matches;
}

std::vector<SpecialMatch> SpecialCutter::find(std::string_view text,
                                              std::span<const TextRange> plain) const {
  if (leftmost_) return find_leftmost(text, plain);
  struct Candidate {
    std::size_t begin;
    std::int32_t node;
  };
  std::vector<std::vector<Candidate>> by_length(longest_ + 1);
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    const std::int32_t longest = longest_at(text, begin, plain);
    if (longest >= 0)
      by_length[nodes_[static_cast<std::size_t>(longest)].depth].push_back({begin, longest});
  }

  std::vector<SpecialMatch> matches;
  std::vector<bool> taken;
  for (std::size_t length = longest_; length > 0; --length) {
    std::vector<Candidate>& candidates = by_length[length];
    if (candidates.empty()) continue;
    taken.resize(text.size());
    std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
      const std::int32_t left = nodes_[static_cast<std::size_t>(a.node)].token;
      const std::int32_t right = nodes_[static_cast<std::size_t>(b.node)].token;
      return left != right ? left < right : a.begin < b.begin;
    });
    for (const Candidate& candidate : candidates) {
      if (taken[candidate.begin]) continue;
      // What is taken already is at least as long, so it overlaps only if it covers one of the two
      // ends.
      if (!taken[candidate.begin + length - 1]) {
        std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(candidate.begin), length, true);
        matches.push_back({candidate.begin, candidate.begin + length,
                           nodes_[static_cast<std::size_t>(candidate.node)].token});
        continue;
      }
      const std::int32_t shorter = admissible(
          nodes_[static_cast<std::size_t>(candidate.node)].shorter, candidate.begin, plain);
      if (shorter >= 0)
        by_length[nodes_[static_cast<std::size_t>(shorter)].depth].push_back(
            {candidate.begin, shorter});
    }
    candidates = {};
  }
  std::sort(matches.begin(), matches.end(),
            [](const SpecialMatch& a, const SpecialMatch& b) { return a.begin < b.begin; });
  return matches;
}

}  // namespace segue::text
