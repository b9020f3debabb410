// SPDX-License-Identifier: Apache-2.0
// Random operations against a shadow that knows what every position must hold. Freed and unwritten
// pages are NaN, so a row that landed on a wrong page, or a page that was given back too early,
// shows at the next comparison.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kv/cache.h"
#include "kv/write.h"

namespace segue::kv {
namespace {

constexpr int kMaxRows = 48;

struct Shadow {
  std::vector<int> rows;  // what was written at each committed position
};

class Play {
 public:
  explicit Play(std::uint32_t seed) : random_(seed) {
    const int page_sizes[] = {8, 16, 24, 64};
    const Layout layouts[] = {Layout::kTiled16, Layout::kTokenMajor, Layout::kHeadMajor};
    std::vector<PoolSpec> specs;
    for (const int window : {0, below(3) == 0 ? 1 : 1 + below(100), 0}) {
      PoolSpec spec{.name = window > 0 ? "sliding" : "global",
                    .layers = 1 + below(2),
                    .kv_heads = 1 + below(2),
                    .head_dim = 8 + 8 * below(2),
                    .window = window,
                    .type = KvType::kF32,
                    .layout = layouts[below(3)],
                    .page_size = page_sizes[below(4)]};
      spec.pages = 2 + below(600 / spec.page_size);
      specs.push_back(spec);
    }
    cache_.emplace(Cache::create(specs, {.max_rows = kMaxRows, .poison = true}).value());
  }

  void step() {
    const int action = below(100);
    if (shadows_.empty() || action < 6) {
      shadows_[cache_->create_sequence().value] = {};
    } else if (action < 10) {
      const SequenceId id = any();
      cache_->destroy(id);
      shadows_.erase(id.value);
    } else if (action < 20) {
      truncate(any());
    } else if (action < 30 && shadows_.size() < 12) {
      share(any());
    } else {
      decode(any());
    }
  }

  void check() {
    ASSERT_EQ(cache_->check_integrity(), "");
    for (const auto& [value, shadow] : shadows_) {
      const SequenceId id{value};
      const auto length = static_cast<std::int64_t>(shadow.rows.size());
      ASSERT_EQ(cache_->length(id), length);
      for (int pool = 0; pool < cache_->pools(); ++pool) {
        const int window = cache_->spec(pool).window;
        const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, length - window) : 0;
        for (std::int64_t p = first; p < length; ++p)
          check_position(id, pool, p, shadow.rows[static_cast<std::size_t>(p)]);
      }
    }
    check_free_pages();
  }

  int refusals() const { return refusals_; }

 private:
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  SequenceId any() {
    auto it = shadows_.begin();
    std::advance(it, below(static_cast<int>(shadows_.size())));
    return {it->first};
  }

  static float element(int row, int pool, int layer, int head, int dim, bool value) {
    return static_cast<float>(row * 16 + pool * 4 + layer * 2 + (value ? 1 : 0)) +
           static_cast<float>(head * 32 + dim) / 128.0f;
  }

  void decode(SequenceId id) {
    const std::int64_t rows = below(4) == 0 ? 1 + below(kMaxRows) : 1 + below(9);
    const std::int64_t fits = cache_->reservable(id, rows);
    const Status status = cache_->reserve(id, rows);
    ASSERT_EQ(status.ok(), fits == rows);
    if (!status.ok()) {
      ASSERT_EQ(status.error().code, ErrorCode::kNoMemory);
      ++refusals_;
      return;
    }
    const std::int64_t length = cache_->length(id);
    const int first_row = next_row_;
    next_row_ += static_cast<int>(rows);
    for (int pool = 0; pool < cache_->pools(); ++pool) write(id, pool, length, rows, first_row);
    const int accepted = below(2) == 0 ? static_cast<int>(rows) : below(static_cast<int>(rows) + 1);
    cache_->commit(id, accepted);
    for (int i = 0; i < accepted; ++i) shadows_[id.value].rows.push_back(first_row + i);
  }

  void write(SequenceId id, int pool, std::int64_t position, std::int64_t rows, int first_row) {
    const PoolSpec& spec = cache_->spec(pool);
    const auto width = static_cast<std::size_t>(spec.kv_heads * spec.head_dim);
    std::vector<float> k(static_cast<std::size_t>(rows) * width);
    std::vector<float> v(k.size());
    for (int layer = 0; layer < spec.layers; ++layer) {
      std::size_t i = 0;
      for (int row = 0; row < rows; ++row) {
        for (int head = 0; head < spec.kv_heads; ++head) {
          for (int d = 0; d < spec.head_dim; ++d, ++i) {
            k[i] = element(first_row + row, pool, layer, head, d, false);
            v[i] = element(first_row + row, pool, layer, head, d, true);
          }
        }
      }
      const auto stride = static_cast<std::int64_t>(width);
      write_rows(cache_->view(pool, layer), cache_->table(id, pool), position, rows,
                 {k.data(), v.data(), stride, stride});
    }
  }

  void truncate(SequenceId id) {
    const std::int64_t length = cache_->length(id);
    const std::int64_t shorter = below(4) == 0 ? 0 : std::max<std::int64_t>(0, length - below(12));
    bool reachable = true;
    for (int pool = 0; pool < cache_->pools(); ++pool) reachable &= holds_window(id, pool, shorter);
    const Status status = cache_->truncate(id, shorter);
    ASSERT_EQ(status.ok(), reachable);
    if (status.ok()) shadows_[id.value].rows.resize(static_cast<std::size_t>(shorter));
  }

  /// Are the keys that a sequence of `length` would see (and the one before) still on pages?
  bool holds_window(SequenceId id, int pool, std::int64_t length) const {
    const PoolSpec& spec = cache_->spec(pool);
    if (length == 0 || spec.window == 0) return true;
    return cache_->table(id, pool)
                   .pages[std::max<std::int64_t>(0, length - spec.window) / spec.page_size] >= 0 ||
           length - spec.window >= cache_->length(id);
  }

  void share(SequenceId from) {
    const std::int64_t length = cache_->length(from);
    const std::int64_t tokens = below(2) == 0 ? length : below(static_cast<int>(length) + 1);
    const auto shared = cache_->share_prefix(from, tokens);
    if (!shared.ok()) {
      ++refusals_;
      return;
    }
    const std::vector<int>& rows = shadows_[from.value].rows;
    shadows_[shared->value].rows.assign(rows.begin(), rows.begin() + tokens);
  }

  void check_position(SequenceId id, int pool, std::int64_t position, int row) const {
    const PoolSpec& spec = cache_->spec(pool);
    const PageTable table = cache_->table(id, pool);
    const int layer = static_cast<int>(position) % spec.layers;
    const int head = static_cast<int>(position) % spec.kv_heads;
    const int d = static_cast<int>(position * 5) % spec.head_dim;
    const View view = cache_->view(pool, layer);
    ASSERT_EQ(read_k(view, table, position, head, d), element(row, pool, layer, head, d, false))
        << position;
    ASSERT_EQ(read_v(view, table, position, head, d), element(row, pool, layer, head, d, true))
        << position;
  }

  /// A page that no table names is NaN, or zero because nobody ever had it.
  void check_free_pages() const {
    for (int pool = 0; pool < cache_->pools(); ++pool) {
      std::set<std::int32_t> named;
      for (const auto& [value, shadow] : shadows_) {
        const PageTable table = cache_->table({value}, pool);
        named.insert(table.pages, table.pages + table.count);
      }
      for (std::int32_t page = 0; page < cache_->spec(pool).pages; ++page) {
        if (named.contains(page)) continue;
        const float k = read_k(cache_->view(pool, 0), {&page, 1}, 1, 0, 2);
        ASSERT_TRUE(std::isnan(k) || k == 0.0f) << "pool " << pool << " page " << page;
      }
    }
  }

  std::mt19937 random_;
  std::optional<Cache> cache_;
  std::map<std::int64_t, Shadow> shadows_;
  int next_row_ = 1;
  int refusals_ = 0;
};

TEST(CacheRandom, EveryVisibleRowIsWhereItWasWrittenAfterAnySequenceOfOperations) {
  int refusals = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    Play play(seed);
    for (int step = 0; step < 250; ++step) {
      play.step();
      play.check();
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    refusals += play.refusals();
  }
  EXPECT_GT(refusals,
            100);  // the pools are small enough that running out of pages is part of the play
}

}  // namespace
}  // namespace segue::kv
