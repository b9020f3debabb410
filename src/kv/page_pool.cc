// SPDX-License-Identifier: Apache-2.0
// Linear scans over reference counts: they run when a sequence starts or meets a neighbour, not per
// step, and take microseconds for the pools that fit into a machine.
#include "kv/page_pool.h"

#include "core/check.h"

namespace segue::kv {

PagePool::PagePool(int pages, Placement placement)
    : placement_(placement),
      references_(static_cast<std::size_t>(pages), 0),
      touched_(static_cast<std::size_t>(pages), false),
      free_count_(pages) {}

std::int32_t PagePool::allocate(std::int32_t after) {
  if (free_count_ == 0) return -1;
  std::int32_t page = after + 1;
  if (after < 0 || page >= pages() || !is_free(page)) {
    page = placement_ == Placement::kCompact ? lowest_free() : in_longest_run();
  } else if (placement_ == Placement::kCompact && !touched_[static_cast<std::size_t>(page)]) {
    page = lowest_free();  // a window that moves on reuses what it gave back instead of walking
                           // through the pool
  }
  const auto index = static_cast<std::size_t>(page);
  references_[index] = 1;
  --free_count_;
  if (!touched_[index]) {
    touched_[index] = true;
    ++touched_count_;
  }
  return page;
}

void PagePool::retain(std::int32_t page) {
  DCHECK(page >= 0 && page < pages() && !is_free(page));
  ++references_[static_cast<std::size_t>(page)];
}

bool PagePool::release(std::int32_t page) {
  CHECK(page >= 0 && page < pages() && !is_free(page));
  if (--references_[static_cast<std::size_t>(page)] > 0) return false;
  ++free_count_;
  return true;
}

std::int32_t PagePool::lowest_free() const {
  std::int32_t page = 0;
  while (!is_free(page)) ++page;
  return page;
}

std::int32_t PagePool::in_longest_run() const {
  std::int32_t best = 0;
  std::int32_t best_length = 0;
  for (std::int32_t begin = 0; begin < pages();) {
    std::int32_t end = begin;
    while (end < pages() && is_free(end)) ++end;
    if (end - begin > best_length) {
      best = begin;
      best_length = end - begin;
    }
    begin = end + 1;
  }
  // The owner of the page before the run may want to grow into its first half.
  return best == 0 ? 0 : best + best_length / 2;
}

}  // namespace segue::kv
