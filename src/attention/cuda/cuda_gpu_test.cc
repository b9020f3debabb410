// SPDX-License-Identifier: Apache-2.0
// The GPU kernels on a GPU: against the reference in double, and bit for bit against themselves.
// Pools are NaN wherever no key lies, page tables absurd wherever no key is needed, outputs
// poisoned.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "attention/cuda/harness/world.h"
#include "attention/gpu.h"
#include "attention/kernel.h"
#include "attention/unit.h"
#include "core/check.h"

namespace segue::attention::cuda {
namespace {

/// Every family that this GPU runs, forced where it would not be the first choice.
class CudaAttention : public ::testing::TestWithParam<GpuFamily> {
 protected:
  void SetUp() override {
    const Result<device::GpuFacts> gpu = device::gpu_facts();
    if (!gpu.ok()) GTEST_SKIP() << gpu.error().message;
    if (!runs_family(*gpu, GetParam())) {
      GTEST_SKIP() << gpu->name << " is not of compute capability " << family_range(GetParam());
    }
  }

  /// The family's kernel for a shape.
  static RunOptions as(const Shape& shape) {
    RunOptions run;
    for (const Kernel* kernel : kernels()) {
      const bool fits = kernel->family == GetParam() && kernel->supports(shape);
      if (fits && run.kernel == nullptr) run.kernel = kernel;
    }
    CHECK(run.kernel != nullptr);
    return run;
  }

  static void expect_one_result(const Shape& shape, std::int64_t depth);
};

INSTANTIATE_TEST_SUITE_P(Families, CudaAttention,
                         ::testing::Values(GpuFamily::kSm90, GpuFamily::kSm80),
                         [](const auto& tested) {
                           return tested.param == GpuFamily::kSm90 ? "Sm90" : "Sm80";
                         });

Shape shape_of(int q_heads, int kv_heads, int head_dim, int window = 0, KvType type = KvType::kBF16,
               int page_size = 16) {
  Shape shape;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.window = window;
  shape.kv = type;
  shape.layout = kv::Layout::kSwizzled8;
  shape.page_size = page_size;
  return shape;
}

std::string describe(const Shape& shape) {
  return fmt::format("({}, {}, {}, window {}, page {}, {})", shape.q_heads, shape.kv_heads,
                     shape.head_dim, shape.window, shape.page_size, kv_type_name(shape.kv));
}

/// Bytes of some rows of an output.
std::vector<std::uint16_t> rows_of(const Output& output, const Shape& shape, int first, int count) {
  const auto width = static_cast<std::ptrdiff_t>(shape.q_heads) * shape.head_dim;
  return {output.out.begin() + first * width, output.out.begin() + (first + count) * width};
}

TEST_P(CudaAttention, StaysWithinItsErrorBoundOn500RandomShapesWithPoisonedPages) {
  std::mt19937 random(7);
  const auto pick = [&](auto... values) {
    const std::vector<int> list{values...};
    return list[random() % list.size()];
  };
  double worst = 0;
  for (int round = 0; round < 500; ++round) {
    const int group = pick(1, 1, 2, 2, 3, 4, 5, 7, 8, 8, 16);
    const int kv_heads = pick(1, 2, 3, 4, 8);
    Shape shape = shape_of(
        group * kv_heads, kv_heads,
        GetParam() == GpuFamily::kSm80 ? pick(64, 80, 96, 128, 256, 512) : pick(64, 128, 256, 512),
        pick(0, 0, 0, 1, 7, 100, 256, 1000), round % 3 == 0 ? KvType::kF16 : KvType::kBF16,
        pick(8, 16, 16, 24, 32, 64, 80));
    shape.layout = round % 2 == 0   ? gpu_layout(shape)
                   : round % 4 == 1 ? kv::Layout::kTokenMajor
                                    : kv::Layout::kHeadMajor;
    std::vector<SequenceRows> rows;
    std::vector<std::int64_t> lengths;
    for (int i = pick(1, 1, 2, 3, 5); i > 0; --i) {
      const int depth = pick(0, 1, 15, 16, 17, static_cast<int>(random() % 300),
                             static_cast<int>(random() % 3000), static_cast<int>(random() % 9000));
      const int count = pick(0, 1, 1, 2, 3, 4, 5, 8, 9, 16);
      rows.push_back({depth, count});
      lengths.push_back(depth + count);
    }
    if (round % 5 == 0) {
      const int depth = pick(0, 1, 17, static_cast<int>(random() % 3000));
      rows.push_back({depth, pick(1, 17, 64, 100, 257), true});
      lengths.push_back(rows.back().kv_len());
    }
    WorldOptions options;
    options.seed = random();
    options.score_spread = static_cast<float>(pick(1, 1, 3, 10));
    options.softcap = static_cast<float>(pick(0, 0, 0, 30));
    options.sinks = pick(0, 0, 1) != 0;
    World world(shape, lengths, options);
    RunOptions run = as(shape);
    run.lse = true;
    run.force_segments = pick(0, 0, 1, 2, 5);
    const Output output = world.run(rows, run);
    const core::Verdict verdict = world.check(rows, output);
    worst = std::max(worst, verdict.worst_ratio);
    ASSERT_TRUE(verdict.ok) << "round " << round << " " << describe(shape) << " depth "
                            << rows[0].depth << " rows " << rows[0].rows << " segments "
                            << run.force_segments << ": " << verdict.message;
  }
  std::printf("worst error / bound over 500 shapes: %.3f\n", worst);
}

/// Every row of a block of 16 at `depth`, computed alone, in smaller blocks, split in other ways
/// and in a batch.
void CudaAttention::expect_one_result(const Shape& shape, std::int64_t depth) {
  SCOPED_TRACE(describe(shape) + " depth " + std::to_string(depth));
  const std::int64_t other = depth / 3 + 5;
  World world(shape, std::vector<std::int64_t>{depth + 16, other + 16, 40}, {});
  const std::vector<SequenceRows> block{{depth, 16}};
  const Output expected = world.run(block, as(shape));
  ASSERT_TRUE(world.check(block, expected).ok) << world.check(block, expected).message;
  int compared = 0;
  const auto expect_rows = [&](std::vector<SequenceRows> rows, const RunOptions& run,
                               const char* what) {
    const Output found = world.run(rows, run);
    const auto first = static_cast<int>(rows[0].depth - depth);
    const core::Verdict verdict = core::exact(rows_of(found, shape, 0, rows[0].rows),
                                              rows_of(expected, shape, first, rows[0].rows));
    EXPECT_TRUE(verdict.ok) << what << ", rows " << rows[0].rows << " at " << rows[0].depth
                            << ", segments " << run.force_segments << ": " << verdict.message;
    compared += rows[0].rows;
  };
  for (int row = 0; row < 16; ++row) expect_rows({{depth + row, 1}}, as(shape), "alone");
  for (int count = 2; count < 16; ++count) {
    expect_rows({{depth, count}}, as(shape), "fewer rows");
    expect_rows({{depth + 16 - count, count}}, as(shape), "fewer rows, later");
  }
  for (const int segments : {1, 2, 3, 7, 1000}) {
    RunOptions run = as(shape);
    run.force_segments = segments;
    expect_rows({{depth, 16}}, run, "other segments");
    expect_rows({{depth + 3, 1}}, run, "other segments");
  }
  for (const Policy policy :
       {Policy::kStock, Policy::kWhole, Policy::kSegmented, Policy::kPr45450}) {
    RunOptions run = as(shape);
    run.policy = policy;
    expect_rows({{depth, 5}}, run, "other policy");
  }
  expect_rows({{depth, 16}, {other, 16}, {24, 16}}, as(shape), "in a batch");
  expect_rows({{depth + 2, 9}, {other, 0}, {39, 1}}, as(shape), "in a batch");
  expect_rows({{depth + 15, 1}, {other, 4}}, as(shape), "in a batch");
  std::printf("%s depth %lld: %d rows compared\n", describe(shape).c_str(),
              static_cast<long long>(depth), compared);
}

TEST_P(CudaAttention, GivesARowTheSameBitsWhateverIsComputedBesideIt) {
  for (const std::int64_t depth : {0, 1, 1016, 1083, 2047, 7001, 40000}) {
    expect_one_result(shape_of(32, 4, 512), depth);
    expect_one_result(shape_of(16, 8, 256), depth);
    expect_one_result(shape_of(32, 16, 256, 1024), depth);
    expect_one_result(shape_of(64, 8, 128), depth);
    expect_one_result(shape_of(4, 1, 256), depth);
  }
  expect_one_result(shape_of(16, 1, 512, 0, KvType::kF16, 64), 5000);
  expect_one_result(shape_of(8, 8, 64, 0, KvType::kF16, 8), 5000);
  expect_one_result(shape_of(16, 2, 64, 700, KvType::kBF16, 32), 3000);
  if (GetParam() != GpuFamily::kSm80) return;
  Shape shape = shape_of(32, 8, 96);
  shape.layout = gpu_layout(shape);
  expect_one_result(shape, 7001);
  shape = shape_of(16, 16, 80, 0, KvType::kF16, 24);
  shape.layout = kv::Layout::kTokenMajor;
  expect_one_result(shape, 3000);
}

TEST_P(CudaAttention, GivesTheSameBitsInEveryLayout) {
  for (const auto& [q_heads, kv_heads, head_dim, page_size] :
       {std::array{32, 4, 512, 16}, {16, 8, 256, 32}, {16, 2, 128, 24}, {8, 8, 64, 8}}) {
    Shape shape = shape_of(q_heads, kv_heads, head_dim, 0, KvType::kBF16, page_size);
    SCOPED_TRACE(describe(shape));
    const std::vector<SequenceRows> rows{{3000, 5}, {700, 16}};
    const std::vector<std::int64_t> lengths{3005, 716};
    const Output expected = World(shape, lengths, {}).run(rows, as(shape));
    for (const kv::Layout layout : {kv::Layout::kTokenMajor, kv::Layout::kHeadMajor}) {
      shape.layout = layout;
      World world(shape, lengths, {});
      const Output found = world.run(rows, as(shape));
      EXPECT_TRUE(world.check(rows, found).ok) << world.check(rows, found).message;
      const core::Verdict verdict = core::exact(found.out, expected.out);
      EXPECT_TRUE(verdict.ok) << kv::layout_name(layout) << ": " << verdict.message;
    }
  }
}

TEST_P(CudaAttention, GivesAPromptRowTheSameBitsInEveryChunkAndBesideVerifyRows) {
  for (const Shape& shape : {shape_of(32, 4, 512), shape_of(16, 8, 256), shape_of(64, 8, 128),
                             shape_of(32, 16, 256, 1024), shape_of(4, 4, 64)}) {
    SCOPED_TRACE(describe(shape));
    constexpr int kRows = 700;
    constexpr std::int64_t kDepth = 2500;
    World world(shape, std::vector<std::int64_t>{kDepth + kRows, 1500, 9000}, {});
    const std::vector<SequenceRows> whole{{kDepth, kRows, true}};
    const Output expected = world.run(whole, as(shape));
    ASSERT_TRUE(world.check(whole, expected).ok) << world.check(whole, expected).message;
    for (const auto& [first, count] :
         {std::pair{0, 1}, {0, 17}, {3, 100}, {128, 256}, {699, 1}, {400, 300}}) {
      for (const int segments : {0, 1, 3}) {
        RunOptions run = as(shape);
        run.force_segments = segments;
        const std::vector<SequenceRows> rows{{kDepth + first, count, true}, {1490, 8}, {8999, 1}};
        const core::Verdict verdict = core::exact(rows_of(world.run(rows, run), shape, 0, count),
                                                  rows_of(expected, shape, first, count));
        EXPECT_TRUE(verdict.ok) << "rows " << first << " + " << count << ", segments " << segments
                                << ": " << verdict.message;
      }
    }
  }
}

TEST_P(CudaAttention, GivesTheSameBitsEveryTime) {
  for (const Shape& shape : {shape_of(32, 4, 512), shape_of(16, 8, 256), shape_of(64, 8, 128)}) {
    World world(shape, std::vector<std::int64_t>{20000}, {});
    const std::vector<SequenceRows> rows{{19992, 8}};
    const Output expected = world.run(rows, as(shape));
    for (int i = 0; i < 20; ++i) {
      const core::Verdict verdict = core::exact(world.run(rows, as(shape)).out, expected.out);
      ASSERT_TRUE(verdict.ok) << describe(shape) << ": " << verdict.message;
    }
  }
}

TEST_P(CudaAttention, ReplaysAGraphCapturedAtOneLengthAtAllOthers) {
  for (const Shape& shape :
       {shape_of(32, 4, 512), shape_of(32, 16, 256, 1024), shape_of(64, 8, 128)}) {
    SCOPED_TRACE(describe(shape));
    World world(shape, std::vector<std::int64_t>{145'000, 3000}, {});
    const auto of = [](std::int64_t depth, int rows, std::int64_t depth2, int rows2) {
      return std::vector<SequenceRows>{{depth, rows}, {depth2, rows2}};
    };
    const std::vector<std::vector<SequenceRows>> steps{
        of(0, 1, 0, 0), of(144'000, 16, 2900, 8), of(1, 8, 100, 1),       of(70'000, 3, 0, 0),
        of(0, 0, 0, 0), of(1024, 9, 1, 16),       of(143'000, 1, 50, 16), of(5, 1, 0, 0)};
    std::vector<Output> expected;
    Capacity capacity;
    for (const auto& rows : steps) {
      expected.push_back(world.run(rows, as(shape)));
      const Plan plan = world.plan_of(rows, as(shape));
      const std::vector<kv::PageTable> tables = world.tables_for(rows);
      capacity = larger(capacity, capacity_of(plan, tables));
    }
    world.make_queries(of(0, 16, 0, 16));
    DevicePlan device_plan(capacity, shape.head_dim);
    const Plan first = world.plan_of(steps[0], as(shape));
    ASSERT_TRUE(device_plan.upload(first, world.tables_for(steps[0]), world.stream()).ok());
    world.stream().synchronize();
    DeviceParams params = world.params(device_plan, as(shape));
    params.whole_capacity = true;
    device::Graph graph(world.stream(), [&] { world.launch(first, params); });
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Plan plan = world.plan_of(steps[i], as(shape));
      ASSERT_TRUE(device_plan.upload(plan, world.tables_for(steps[i]), world.stream()).ok());
      world.make_queries(steps[i]);
      world.poison_output();
      graph.replay(world.stream());
      const core::Verdict verdict =
          core::exact(world.read_output(plan.rows, false).out, expected[i].out);
      EXPECT_TRUE(verdict.ok) << "step " << i << ": " << verdict.message;
    }
  }
}

TEST(CudaGrid, InStepsIsAsLargeAndMakesTheSameChoices) {
  for (const int multiprocessors : {1, 46, 108, 132}) {
    for (int items = 1; items < 3000; ++items) {
      const Grid live{items, items % 70, 1 + items % 128, items % 300, items % 2 == 0};
      const Grid grid = in_steps(live, 2 * items, multiprocessors);
      EXPECT_GE(grid.items, live.items);
      EXPECT_LE(grid.items, 2 * live.items);
      EXPECT_EQ(in_steps(live, items, multiprocessors).items, items);
      EXPECT_EQ(grid.items <= multiprocessors, items <= multiprocessors);
      EXPECT_GE(grid.reductions, live.reductions);
      EXPECT_EQ(grid.reductions == 0, live.reductions == 0);
      EXPECT_GE(grid.runs, live.runs);
      EXPECT_EQ(grid.runs <= 32, live.runs <= 32);
      EXPECT_GE(grid.tile_rows, live.tile_rows);
      EXPECT_LE(grid.tile_rows, 128);
      EXPECT_EQ(grid.tile_rows <= 64, live.tile_rows <= 64);
      EXPECT_EQ(grid.folds, live.folds);
    }
  }
}

TEST_P(CudaAttention, RefusesAPlanThatExceedsItsBuffers) {
  const Shape shape = shape_of(8, 2, 128);
  World world(shape, std::vector<std::int64_t>{5000}, {});
  const std::vector<SequenceRows> small{{100, 1}};
  const std::vector<SequenceRows> large{{4990, 8}};
  DevicePlan device_plan(capacity_of(world.plan_of(small, as(shape)), world.tables_for(small)),
                         shape.head_dim);
  const Status status =
      device_plan.upload(world.plan_of(large, as(shape)), world.tables_for(large), world.stream());
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("exceeds its buffers"), std::string::npos);
}

}  // namespace
}  // namespace segue::attention::cuda
