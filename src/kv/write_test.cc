// SPDX-License-Identifier: Apache-2.0
#include "kv/write.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "kv/storage.h"

namespace segue::kv {
namespace {

float rounded(KvType type, float value) {
  switch (type) {
    case KvType::kF32: return value;
    case KvType::kF16: return core::f16_to_f32(core::f32_to_f16(value));
    case KvType::kBF16: return core::bf16_to_f32(core::f32_to_bf16(value));
  }
  return 0;
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

std::vector<float> random_rows(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct Case {
  Layout layout;
  KvType type;
  int kv_heads;
  int head_dim;
  int page_size;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Layout layout : {Layout::kTiled16, Layout::kTokenMajor, Layout::kHeadMajor}) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
      all.push_back({layout, type, 1, 256, 64});
      all.push_back({layout, type, 3, 80, 24});
      all.push_back({layout, type, 2, 96, 8});
      all.push_back({layout, type, 1, 64, 784});
      all.push_back({layout, type, 1, 512, 16});
    }
  }
  for (const KvType type : {KvType::kF16, KvType::kBF16}) {
    all.push_back({Layout::kSwizzled8, type, 2, 128, 16});
    all.push_back({Layout::kSwizzled8, type, 1, 512, 24});
  }
  return all;
}

class WriteRows : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kPages = 5;
  WriteRows() {
    const Case& c = GetParam();
    PoolSpec spec{.name = "test",
                  .layers = 2,
                  .kv_heads = c.kv_heads,
                  .head_dim = c.head_dim,
                  .type = c.type,
                  .layout = c.layout,
                  .page_size = c.page_size,
                  .pages = kPages};
    storage_.emplace(Storage::create(spec).value());
    for (std::int32_t page = 0; page < kPages; ++page) storage_->poison_page(page);
  }
  std::optional<Storage> storage_;
  std::int32_t pages_[3] = {3, 0, 4};
  PageTable table_{pages_, 3};
};

TEST_P(WriteRows, ReadBackWhatWasWrittenAndNothingElseChanges) {
  const Case& c = GetParam();
  const View view = storage_->view(1);
  const std::int64_t width = std::int64_t{c.kv_heads} * c.head_dim;
  const std::int64_t k_stride = width + 13;
  const std::int64_t v_stride = width + 5;
  std::vector<bool> written(static_cast<std::size_t>(3 * c.page_size), false);
  std::vector<float> k_shadow(written.size() * static_cast<std::size_t>(width));
  std::vector<float> v_shadow(k_shadow.size());
  const std::int64_t total = 3 * c.page_size;
  std::uint32_t seed = 1;
  // Blocks over tile and page limits, single rows, an odd block; then some of the rows again, as
  // after a rollback.
  std::int64_t position = 1;
  for (const std::int64_t count : {1, 7, 16, 33, 1, 5, 40}) {
    const std::int64_t rows = std::min(count, total - position);
    if (rows <= 0) break;
    const std::vector<float> k = random_rows(rows * k_stride, seed++);
    const std::vector<float> v = random_rows(rows * v_stride, seed++);
    write_rows(view, table_, position, rows, {k.data(), v.data(), k_stride, v_stride});
    for (std::int64_t row = 0; row < rows; ++row) {
      written[static_cast<std::size_t>(position + row)] = true;
      for (std::int64_t i = 0; i < width; ++i) {
        k_shadow[static_cast<std::size_t>((position + row) * width + i)] =
            k[static_cast<std::size_t>(row * k_stride + i)];
        v_shadow[static_cast<std::size_t>((position + row) * width + i)] =
            v[static_cast<std::size_t>(row * v_stride + i)];
      }
    }
    position += std::max<std::int64_t>(1, rows - 2);
  }
  for (std::int64_t p = 0; p < total; ++p) {
    for (int head = 0; head < c.kv_heads; ++head) {
      for (int d = 0; d < c.head_dim; ++d) {
        const float k = read_k(view, table_, p, head, d);
        const float v = read_v(view, table_, p, head, d);
        if (!written[static_cast<std::size_t>(p)]) {
          ASSERT_TRUE(std::isnan(k) && std::isnan(v))
              << "position " << p << " head " << head << " dim " << d;
          continue;
        }
        const auto i = static_cast<std::size_t>(p * width + head * c.head_dim + d);
        ASSERT_EQ(bits(k), bits(rounded(c.type, k_shadow[i])))
            << "position " << p << " head " << head << " dim " << d;
        ASSERT_EQ(bits(v), bits(rounded(c.type, v_shadow[i])))
            << "position " << p << " head " << head << " dim " << d;
      }
    }
  }
  // Pages 1 and 2 and the other layer belong to somebody else.
  const auto poisoned = [](const std::byte* from, std::int64_t bytes) {
    return std::all_of(from, from + bytes, [](std::byte byte) { return byte == std::byte{0xff}; });
  };
  EXPECT_TRUE(poisoned(view.k + view.page_stride, 2 * view.page_stride));
  EXPECT_TRUE(poisoned(storage_->view(0).k, kPages * view.page_stride));
}

TEST_P(WriteRows, ABlockAtOnceEqualsRowByRow) {
  const Case& c = GetParam();
  const std::int64_t width = std::int64_t{c.kv_heads} * c.head_dim;
  const std::int64_t rows = 2 * c.page_size;
  const std::vector<float> k = random_rows(rows * width, 11);
  const std::vector<float> v = random_rows(rows * width, 12);
  write_rows(storage_->view(0), table_, 3, rows, {k.data(), v.data(), width, width});
  for (std::int64_t row = 0; row < rows; ++row) {
    write_rows(storage_->view(1), table_, 3 + row, 1,
               {k.data() + row * width, v.data() + row * width, width, width});
  }
  const View view = storage_->view(0);
  EXPECT_EQ(
      std::memcmp(view.k, storage_->view(1).k, static_cast<std::size_t>(kPages * view.page_stride)),
      0);
}

TEST_P(WriteRows, TwoThreadsMayWriteNeighbouringRows) {
  const Case& c = GetParam();
  const std::int64_t width = std::int64_t{c.kv_heads} * c.head_dim;
  const std::int64_t rows = 2 * c.page_size;
  const std::vector<float> k = random_rows(rows * width, 21);
  const std::vector<float> v = random_rows(rows * width, 22);
  const View view = storage_->view(0);
  const auto write_every_second = [&](std::int64_t first) {
    for (std::int64_t row = first; row < rows; row += 2) {
      write_rows(view, table_, row, 1,
                 {k.data() + row * width, v.data() + row * width, width, width});
    }
  };
  std::thread other(write_every_second, 1);
  write_every_second(0);
  other.join();
  write_rows(storage_->view(1), table_, 0, rows, {k.data(), v.data(), width, width});
  EXPECT_EQ(
      std::memcmp(view.k, storage_->view(1).k, static_cast<std::size_t>(kPages * view.page_stride)),
      0);
}

std::string case_name(const ::testing::TestParamInfo<Case>& param) {
  const Case& c = param.param;
  std::string name(layout_name(c.layout));
  std::erase(name, '-');
  return name + "_" + std::string(kv_type_name(c.type)) + "_h" + std::to_string(c.kv_heads) + "_d" +
         std::to_string(c.head_dim) + "_p" + std::to_string(c.page_size);
}

INSTANTIATE_TEST_SUITE_P(Layouts, WriteRows, ::testing::ValuesIn(cases()), case_name);

TEST(WriteRowsRounding, EqualsTheScalarConversionsOnEveryKindOfNumber) {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               -1.0f,
                               65504.0f,
                               65519.0f,
                               65520.0f,
                               1e6f,
                               -1e6f,
                               3.4e38f,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(),
                               5.96e-8f,
                               2.98e-8f,
                               2.99e-8f,
                               6.1e-5f,
                               1e-40f,
                               1e-45f,
                               -1e-7f,
                               std::bit_cast<float>(0x7f800001u),
                               std::bit_cast<float>(0xffc12345u)};
  std::mt19937 random(5);
  while (values.size() % 4096 != 0)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    PoolSpec spec{.name = "test",
                  .layers = 1,
                  .kv_heads = 1,
                  .head_dim = 4096,
                  .type = type,
                  .page_size = 8,
                  .pages = 1};
    const Storage storage = Storage::create(spec).value();
    const std::int32_t page = 0;
    const PageTable table{&page, 1};
    write_rows(storage.view(0), table, 2, 1, {values.data(), values.data(), 4096, 4096});
    for (int d = 0; d < 4096; ++d) {
      const float expected = rounded(type, values[static_cast<std::size_t>(d)]);
      ASSERT_EQ(bits(read_k(storage.view(0), table, 2, 0, d)), bits(expected))
          << bits(values[static_cast<std::size_t>(d)]);
      ASSERT_EQ(bits(read_v(storage.view(0), table, 2, 0, d)), bits(expected))
          << bits(values[static_cast<std::size_t>(d)]);
    }
  }
}

TEST(WriteRowsDeathTest, APositionWithoutAPageStopsTheProgram) {
  PoolSpec spec{
      .name = "test", .layers = 1, .kv_heads = 1, .head_dim = 64, .page_size = 16, .pages = 2};
  const Storage storage = Storage::create(spec).value();
  const std::int32_t pages[2] = {0, -1};
  const std::vector<float> row(64, 1.0f);
  const Rows rows{row.data(), row.data(), 64, 64};
  EXPECT_DEATH(write_rows(storage.view(0), {pages, 2}, 32, 1, rows), "CHECK failed");
  EXPECT_DEATH(write_rows(storage.view(0), {pages, 2}, 16, 1, rows), "CHECK failed");
}

}  // namespace
}  // namespace segue::kv
