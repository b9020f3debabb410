// SPDX-License-Identifier: Apache-2.0
// The KV cache: pools of pages, sequences with a page table per pool, and the rules by which pages
// come and go. It moves page numbers, not rows: rows are written with write.h and read by kernels,
// both through view.h. Used from one thread at a time (the engine's step loop); views and tables
// may be read by many threads in between.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kv/sizing.h"
#include "kv/view.h"
#include "segue/error.h"

namespace segue::kv {

/// Names a sequence of one cache. Never reused, so a stale id is caught.
struct SequenceId {
  std::int64_t value = -1;
  friend bool operator==(SequenceId, SequenceId) = default;
};

#ifdef NDEBUG
inline constexpr bool kPoisonByDefault = false;
#else
inline constexpr bool kPoisonByDefault = true;
#endif

struct CacheOptions {
  std::int64_t budget_bytes = std::numeric_limits<std::int64_t>::max();
  int max_rows = 512;  // largest reserve(); bounds the pages of a windowed pool (Demand::max_rows)
  bool poison = kPoisonByDefault;  // fill pages with NaN when they are handed out and when they are
                                   // given back
};

/// A sequence goes through reserve -> (write rows, run the step) -> commit, once per step. Rows
/// that were reserved and written but not committed (rejected drafts) cost nothing to forget: the
/// next reserve covers their positions again.
class Cache {
 public:
  /// Reserves the address space of all pools at once; memory is touched when pages are first used.
  /// kNoMemory with the sizes when the pools exceed the budget or the system refuses; kUsage for
  /// impossible specs.
  static Result<Cache> create(std::vector<PoolSpec> specs, const CacheOptions& options = {});
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;
  ~Cache();

  SequenceId create_sequence();
  void destroy(SequenceId id);

  /// Makes positions [length, length + rows) writable in every pool: fresh pages, and a private
  /// copy of a page that is shared. All or nothing; kNoMemory with the numbers when a pool has too
  /// few free pages. 1 <= rows <= max_rows.
  Status reserve(SequenceId id, std::int64_t rows);

  /// The first `rows` of the reserved rows are now part of the sequence (0 is allowed). Windowed
  /// pools give back pages that neither the window of the committed length nor the one key before
  /// it (an assistant reads it) reaches.
  void commit(SequenceId id, std::int64_t rows);

  /// Forgets positions from `length` on and gives back all pages beyond it, reserved ones too.
  /// kUnsupported, with the positions, when a windowed pool no longer has the keys that the shorter
  /// length would see; 0 always works.
  Status truncate(SequenceId id, std::int64_t length);

  /// A new sequence that holds the first `tokens` committed positions of `from`: full pages are
  /// shared by reference count, the last partial page is copied. kUnsupported when a windowed pool
  /// no longer has the window before `tokens` (fork while the prefix is the whole sequence, and it
  /// has); kNoMemory when there is no page for the copy.
  Result<SequenceId> share_prefix(SequenceId from, std::int64_t tokens);

  std::int64_t length(SequenceId id) const;
  /// Rows that could be reserved now without running out of pages, at most `rows`. What a scheduler
  /// asks.
  std::int64_t reservable(SequenceId id, std::int64_t rows) const;

  /// Covers [0, length + reserved rows); pages that the window has left behind read -1. Valid until
  /// the next call that changes this sequence.
  PageTable table(SequenceId id, int pool) const;
  /// Valid as long as the cache.
  View view(int pool, int layer) const;

  int pools() const;
  const PoolSpec& spec(int pool) const;
  int sequences() const;
  std::int64_t pages_in_use(int pool) const;
  std::int64_t pages_in_use(SequenceId id, int pool) const;  // shared pages count for every holder
  std::int64_t bytes() const;                                // reserved address space of all pools
  std::int64_t touched_bytes() const;  // of pages that were ever used: resident at most

  /// Empty when every page is either free or referenced exactly as often as counted, tables agree
  /// with lengths and windowed pools hold at most window + max_rows + one page per sequence; else
  /// the first thing that is wrong.
  std::string check_integrity() const;

 private:
  struct State;
  explicit Cache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace segue::kv
