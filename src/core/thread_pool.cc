// SPDX-License-Identifier: Apache-2.0
// Workers wait on a generation counter: they spin for a few microseconds, then give their core to
// whoever is ready, then sleep in the kernel.
#include "core/thread_pool.h"

#include "core/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace segue::core {
namespace {

// A waiting thread pauses this often (3 to 9 us), then yields. Where every thread has a core this
// costs nothing; where two share one (another program, more threads than cores) the spinner must
// not keep the other from the work that it waits for: pauses alone for 0.3 ms made such regions 3
// to 9 times slower than one thread.
constexpr int kPauses = 200;
// Yields before a worker sleeps: together some 0.2 ms, longer than the serial stretches of a decode
// step, short enough that an idle server does not burn a core.
constexpr int kYields = 800;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wait_a_little(int turn) {
  if (turn < kPauses) {
    pause_cpu();
  } else {
    std::this_thread::yield();
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) : placement_(threads) {
  CHECK(threads >= 1);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker)
    workers_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(Erased fn, void* context) {
  if (workers_.empty()) {
    fn(context, 0);
    return;
  }
  placement_.enter(0);
  fn_ = fn;
  context_ = context;
  pending_.store(static_cast<std::int32_t>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  fn(context, 0);
  for (int turn = 0; pending_.load(std::memory_order_acquire) != 0; ++turn) wait_a_little(turn);
}

void ThreadPool::work(int worker) {
  std::uint32_t seen = 0;
  for (;;) {
    std::uint32_t now = generation_.load(std::memory_order_acquire);
    for (int turn = 0; now == seen && turn < kPauses + kYields; ++turn) {
      wait_a_little(turn);
      now = generation_.load(std::memory_order_acquire);
    }
    if (now == seen) {
      generation_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    placement_.enter(worker);
    fn_(context_, worker);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace segue::core
