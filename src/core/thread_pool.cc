// SPDX-License-Identifier: Apache-2.0
// Workers wait on a generation counter: awake for a while, then asleep in the kernel.
#include "core/thread_pool.h"

#include <sys/mman.h>

#include <new>
#include <string>
#include <system_error>

#include "core/check.h"
#include "core/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace segue::core {
namespace {

// A waiting thread yields its CPU only to a thread of its own pool that was last seen there, or
// after so long: a yield to another program costs a whole time slice, and a step has hundreds of
// regions.
constexpr double kPatienceUs = 1000;
// A worker without work sleeps after this: longer than the serial stretches of a decode step, short
// enough that an idle server does not burn a core.
constexpr double kAwakeUs = 300;

// Large pages of memory: jobs walk over all of their scratch between reads of other memory.
constexpr std::align_val_t kScratchAlignment{std::size_t{2} << 20};
constexpr std::size_t kSmallPage = 4096;

constexpr std::size_t whole(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The waiting of one thread for the end of a region, or for the next one.
class Wait {
 public:
  Wait(Placement& placement, int worker) : placement_(placement), worker_(worker) {}

  void pause() {
    pause_cpu();
    if (++turns_ % kTurnsPerLook != 0) return;
    waited_us_ = now_us() - start_us_;
    if (waited_us_ > kPatienceUs || placement_.shares_cpu(worker_)) std::this_thread::yield();
  }
  double waited_us() const { return waited_us_; }

 private:
  static constexpr int kTurnsPerLook = 64;  // 1 to 3 us

  Placement& placement_;
  int worker_;
  int turns_ = 0;
  double start_us_ = now_us();
  double waited_us_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int threads) : placement_(threads) {
  CHECK(threads >= 1);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker)
      workers_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error& problem) {
    const std::size_t started = workers_.size();
    stop();
    throw std::system_error(problem.code(), "cannot start " + std::to_string(threads) +
                                                " threads, stopped after " +
                                                std::to_string(started + 1));
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::FreeScratch::operator()(std::byte* memory) const {
  ::operator delete(memory, kScratchAlignment);
}

void ThreadPool::reserve_scratch(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return;
  const std::size_t each = whole(bytes, kSmallPage);
  const std::size_t all = whole(each * static_cast<std::size_t>(threads()),
                                static_cast<std::size_t>(kScratchAlignment));
  scratch_.reset(static_cast<std::byte*>(::operator new(all, kScratchAlignment)));
  madvise(scratch_.get(), all, MADV_HUGEPAGE);  // a wish: small pages work too
  scratch_bytes_ = each;
}

void ThreadPool::stop() {
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
  for (Wait wait(placement_, 0); pending_.load(std::memory_order_acquire) != 0;) wait.pause();
}

void ThreadPool::work(int worker) {
  std::uint32_t seen = 0;
  for (;;) {
    std::uint32_t now = generation_.load(std::memory_order_acquire);
    for (Wait wait(placement_, worker); now == seen && wait.waited_us() < kAwakeUs;) {
      wait.pause();
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
