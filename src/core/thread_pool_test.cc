// SPDX-License-Identifier: Apache-2.0
// Every task runs once and sees what was written before, with fewer and more threads than cores.
#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace segue::core {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 4));

TEST_P(ThreadPoolTest, CallsEveryWorkerOncePerRegion) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.threads(), GetParam());
  std::vector<int> calls(static_cast<std::size_t>(GetParam()), 0);
  for (int region = 1; region <= 200; ++region) {
    pool.run([&](int worker) { ++calls[static_cast<std::size_t>(worker)]; });
    for (const int count : calls) ASSERT_EQ(count, region);
  }
}

TEST_P(ThreadPoolTest, TheCallerIsWorkerZero) {
  ThreadPool pool(GetParam());
  std::thread::id zero;
  pool.run([&](int worker) {
    if (worker == 0) zero = std::this_thread::get_id();
  });
  EXPECT_EQ(zero, std::this_thread::get_id());
}

TEST_P(ThreadPoolTest, RunsEveryTaskOnceWhateverTheCount) {
  ThreadPool pool(GetParam());
  for (const std::int64_t tasks : {0, 1, 2, 3, 4, 5, 63, 64, 65, 1000}) {
    std::vector<std::atomic<int>> seen(static_cast<std::size_t>(tasks));
    pool.for_each(tasks, [&](std::int64_t task, int worker) {
      ASSERT_TRUE(worker >= 0 && worker < pool.threads());
      seen[static_cast<std::size_t>(task)].fetch_add(1);
    });
    for (const auto& count : seen) ASSERT_EQ(count.load(), 1) << tasks;
  }
}

TEST_P(ThreadPoolTest, SeesWritesOfTheRegionBefore) {
  ThreadPool pool(GetParam());
  // Each region reads what other threads wrote in the region before: a missing fence shows as a
  // wrong sum.
  constexpr std::size_t kCells = 64;
  std::vector<std::int64_t> now(kCells, 1);
  std::vector<std::int64_t> next(kCells, 0);
  for (int round = 0; round < 1000; ++round) {
    pool.for_each(kCells, [&](std::int64_t task, int) {
      const auto i = static_cast<std::size_t>(task);
      next[i] = (now[i] + now[(i + 1) % kCells] + now[(i + 17) % kCells]) % 1'000'003;
    });
    std::swap(now, next);
  }
  std::vector<std::int64_t> expected(kCells, 1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::int64_t> after(kCells);
    for (std::size_t i = 0; i < kCells; ++i) {
      after[i] =
          (expected[i] + expected[(i + 1) % kCells] + expected[(i + 17) % kCells]) % 1'000'003;
    }
    std::swap(expected, after);
  }
  EXPECT_EQ(now, expected);
}

TEST_P(ThreadPoolTest, WakesWorkersThatHaveGoneToSleep) {
  ThreadPool pool(GetParam());
  std::atomic<int> calls{0};
  for (int region = 0; region < 20; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(region % 4));
    pool.run([&](int) { calls.fetch_add(1); });
  }
  EXPECT_EQ(calls.load(), 20 * GetParam());
}

TEST_P(ThreadPoolTest, WaitsForASlowWorker) {
  ThreadPool pool(GetParam());
  std::vector<int> done(static_cast<std::size_t>(GetParam()), 0);
  pool.run([&](int worker) {
    if (worker == pool.threads() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done[static_cast<std::size_t>(worker)] = 1;
  });
  EXPECT_EQ(std::accumulate(done.begin(), done.end(), 0), GetParam());
}

TEST_P(ThreadPoolTest, SurvivesManyShortRegions) {
  ThreadPool pool(GetParam());
  std::atomic<std::int64_t> sum{0};
  for (std::int64_t region = 0; region < 5'000; ++region) {
    pool.for_each(4,
                  [&](std::int64_t task, int) { sum.fetch_add(task, std::memory_order_relaxed); });
  }
  EXPECT_EQ(sum.load(), 5'000 * 6);
}

TEST_P(ThreadPoolTest, LeavesOutWhatHasNotBegunWhenItIsCancelledAndOnlyThen) {
  ThreadPool pool(GetParam());
  bool cancelled = false;
  std::atomic<std::int64_t> ran{0};
  const auto region = [&](std::int64_t tasks) {
    ran = 0;
    pool.for_each(tasks, [&](std::int64_t, int worker) {
      ran.fetch_add(1);
      if (worker == 0) cancelled = true;
      // The others wait until the caller has had its task.
      for (int i = 0; worker != 0 && i < 1000; ++i) std::this_thread::yield();
    });
    return ran.load();
  };
  const std::function<bool()> ask = [&] { return cancelled; };
  {
    const ThreadPool::Cancellation cancellation(pool, ask);
    EXPECT_FALSE(cancellation.requested());
    EXPECT_LT(region(1'000'000), 1'000'000);
    EXPECT_TRUE(cancellation.requested());
    EXPECT_EQ(region(1), 0);
    EXPECT_EQ(region(100), 0);
  }
  EXPECT_EQ(region(100), 100);
  const ThreadPool::Cancellation never(pool, {});
  EXPECT_EQ(region(100), 100);
}

TEST_P(ThreadPoolTest, StartsAndStopsManyTimes) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(GetParam());
    if (i % 2 == 0) pool.run([](int) {});
  }
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // they need the room themselves
/// In a process of its own, with room for the stacks of a few threads.
[[noreturn]] void start_more_threads_than_there_is_room_for() {
  constexpr rlim_t kBytes = 512 << 20;
  const rlimit limit{kBytes, kBytes};
  setrlimit(RLIMIT_AS, &limit);
  try {
    const ThreadPool pool(1000);
  } catch (const std::system_error& problem) {
    _exit(std::string(problem.what()).starts_with("cannot start 1000 threads") ? 3 : 4);
  }
  _exit(0);
}

TEST(ThreadPoolLimit, ThreadsThatTheSystemRefusesAreAnErrorAfterWhichNoneIsLeft) {
  EXPECT_EXIT(start_more_threads_than_there_is_room_for(), testing::ExitedWithCode(3), "");
}
#endif

TEST(ThreadPoolScratch, IsEveryThreadsOwnAndGrows) {
  ThreadPool pool(3);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100000}, std::size_t{50}}) {
    pool.reserve_scratch(bytes);
    pool.run([&](int worker) { std::memset(pool.scratch(worker), worker, bytes); });
    for (int worker = 0; worker < pool.threads(); ++worker) {
      const std::byte* const scratch = pool.scratch(worker);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch) % 64, 0u);
      for (std::size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(scratch[i], static_cast<std::byte>(worker)) << "byte " << i;
    }
  }
}

}  // namespace
}  // namespace segue::core
