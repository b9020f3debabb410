// SPDX-License-Identifier: Apache-2.0
// Splitting by the work there is, judged by the makespan of handing the plan's items out one by
// one.
#include "attention/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <random>
#include <span>
#include <vector>

#include "attention/checked_plan.h"
#include "attention/gpu.h"
#include "attention/unit.h"

namespace segue::attention {
namespace {

struct Schedule {
  double makespan = 0;
  double ideal = 0;         // all work spread evenly
  double largest_unit = 0;  // no split goes below it
};

double unit_cost(const Plan& plan, const DeviceFacts& device, const RowTile& tile) {
  return tile.unit * std::max<double>(device.reading_rows, tile.rows * plan.shape.group());
}

/// Items in plan order, each to the workgroup that is free first.
Schedule schedule(const Plan& plan, const DeviceFacts& device) {
  Schedule result;
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < device.workgroups; ++i) free_at.push(0);
  for (const WorkItem& item : plan.items) {
    const double unit = unit_cost(plan, device, plan.tiles[static_cast<std::size_t>(item.tile)]);
    const double end = free_at.top() + unit * item.units();
    free_at.pop();
    free_at.push(end);
    result.makespan = std::max(result.makespan, end);
    result.ideal += unit * item.units() / device.workgroups;
    result.largest_unit = std::max(result.largest_unit, unit);
  }
  return result;
}

device::GpuFacts h200() {
  device::GpuFacts gpu;
  gpu.name = "H200";
  gpu.major = 9;
  gpu.multiprocessors = 132;
  return gpu;
}

const Shape kDirect{.q_heads = 16, .kv_heads = 8, .head_dim = 256};
const Shape kOne{.q_heads = 4, .kv_heads = 1, .head_dim = 256};

TEST(Split, GivesALoneSequenceTheWholeDeviceAtEveryDepth) {
  for (const std::int64_t depth : {2048, 5000, 32'768, 100'000, 131'072}) {
    for (const int rows : {1, 2, 8}) {
      EXPECT_GE(plan_of(kDirect, {{.depth = depth, .rows = rows}}, device_of(132)).workgroups(),
                110)
          << depth;
      const Plan two = plan_of(kOne, {{.depth = depth, .rows = rows}}, device_of(2));
      EXPECT_GE(two.workgroups(), 2) << depth;
      EXPECT_LE(two.workgroups(), 8) << depth;
    }
  }
}

TEST(Split, MakesNoSegmentOfTheFewKeysThatAVerifyBlockAddsToAPowerOfTwo) {
  const Shape shape{
      .q_heads = 32, .kv_heads = 4, .head_dim = 512, .layout = kv::Layout::kSwizzled8};
  const DeviceFacts device = gpu_device(h200(), shape);
  const UnitRule rule = unit_rule(shape, device);
  for (const std::int64_t depth : {8192, 32'768, 131'072}) {
    for (const std::int64_t past : {-1, 0, 1, 50}) {
      for (const int rows : {1, 5, 8}) {
        RowTile tile;
        tile.rows = rows;
        tile.position = depth + past;
        tile.unit = unit_size(rule, tile.position + rows);
        tile.unit_last = static_cast<std::int32_t>((tile.position + rows - 1) / tile.unit + 1);
        std::vector<std::int32_t> segments;
        constexpr std::array<std::int32_t, 1> kOrder{0};
        choose_segments(shape, device, std::span(&tile, 1), kOrder, segments);
        EXPECT_EQ(segments[0], 16) << depth + past << " keys, " << rows << " rows";
      }
    }
  }
}

TEST(Split, LeavesABatchThatFillsTheDeviceEvenlyUnsplit) {
  for (const int batch : {16, 64}) {
    const std::vector<SequenceRows> sequences(static_cast<std::size_t>(batch),
                                              {.depth = 4096, .rows = 2});
    EXPECT_EQ(plan_of(kDirect, sequences, device_of(2)).partials, 0);
    EXPECT_EQ(plan_of(kOne, sequences, device_of(2)).partials, 0);
  }
}

/// As schedule(), but a workgroup that has a multiprocessor for itself is as fast as all that fit.
double shared_makespan(const Plan& plan, const DeviceFacts& device) {
  const auto shared = static_cast<std::size_t>(device.workgroups / device.residents);
  const auto residents = static_cast<std::size_t>(device.residents);
  std::vector<std::vector<double>> left(shared);
  std::size_t next = 0;
  double now = 0;
  const auto cost_of = [&](const WorkItem& item) {
    return unit_cost(plan, device, plan.tiles[static_cast<std::size_t>(item.tile)]) * item.units();
  };
  while (true) {
    for (std::size_t depth = 1; depth <= residents; ++depth) {
      for (std::vector<double>& one : left) {
        if (one.size() < depth && next < plan.items.size())
          one.push_back(cost_of(plan.items[next++]));
      }
    }
    double step = std::numeric_limits<double>::infinity();
    for (const std::vector<double>& one : left) {
      for (const double work : one)
        step =
            std::min(step, work * static_cast<double>(one.size()) / static_cast<double>(residents));
    }
    if (step == std::numeric_limits<double>::infinity()) return now;
    now += step;
    for (std::vector<double>& one : left) {
      const double done = step * static_cast<double>(residents) /
                          static_cast<double>(std::max<std::size_t>(one.size(), 1));
      for (double& work : one) work -= done;
      std::erase_if(one, [](double work) { return work <= 1e-6; });
    }
  }
}

/// What plan() hands out for sequences alike, without a kernel that a build may not have.
Plan items_of(const Shape& shape, const DeviceFacts& device, int batch, std::int64_t keys,
              int rows) {
  Plan plan;
  plan.shape = shape;
  RowTile tile;
  tile.rows = rows;
  tile.position = keys - rows;
  tile.unit = unit_size(unit_rule(shape, device), keys);
  tile.unit_last = static_cast<std::int32_t>((keys - 1) / tile.unit + 1);
  plan.tiles.assign(static_cast<std::size_t>(batch), tile);
  std::vector<std::int32_t> order(plan.tiles.size());
  std::iota(order.begin(), order.end(), 0);
  choose_segments(shape, device, plan.tiles, order, plan.tile_segments);
  for (const std::int32_t index : order) {
    const std::int32_t count = plan.tile_segments[static_cast<std::size_t>(index)];
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (std::int32_t i = 0; i < count; ++i) {
        plan.items.push_back(
            {index, head, tile.unit_last * i / count, tile.unit_last * (i + 1) / count, -1});
      }
    }
  }
  return plan;
}

TEST(Split, HasNoCliffAlongTheBatch) {
  for (const Shape& shape :
       {Shape{.q_heads = 64, .kv_heads = 8, .head_dim = 128, .layout = kv::Layout::kSwizzled8},
        Shape{.q_heads = 32, .kv_heads = 4, .head_dim = 512, .layout = kv::Layout::kSwizzled8},
        Shape{.q_heads = 16, .kv_heads = 8, .head_dim = 256, .layout = kv::Layout::kSwizzled8}}) {
    const DeviceFacts device = gpu_device(h200(), shape);
    for (const int rows : {1, 8}) {
      for (int batch = 16; batch <= 64; ++batch) {
        const Plan plan = items_of(shape, device, batch, 4096, rows);
        const double ideal = schedule(plan, device).ideal;
        EXPECT_LE(shared_makespan(plan, device), 1.4 * ideal)
            << shape.head_dim << " " << rows << " rows, batch " << batch;
      }
    }
  }
}

TEST(Split, CutsOneLongSequenceBesideManyShortOnes) {
  std::vector<SequenceRows> sequences(40, {.depth = 500, .rows = 1});
  sequences.push_back({.depth = 120'000, .rows = 4});
  for (const int workgroups : {2, 16, 132}) {
    const DeviceFacts device = device_of(workgroups);
    const Plan plan = plan_of(kOne, sequences, device);
    EXPECT_GT(plan.sequences[40].segments, 1);
    EXPECT_EQ(plan.sequences[0].segments, 1);
    const Schedule result = schedule(plan, device);
    EXPECT_LE(result.makespan, 1.15 * result.ideal + result.largest_unit);
  }
}

TEST(Split, StaysNearTheIdealMakespanForRandomMixedSteps) {
  std::mt19937 random(3);
  double worst = 0;
  for (int round = 0; round < 2000; ++round) {
    const int kv_heads = std::array{1, 2, 4, 8}[random() % 4];
    const Shape shape{.q_heads = 4 * kv_heads,
                      .kv_heads = kv_heads,
                      .head_dim = 128,
                      .window = std::array{0, 0, 1024}[random() % 3]};
    const DeviceFacts device = device_of(std::array{2, 3, 8, 64, 132}[random() % 5]);
    std::vector<SequenceRows> sequences;
    for (std::size_t i = 0; i < 1 + random() % 12; ++i) {
      const auto depth =
          static_cast<std::int64_t>(random() % (std::uint64_t{1} << (8 + random() % 10)));
      sequences.push_back({.depth = depth, .rows = std::array{1, 1, 4, 9, 512}[random() % 5]});
    }
    const Plan plan = plan_of(shape, sequences, device);
    const Schedule result = schedule(plan, device);
    const double ratio = (result.makespan - result.largest_unit) / result.ideal;
    worst = std::max(worst, ratio);
    ASSERT_LE(ratio, 1.3) << to_text(plan);
  }
  RecordProperty("worst_ratio", std::to_string(worst));
}

TEST(Split, ShrinksSegmentsForWorkgroupsThatDifferInSpeed) {
  for (const int threads : {2, 3}) {
    for (const std::int64_t depth : {3000, 9000, 16'384, 50'000}) {
      const Plan plan = plan_of(kOne, {{.depth = depth, .rows = 2}}, cpu_device(threads));
      ASSERT_GT(plan.items.size(), static_cast<std::size_t>(threads)) << to_text(plan);
      std::vector<double> free_at(static_cast<std::size_t>(threads), 0.0);
      double units = 0;
      for (std::size_t i = 0; i < plan.items.size(); ++i) {
        EXPECT_LE(plan.items[i].units(), plan.items[i > 0 ? i - 1 : 0].units()) << to_text(plan);
        // The first thread takes half as long again as the others.
        const auto first = std::min_element(free_at.begin(), free_at.end());
        *first += plan.items[i].units() * (first == free_at.begin() ? 1.5 : 1.0);
        units += plan.items[i].units();
      }
      const double ideal = units / (threads - 1 + 1 / 1.5);
      EXPECT_LE(*std::max_element(free_at.begin(), free_at.end()), ideal + 1.5) << to_text(plan);
    }
  }
}

}  // namespace
}  // namespace segue::attention
