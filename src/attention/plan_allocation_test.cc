// SPDX-License-Identifier: Apache-2.0
// plan() in the steady state allocates nothing: counted by replacing the program's operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "attention/plan.h"

namespace {

std::atomic<long> allocations{0};

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace segue::attention {
namespace {

TEST(Plan, AllocatesNothingInTheSteadyState) {
  DeviceFacts device;
  device.workgroups = 16;
  const Shape shape{.q_heads = 16, .kv_heads = 8, .head_dim = 256};
  std::vector<SequenceRows> sequences{
      {.depth = 100'000, .rows = 9}, {.depth = 3000, .rows = 1}, {.depth = 8, .rows = 5}};
  Plan out;
  PlanInput input;
  input.shape = shape;
  input.sequences = sequences;
  for (const Policy policy : {Policy::kStock, Policy::kPr45450, Policy::kSegue}) {
    input.policy = policy;
    ASSERT_TRUE(plan(input, device, out).ok());
    sequences[0].depth = 131'072;
    ASSERT_TRUE(plan(input, device, out).ok());
    const long before = allocations.load();
    for (int step = 0; step < 100; ++step) {
      sequences[1].depth = 3000 + step;
      sequences[1].rows = 1 + step % 9;
      if (!plan(input, device, out).ok()) std::abort();
    }
    EXPECT_EQ(allocations.load() - before, 0) << policy_name(policy);
  }
}

}  // namespace
}  // namespace segue::attention
