// SPDX-License-Identifier: Apache-2.0
// What planning costs: the fastest of many repeats, so that a busy machine does not fail it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "attention/gpu.h"
#include "attention/plan.h"
#include "core/clock.h"

namespace segue::attention {
namespace {

/// A GPU's rules, and how many rows it has, with the CPU's kernels.
DeviceFacts gpu_of(const Shape& shape) {
  device::GpuFacts gpu;
  gpu.multiprocessors = 132;
  DeviceFacts facts = gpu_device(gpu, shape);
  facts.kind = DeviceKind::kCpu;
  return facts;
}

double fastest_us(const Shape& shape, const DeviceFacts& device, int batch) {
  std::vector<SequenceRows> sequences;
  for (int i = 0; i < batch; ++i)
    sequences.push_back({.depth = 1000 + 997 * (i * 37 % batch), .rows = 1 + i % 9});
  PlanInput input;
  input.shape = shape;
  input.sequences = sequences;
  Plan out;
  double fastest = 1e9;
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const double start = core::now_us();
    if (!plan(input, device, out).ok()) return 1e9;
    fastest = std::min(fastest, core::now_us() - start);
  }
  return fastest;
}

TEST(PlanCost, IsMicrosecondsForOneSequenceAndTensOfThemFor256) {
#ifndef NDEBUG
  GTEST_SKIP() << "timed in release builds only";
#endif
  for (const Shape& shape : {Shape{.q_heads = 16, .kv_heads = 8, .head_dim = 256},
                             Shape{.q_heads = 32, .kv_heads = 4, .head_dim = 512},
                             Shape{.q_heads = 32, .kv_heads = 16, .head_dim = 256, .window = 1024},
                             Shape{.q_heads = 64, .kv_heads = 8, .head_dim = 128}}) {
    for (const DeviceFacts& device : {cpu_device(2), gpu_of(shape)}) {
      const double one = fastest_us(shape, device, 1);
      const double many = fastest_us(shape, device, 256);
      std::printf(
          "planning (%d,%d,%d) for %d workgroups: %.2f us for 1 sequence, %.2f us for 256\n",
          shape.q_heads, shape.kv_heads, shape.head_dim, device.workgroups, one, many);
      EXPECT_LE(one, 5);
      EXPECT_LE(many, 50);
    }
  }
}

}  // namespace
}  // namespace segue::attention
