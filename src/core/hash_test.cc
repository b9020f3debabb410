// SPDX-License-Identifier: Apache-2.0
// What a comparison of results relies on: any changed, moved or missing byte changes the hash.
#include "core/hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace segue::core {
namespace {

std::uint64_t hash_of(std::string_view text) {
  Hash64 hash;
  hash.update(text.data(), text.size());
  return hash.digest();
}

TEST(Hash64, IsTheSameForTheSameBytesAtAnyAddress) {
  const std::string text = "0123456789abcdefghij";
  for (std::size_t shift = 0; shift < 8; ++shift) {
    const std::string moved = std::string(shift, 'x') + text;
    EXPECT_EQ(hash_of(std::string_view(moved).substr(shift)), hash_of(text));
  }
}

TEST(Hash64, DiffersForEveryLengthOfZeros) {
  std::set<std::uint64_t> seen;
  const std::string zeros(1000, '\0');
  for (std::size_t length = 0; length <= zeros.size(); ++length) {
    EXPECT_TRUE(seen.insert(hash_of(std::string_view(zeros).substr(0, length))).second) << length;
  }
}

TEST(Hash64, DiffersForEverySingleFlippedBit) {
  std::string text(67, 'a');
  std::set<std::uint64_t> seen{hash_of(text)};
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_TRUE(seen.insert(hash_of(text)).second) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
}

TEST(Hash64, DependsOnTheOrderOfWords) {
  EXPECT_NE(hash_of("aaaaaaaabbbbbbbb"), hash_of("bbbbbbbbaaaaaaaa"));
}

TEST(Hash64, StreamsInMultiplesOfEightBytes) {
  const std::string text = "0123456789abcdefghijklmnopqrstuvwxyz";
  for (std::size_t cut = 0; cut < text.size(); cut += 8) {
    Hash64 hash;
    hash.update(text.data(), cut);
    hash.update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(hash.digest(), hash_of(text)) << cut;
  }
}

TEST(Hash64, FlipsAboutHalfTheBitsForOneChangedBit) {
  int flipped = 0;
  constexpr int kTrials = 512;
  for (int i = 0; i < kTrials; ++i) {
    std::string text(64, static_cast<char>(i));
    const std::uint64_t before = hash_of(text);
    text[static_cast<std::size_t>(i / 8)] ^= static_cast<char>(1 << (i % 8));
    flipped += std::popcount(before ^ hash_of(text));
  }
  EXPECT_GT(flipped, kTrials * 28);
  EXPECT_LT(flipped, kTrials * 36);
}

}  // namespace
}  // namespace segue::core
