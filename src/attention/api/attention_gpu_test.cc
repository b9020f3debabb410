// SPDX-License-Identifier: Apache-2.0
// The public classes on a GPU: the bytes that the kernels give when launched directly, plain,
// within a smaller workspace, and replayed from a graph that was captured at another length.
#include <gtest/gtest.h>

#include "device/device.h"

#ifdef SEGUE_CUDA
#include <algorithm>

#include "attention/cuda/harness/world.h"
#include "attention/cuda/natural_maps.h"
#include "attention/gpu.h"
#include "segue/attention.h"

namespace segue {
namespace {

using attention::SequenceRows;
using attention::Shape;
using attention::cuda::DevicePlan;
using attention::cuda::Output;
using attention::cuda::World;

constexpr std::int32_t kStride = 2000;  // entries of a page table's row

AttentionConfig config_of(const Shape& shape) {
  AttentionConfig config;
  config.device = AttentionDevice::kCuda;
  config.q_heads = shape.q_heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.window = shape.window;
  config.page_size = shape.page_size;
  return config;
}

/// A World behind the public API.
class Caller {
 public:
  Caller(World& world, AttentionPlan& plan)
      : world_(world),
        plan_(plan),
        nothing_({}, world.shape().head_dim),
        workspace_(plan.workspace_bytes()) {}

  Status update(const std::vector<SequenceRows>& step) {
    const std::vector<kv::PageTable> tables = world_.tables_for(step);
    std::vector<std::int32_t> rows(step.size() * kStride, -1);
    for (std::size_t i = 0; i < step.size(); ++i) {
      std::copy_n(tables[i].pages, tables[i].count,
                  rows.begin() + static_cast<std::ptrdiff_t>(i) * kStride);
    }
    if (tables_.bytes() == 0) tables_ = device::Buffer(8 * kStride * sizeof(std::int32_t));
    device::copy_to_device(tables_.as<>(), rows.data(), rows.size() * sizeof(std::int32_t),
                           world_.stream());
    world_.stream().synchronize();
    world_.make_queries(step);
    std::vector<AttentionSequence> sequences;
    for (const SequenceRows& one : step) sequences.push_back({one.depth, one.rows, one.prefill});
    return plan_.update(sequences, world_.stream().handle());
  }

  Status run() {
    const attention::DeviceParams params = world_.params(nothing_, {});
    AttentionCall call;
    call.q = params.q;
    call.out = params.out;
    call.kv = {.k = params.kv.k, .v = params.kv.v, .pages = params.kv.pages};
    call.page_tables = tables_.as<std::int32_t>();
    call.workspace = workspace_.as<>();
    call.workspace_bytes = workspace_.bytes();
    call.stream = world_.stream().handle();
    return plan_.run(call);
  }

 private:
  World& world_;
  AttentionPlan& plan_;
  DevicePlan nothing_;
  device::Buffer workspace_;
  device::Buffer tables_;
};

TEST(AttentionApiOnAGpu, StridesWithoutATensorMapAreRefused) {
  Shape shape{.q_heads = 8, .kv_heads = 2, .head_dim = 128, .layout = kv::Layout::kTokenMajor};
  kv::View view = attention::dense_view(shape);
  view.pages = 10;
  EXPECT_TRUE(attention::cuda::check_maps(view).ok());
  view.page_stride *= 2;  // V in the pages of K
  EXPECT_TRUE(attention::cuda::check_maps(view).ok());
  view.page_stride += 16;
  EXPECT_FALSE(attention::cuda::check_maps(view).ok());
  view.page_stride -= 16;
  view.head_stride += 16;
  EXPECT_FALSE(attention::cuda::check_maps(view).ok());
}

TEST(AttentionApiOnAGpu, GivesTheBytesOfTheKernelsPlainLimitedAndReplayed) {
  const Result<device::GpuFacts> gpu = device::current_gpu_facts();
  if (!gpu.ok()) GTEST_SKIP() << gpu.error().message;
  if (Status status = attention::check_gpu(*gpu); !status.ok())
    GTEST_SKIP() << status.error().message;
  Shape full{.q_heads = 32, .kv_heads = 4, .head_dim = 512};
  Shape slide{.q_heads = 32, .kv_heads = 16, .head_dim = 256, .window = 1024};
  Shape wide{.q_heads = 64, .kv_heads = 8, .head_dim = 128};
  Shape odd{.q_heads = 32, .kv_heads = 8, .head_dim = 96};
  for (Shape shape : {full, slide, wide, odd}) {
    shape.layout = attention::gpu_layout(shape);
    World world(shape, std::vector<std::int64_t>{30'000, 5000, 40}, {});
    const std::vector<std::vector<SequenceRows>> steps{{{100, 1}, {0, 0}, {5, 1}},
                                                       {{29'990, 9}, {4000, 4}, {39, 1}},
                                                       {{1, 2}},
                                                       {{20'000, 1}, {4999, 1}, {39, 1}}};
    std::vector<Output> expected;
    for (const auto& step : steps) expected.push_back(world.run(step));
    world.make_queries(std::vector<SequenceRows>{{0, 16}, {0, 16}, {0, 16}});
    const auto attention = Attention::create(config_of(shape));
    ASSERT_TRUE(attention.ok()) << attention.error().message;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{6} << 20}) {
      AttentionLimits limits;
      limits.sequences = 3;
      limits.rows_per_sequence = 16;
      limits.kv_len = 30'000;
      limits.table_stride = kStride;
      limits.workspace_bytes = bytes;
      const auto plan = (*attention)->make_plan(limits);
      ASSERT_TRUE(plan.ok()) << plan.error().message;
      Caller caller(world, **plan);
      const auto expect_step = [&](std::size_t i, const char* what, auto&& launch) {
        Status status = caller.update(steps[i]);
        ASSERT_TRUE(status.ok()) << status.error().message;
        world.poison_output();
        launch();
        std::int64_t rows = 0;
        for (const SequenceRows& one : steps[i]) rows += one.rows;
        const core::Verdict verdict =
            core::exact(world.read_output(rows, false).out, expected[i].out);
        EXPECT_TRUE(verdict.ok) << what << ", step " << i << ": " << verdict.message;
      };
      for (std::size_t i = 0; i < steps.size(); ++i) {
        expect_step(i, "plain", [&] {
          const Status status = caller.run();
          ASSERT_TRUE(status.ok()) << status.error().message;
        });
      }
      ASSERT_TRUE(caller.update(steps[0]).ok());
      device::Graph graph(world.stream(), [&] {
        EXPECT_TRUE(caller.run().ok());
        EXPECT_EQ((*plan)->update({}, world.stream().handle()).error().code, ErrorCode::kUsage)
            << "an update within a capture";
      });
      for (std::size_t i = 0; i < steps.size(); ++i)
        expect_step(i, "replayed", [&] { graph.replay(world.stream()); });
    }
  }
}

}  // namespace
}  // namespace segue
#else
TEST(AttentionApiOnAGpu, NeedsABuildWithCuda) {
  GTEST_SKIP() << segue::device::gpu_facts().error().message;
}
#endif
