// SPDX-License-Identifier: Apache-2.0
#include "core/preemption.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "core/clock.h"

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace segue::core {
namespace {

void run_for_us(double us) {
  for (const double start = now_us(); now_us() - start < us;) {
  }
}

TEST(Preemption, TheFirstCallStartsTheCount) {
  ThreadPool pool(2);
  Preemption preemption;
  EXPECT_EQ(preemption.since_last_us(pool), 0);
  EXPECT_GE(preemption.since_last_us(pool), 0);
}

#if defined(__linux__)
TEST(Preemption, CountsTheTimeThatAnotherThreadHadOurCpu) {
  if (::access("/proc/thread-self/schedstat", R_OK) != 0)
    GTEST_SKIP() << "this kernel does not count how long threads wait";
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // the other thread inherits it
  ThreadPool pool(1);
  Preemption preemption;
  preemption.since_last_us(pool);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  const double start = now_us();
  run_for_us(60000);
  const double lasted = now_us() - start;
  const double waited = preemption.since_last_us(pool);
  stop = true;
  other.join();
  sched_setaffinity(0, sizeof(allowed), &allowed);
  EXPECT_GT(waited, 5000);  // about half of it
  EXPECT_LT(waited, lasted);
}
#endif

}  // namespace
}  // namespace segue::core
