// SPDX-License-Identifier: Apache-2.0
// What planning costs: the fastest of many repeats, so that a busy machine does not fail it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "attention/plan.h"
#include "core/clock.h"

namespace segue::attention {
namespace {

double fastest_us(int batch, int workgroups) {
  const Shape shape{.q_heads = 16, .kv_heads = 8, .head_dim = 256};
  DeviceFacts device;
  device.workgroups = workgroups;
  std::vector<SequenceRows> sequences;
  for (int i = 0; i < batch; ++i) sequences.push_back({.depth = 1000 + 997 * i, .rows = 1 + i % 9});
  PlanInput input;
  input.shape = shape;
  input.sequences = sequences;
  Plan out;
  double fastest = 1e9;
  for (int repeat = 0; repeat < 2000; ++repeat) {
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
  for (const int workgroups : {2, 132}) {
    const double one = fastest_us(1, workgroups);
    const double many = fastest_us(256, workgroups);
    std::printf("planning for %d workgroups: %.2f us for 1 sequence, %.2f us for 256\n", workgroups,
                one, many);
    EXPECT_LE(one, 5);
    EXPECT_LE(many, 50);
  }
}

}  // namespace
}  // namespace segue::attention
