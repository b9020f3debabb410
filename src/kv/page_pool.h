// SPDX-License-Identifier: Apache-2.0
// Which pages of a pool are free and how often each of the others is referenced. Numbers only:
// memory belongs to storage.h, the meaning of a page to the page tables.
#pragma once

#include <cstdint>
#include <vector>

namespace segue::kv {

/// Where a page goes whose predecessor has no free neighbour.
enum class Placement : std::uint8_t {
  kSpread,   // into the middle of the longest free run: sequences that grow keep room to stay
             // contiguous
  kCompact,  // lowest free page: windows are short, few touched pages matter more than long runs
};

class PagePool {
 public:
  PagePool(int pages, Placement placement);

  /// A free page with one reference, `after` + 1 when that is free (`after` = -1: no predecessor);
  /// -1: none is free.
  std::int32_t allocate(std::int32_t after);
  void retain(std::int32_t page);
  /// Drops one reference; true when the page is free now.
  bool release(std::int32_t page);

  int references(std::int32_t page) const { return references_[static_cast<std::size_t>(page)]; }
  std::int32_t pages() const { return static_cast<std::int32_t>(references_.size()); }
  std::int32_t free_pages() const { return free_count_; }
  std::int32_t used_pages() const { return pages() - free_count_; }
  /// Pages that were ever handed out.
  std::int32_t touched_pages() const { return touched_count_; }

 private:
  bool is_free(std::int32_t page) const { return references_[static_cast<std::size_t>(page)] == 0; }
  std::int32_t lowest_free() const;
  std::int32_t in_longest_run() const;

  Placement placement_;
  std::vector<std::int32_t> references_;  // [pages]
  std::vector<bool> touched_;             // [pages]
  std::int32_t free_count_ = 0;
  std::int32_t touched_count_ = 0;
};

}  // namespace segue::kv
