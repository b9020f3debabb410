// SPDX-License-Identifier: Apache-2.0
#include "core/placement.h"

#include <gtest/gtest.h>
#if defined(__linux__)
#include <sched.h>

#include <thread>

#include "core/cpu.h"

namespace segue::core {
namespace {

TEST(Placement, ThreadsThatMeetOnOneCpuPartAndStayFreeToMove) {
  if (cpu_facts().logical_cpus < 2) GTEST_SKIP() << "needs two CPUs";
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  // On a thread of its own, whose affinity is forced to one CPU and then given back.
  std::thread([&all] {
    const int here = sched_getcpu();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(here), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    Placement placement(2);
    placement.enter(0);  // both threads are played by this one, on one CPU
    placement.enter(1);
    EXPECT_EQ(placement.moves(), 0) << "there was no other CPU to go to";

    Placement again(2);
    again.enter(0);
    ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
    while (sched_getcpu() != here) ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
    if (sched_getcpu() != here) GTEST_SKIP() << "the scheduler moved the thread first";
    again.enter(1);
    EXPECT_EQ(again.moves(), 1);
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&after, &all)) << "a move must not leave the thread pinned";
  }).join();
}

TEST(Placement, AThreadGivesWayToLowerOnesOnly) {
  Placement placement(3);  // all three played by one thread, on one CPU
  placement.enter(2);
  placement.enter(1);
  placement.enter(0);
  placement.enter(0);
  EXPECT_EQ(placement.moves(), 0);
}

}  // namespace
}  // namespace segue::core
#endif
