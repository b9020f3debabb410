// SPDX-License-Identifier: Apache-2.0
// Prompt lookup: the tokens that followed the most recent earlier occurrence of the context's last
// n tokens, for the largest n that occurs (Saxena 2023, "Prompt lookup decoding"). Needs no model;
// its index grows with the committed tokens only, so nothing ever rolls back, and a step costs a
// few hash probes at any length of context.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "speculate/drafter.h"

namespace segue::speculate {

struct NgramOptions {
  int longest = 6;   // n tried first
  int shortest = 2;  // n tried last; 1 <= shortest <= longest <= 16
};

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(NgramOptions options = {});

  std::string_view name() const override { return "ngram"; }
  bool ready() const override { return true; }
  void prepare(std::int64_t sequence, std::span<const std::int32_t> context) override;

  /// Fills `out` whenever something matches: past the end of the context the draft continues with
  /// itself, as a repeating text does. The grade follows n: shortest 0, longest 2, between 1.
  void draft(std::span<DraftJob> jobs) override;

  void rewind(std::int64_t sequence, std::int64_t tokens) override;
  void fork(std::int64_t from, std::int64_t to) override;
  void forget(std::int64_t sequence) override { texts_.erase(sequence); }

 private:
  /// Most recent end position by n-gram hash; open addressing, grows by doubling.
  class Index {
   public:
    void put(std::uint64_t hash, std::int32_t end);
    std::int32_t find(std::uint64_t hash) const;  // -1: absent

   private:
    struct Slot {
      std::uint64_t hash;
      std::int32_t end;  // 0: free (an n-gram never ends at 0)
    };
    void grow();
    std::vector<Slot> slots_;
    std::size_t used_ = 0;
  };

  /// What is known of one sequence.
  struct Text {
    std::vector<Index> indexes;  // [longest - shortest + 1]
    std::int64_t indexed = 0;    // n-grams that end at or before this position are in the indexes
  };

  Text& text_of(std::int64_t sequence, std::span<const std::int32_t> context);
  Draft look_up(const Text& text, std::span<const std::int32_t> context,
                std::span<std::int32_t> out) const;

  NgramOptions options_;
  std::unordered_map<std::int64_t, Text> texts_;
};

}  // namespace segue::speculate
