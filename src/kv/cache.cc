// SPDX-License-Identifier: Apache-2.0
// Sequences, page tables and the life of a page.
//
// A page is written only by a sequence that holds its sole reference. Sharing hands out full pages;
// a page that is partly kept after truncate() may still be shared, so reserve() copies it before
// new rows go there.
#include "kv/cache.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"
#include "kv/page_pool.h"
#include "kv/storage.h"

namespace segue::kv {
namespace {

struct Pool {
  PoolSpec spec;
  PagePool pages;
  Storage storage;
};

/// A sequence's pages in one pool.
struct Table {
  std::vector<std::int32_t> pages;  // logical -> physical; -1 before `first`
  std::int64_t first = 0;           // the first logical page that is still held

  std::int64_t count() const { return static_cast<std::int64_t>(pages.size()); }
  std::int32_t& at(std::int64_t logical) { return pages[static_cast<std::size_t>(logical)]; }
  std::int32_t at(std::int64_t logical) const { return pages[static_cast<std::size_t>(logical)]; }
};

struct Sequence {
  std::int64_t length = 0;    // committed
  std::int64_t reserved = 0;  // rows after it that may be committed
  std::vector<Table> tables;  // [pools]
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The first logical page that a sequence of `length` committed positions must hold: the next row
/// sees length - window + 1 .. length, and one key more stays for an assistant that reads at the
/// last committed position.
std::int64_t first_needed_page(const PoolSpec& spec, std::int64_t length) {
  if (spec.window == 0) return 0;
  return std::max<std::int64_t>(0, length - spec.window) / spec.page_size;
}

Error window_gone(const Pool& pool, const Table& table, std::int64_t length) {
  return Error{
      ErrorCode::kUnsupported,
      fmt::format("length {} needs keys from {} on in KV pool '{}' (window {}), which starts at {}",
                  length, first_needed_page(pool.spec, length) * pool.spec.page_size,
                  pool.spec.name, pool.spec.window, table.first * pool.spec.page_size)};
}

}  // namespace

struct Cache::State {
  CacheOptions options;
  std::vector<Pool> pools;
  std::unordered_map<std::int64_t, Sequence> sequences;
  std::int64_t next_id = 0;

  Sequence& find(SequenceId id) {
    const auto found = sequences.find(id.value);
    CHECK(found != sequences.end());
    return found->second;
  }

  std::int32_t allocate(Pool& pool, std::int32_t after) const {
    const std::int32_t page = pool.pages.allocate(after);
    CHECK(page >= 0);  // callers count first
    if (options.poison) pool.storage.poison_page(page);
    return page;
  }

  void release(Pool& pool, std::int32_t page) const {
    if (pool.pages.release(page) && options.poison) pool.storage.poison_page(page);
  }

  void release_from(Pool& pool, Table& table, std::int64_t logical) const {
    for (std::int64_t i = std::max(logical, table.first); i < table.count(); ++i)
      release(pool, table.at(i));
    if (logical < table.count()) table.pages.resize(static_cast<std::size_t>(logical));
    if (logical == 0) table.first = 0;
  }

  /// Pages that `rows` more rows take out of the pool.
  static std::int64_t pages_needed(const Pool& pool, const Table& table, std::int64_t length,
                                   std::int64_t rows) {
    if (rows == 0) return 0;
    const std::int64_t fresh = ceil_div(length + rows, pool.spec.page_size) - table.count();
    return std::max<std::int64_t>(0, fresh) + (writes_shared_page(pool, table, length) ? 1 : 0);
  }

  static bool writes_shared_page(const Pool& pool, const Table& table, std::int64_t length) {
    const std::int64_t logical = length / pool.spec.page_size;
    return logical < table.count() && pool.pages.references(table.at(logical)) > 1;
  }

  void extend(Pool& pool, Table& table, std::int64_t length, std::int64_t rows) const {
    if (writes_shared_page(pool, table, length)) {
      std::int32_t& page = table.at(length / pool.spec.page_size);
      const std::int32_t copy = allocate(pool, page);
      pool.storage.copy_page(page, copy);
      release(pool, page);
      page = copy;
    }
    const std::int64_t end = ceil_div(length + rows, pool.spec.page_size);
    while (table.count() < end) {
      table.pages.push_back(allocate(pool, table.pages.empty() ? -1 : table.pages.back()));
    }
  }

  std::string check_table(const Pool& pool, const Sequence& sequence, const Table& table,
                          std::vector<std::int32_t>& counted) const;
};

Cache::Cache(std::unique_ptr<State> state) : state_(std::move(state)) {}
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;
Cache::~Cache() = default;

Result<Cache> Cache::create(std::vector<PoolSpec> specs, const CacheOptions& options) {
  CHECK(options.max_rows >= 1);
  auto state = std::make_unique<State>();
  state->options = options;
  std::int64_t total = 0;
  std::string per_pool;
  for (const PoolSpec& spec : specs) {
    if (Status status = validate(spec); !status) return status.error();
    const std::int64_t bytes = pool_bytes(spec);
    if (__builtin_add_overflow(total, bytes, &total))
      total = std::numeric_limits<std::int64_t>::max();
    per_pool += fmt::format("{}'{}' {} ({} pages)", per_pool.empty() ? "" : ", ", spec.name,
                            bytes_text(bytes), spec.pages);
  }
  if (total > options.budget_bytes) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("the KV cache needs {}: {}; the budget is {}", bytes_text(total),
                             per_pool, bytes_text(options.budget_bytes))};
  }
  state->pools.reserve(specs.size());
  for (PoolSpec& spec : specs) {
    Result<Storage> storage = Storage::create(spec);
    if (!storage) return storage.error();
    const Placement placement = spec.window > 0 ? Placement::kCompact : Placement::kSpread;
    PagePool pages(spec.pages, placement);
    state->pools.push_back(Pool{std::move(spec), std::move(pages), std::move(storage).value()});
  }
  return Cache(std::move(state));
}

SequenceId Cache::create_sequence() {
  const SequenceId id{state_->next_id++};
  state_->sequences[id.value].tables.resize(state_->pools.size());
  return id;
}

void Cache::destroy(SequenceId id) {
  Sequence& sequence = state_->find(id);
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    state_->release_from(state_->pools[p], sequence.tables[p], 0);
  }
  state_->sequences.erase(id.value);
}

Status Cache::reserve(SequenceId id, std::int64_t rows) {
  CHECK(rows >= 1 && rows <= state_->options.max_rows);
  Sequence& sequence = state_->find(id);
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    const Pool& pool = state_->pools[p];
    const std::int64_t needed =
        State::pages_needed(pool, sequence.tables[p], sequence.length, rows);
    if (needed > pool.pages.free_pages()) {
      return Error{ErrorCode::kNoMemory,
                   fmt::format("KV pool '{}' has {} of {} pages free ({} tokens each), {} more "
                               "rows at length {} need {}",
                               pool.spec.name, pool.pages.free_pages(), pool.spec.pages,
                               pool.spec.page_size, rows, sequence.length, needed)};
    }
  }
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    state_->extend(state_->pools[p], sequence.tables[p], sequence.length, rows);
  }
  sequence.reserved = rows;
  return {};
}

std::int64_t Cache::reservable(SequenceId id, std::int64_t rows) const {
  const Sequence& sequence = state_->find(id);
  std::int64_t result = std::clamp<std::int64_t>(rows, 0, state_->options.max_rows);
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    const Pool& pool = state_->pools[p];
    const Table& table = sequence.tables[p];
    std::int64_t spare = pool.pages.free_pages();
    if (State::writes_shared_page(pool, table, sequence.length)) --spare;
    const std::int64_t end = spare < 0 ? 0 : (table.count() + spare) * pool.spec.page_size;
    result = std::clamp<std::int64_t>(end - sequence.length, 0, result);
  }
  return result;
}

void Cache::commit(SequenceId id, std::int64_t rows) {
  Sequence& sequence = state_->find(id);
  CHECK(rows >= 0 && rows <= sequence.reserved);
  sequence.length += rows;
  sequence.reserved = 0;
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    Pool& pool = state_->pools[p];
    Table& table = sequence.tables[p];
    for (const std::int64_t needed = first_needed_page(pool.spec, sequence.length);
         table.first < needed; ++table.first) {
      state_->release(pool, std::exchange(table.at(table.first), -1));
    }
  }
}

Status Cache::truncate(SequenceId id, std::int64_t length) {
  Sequence& sequence = state_->find(id);
  CHECK(length >= 0 && length <= sequence.length);
  for (std::size_t p = 0; p < state_->pools.size() && length > 0; ++p) {
    const Pool& pool = state_->pools[p];
    const Table& table = sequence.tables[p];
    if (first_needed_page(pool.spec, length) < table.first) return window_gone(pool, table, length);
  }
  sequence.length = length;
  sequence.reserved = 0;
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    Pool& pool = state_->pools[p];
    state_->release_from(pool, sequence.tables[p], ceil_div(length, pool.spec.page_size));
  }
  return {};
}

Result<SequenceId> Cache::share_prefix(SequenceId from, std::int64_t tokens) {
  CHECK(tokens >= 0 && tokens <= state_->find(from).length);
  const SequenceId id = create_sequence();
  Sequence& copy = state_->find(id);
  const Sequence& original = state_->find(from);
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    Pool& pool = state_->pools[p];
    const Table& source = original.tables[p];
    Table& table = copy.tables[p];
    const std::int64_t first = tokens > 0 ? first_needed_page(pool.spec, tokens) : 0;
    const std::int64_t full = tokens / pool.spec.page_size;
    const bool partial = tokens % pool.spec.page_size != 0;
    Error refusal;
    if (tokens > 0 && first < source.first) {
      refusal = window_gone(pool, source, tokens);
    } else if (partial && pool.pages.free_pages() == 0) {
      refusal = {ErrorCode::kNoMemory,
                 fmt::format("KV pool '{}' has none of {} pages free, sharing {} tokens needs one "
                             "for the last partial "
                             "page",
                             pool.spec.name, pool.spec.pages, tokens)};
    }
    if (!refusal.message.empty()) {
      destroy(id);
      return refusal;
    }
    table.pages.assign(static_cast<std::size_t>(full), -1);
    table.first = first;
    for (std::int64_t i = first; i < full; ++i) {
      table.at(i) = source.at(i);
      pool.pages.retain(source.at(i));
    }
    if (partial) {
      const std::int32_t page = state_->allocate(pool, full > first ? table.at(full - 1) : -1);
      pool.storage.copy_page(source.at(full), page);
      table.pages.push_back(page);
    }
  }
  copy.length = tokens;
  return id;
}

std::int64_t Cache::length(SequenceId id) const { return state_->find(id).length; }

PageTable Cache::table(SequenceId id, int pool) const {
  const Table& table = state_->find(id).tables.at(static_cast<std::size_t>(pool));
  return {table.pages.data(), static_cast<std::int32_t>(table.count())};
}

View Cache::view(int pool, int layer) const {
  return state_->pools.at(static_cast<std::size_t>(pool)).storage.view(layer);
}

int Cache::pools() const { return static_cast<int>(state_->pools.size()); }

const PoolSpec& Cache::spec(int pool) const {
  return state_->pools.at(static_cast<std::size_t>(pool)).spec;
}

int Cache::sequences() const { return static_cast<int>(state_->sequences.size()); }

std::int64_t Cache::pages_in_use(int pool) const {
  return state_->pools.at(static_cast<std::size_t>(pool)).pages.used_pages();
}

std::int64_t Cache::pages_in_use(SequenceId id, int pool) const {
  const Table& table = state_->find(id).tables.at(static_cast<std::size_t>(pool));
  return table.count() - table.first;
}

std::int64_t Cache::bytes() const {
  std::int64_t total = 0;
  for (const Pool& pool : state_->pools) total += pool.storage.bytes();
  return total;
}

std::int64_t Cache::touched_bytes() const {
  std::int64_t total = 0;
  for (const Pool& pool : state_->pools)
    total += pool.pages.touched_pages() * page_bytes(pool.spec);
  return total;
}

std::string Cache::State::check_table(const Pool& pool, const Sequence& sequence,
                                      const Table& table,
                                      std::vector<std::int32_t>& counted) const {
  const PoolSpec& spec = pool.spec;
  const std::int64_t end = sequence.length + sequence.reserved;
  if (table.count() < ceil_div(end, spec.page_size)) {
    return fmt::format("table of {} pages does not cover {} positions", table.count(), end);
  }
  if (table.first > table.count() ||
      (sequence.length > 0 && table.first != first_needed_page(spec, sequence.length))) {
    return fmt::format("first held page is {}, length {} needs {}", table.first, sequence.length,
                       first_needed_page(spec, sequence.length));
  }
  const std::int64_t bound =
      pages_per_sequence(spec, std::numeric_limits<std::int64_t>::max(), options.max_rows);
  if (spec.window > 0 && table.count() - table.first > bound) {
    return fmt::format("{} pages held, window {} and {} rows allow {}", table.count() - table.first,
                       spec.window, options.max_rows, bound);
  }
  for (std::int64_t i = 0; i < table.count(); ++i) {
    const std::int32_t page = table.at(i);
    if (i < table.first) {
      if (page != -1) return fmt::format("page {} before the window is not given back", i);
      continue;
    }
    if (page < 0 || page >= spec.pages)
      return fmt::format("logical page {} is {}, outside the pool", i, page);
    if (i * spec.page_size >= sequence.length && pool.pages.references(page) != 1) {
      return fmt::format("logical page {} holds no committed row, but is shared", i);
    }
    ++counted[static_cast<std::size_t>(page)];
  }
  return {};
}

std::string Cache::check_integrity() const {
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    const Pool& pool = state_->pools[p];
    std::vector<std::int32_t> counted(static_cast<std::size_t>(pool.spec.pages), 0);
    for (const auto& [id, sequence] : state_->sequences) {
      const std::string wrong = state_->check_table(pool, sequence, sequence.tables[p], counted);
      if (!wrong.empty())
        return fmt::format("pool '{}', sequence {}: {}", pool.spec.name, id, wrong);
    }
    std::int32_t used = 0;
    for (std::int32_t page = 0; page < pool.spec.pages; ++page) {
      const std::int32_t count = counted[static_cast<std::size_t>(page)];
      used += count > 0 ? 1 : 0;
      if (count != pool.pages.references(page)) {
        return fmt::format("pool '{}': page {} is referenced {} times, counted {}", pool.spec.name,
                           page, count, pool.pages.references(page));
      }
    }
    if (used != pool.pages.used_pages()) {
      return fmt::format("pool '{}': {} pages used, counted {}", pool.spec.name, used,
                         pool.pages.used_pages());
    }
  }
  return {};
}

}  // namespace segue::kv
