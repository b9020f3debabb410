// SPDX-License-Identifier: Apache-2.0
// One pool of threads for all parallel regions of a process: low latency (workers wait awake
// briefly before they sleep), no allocation per region. Which worker runs which task never affects
// a result: tasks write disjoint outputs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/placement.h"

namespace segue::core {

class ThreadPool {
 public:
  /// `threads` >= 1 counts the calling thread; threads - 1 workers are started. Throws
  /// std::system_error when the system has no room for them.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Sees to it that every thread has at least `bytes` of scratch, aligned to 64; not within a
  /// region. Tasks keep there what is too large for stacks, since a caller's may be small; nothing
  /// in it outlives a task. Throws std::bad_alloc.
  void reserve_scratch(std::size_t bytes);
  std::byte* scratch(int worker) const {
    return scratch_.get() + static_cast<std::size_t>(worker) * scratch_bytes_;
  }

  /// Calls fn(worker) once on every thread, worker in [0, threads), and returns when all have
  /// finished. Not reentrant: one region at a time, from one thread. fn must not throw.
  template <class F>
  void run(F&& fn) {
    using Fn = std::remove_reference_t<F>;
    run_erased([](void* context, int worker) { (*static_cast<Fn*>(context))(worker); },
               const_cast<void*>(static_cast<const void*>(&fn)));
  }

  /// As long as it lives, for_each leaves out what it has not begun once `cancelled` says so, and
  /// the results are to be thrown away. Asked on the calling thread, between tasks; empty: never.
  class Cancellation {
   public:
    Cancellation(ThreadPool& pool, const std::function<bool()>& cancelled) : pool_(pool) {
      if (cancelled) pool_.cancelled_ = &cancelled;
    }
    ~Cancellation() {
      pool_.cancelled_ = nullptr;
      pool_.skips_.store(false, std::memory_order_relaxed);
    }
    Cancellation(const Cancellation&) = delete;
    Cancellation& operator=(const Cancellation&) = delete;

    /// Asks as well.
    bool requested() const { return pool_.skips(0); }

   private:
    ThreadPool& pool_;
  };

  /// Has for_each left anything out? Then no index that tasks wrote may be believed.
  bool leaves_out() const { return skips_.load(std::memory_order_relaxed); }

  /// Calls fn(task, worker) for every task in [0, tasks); tasks are handed out one by one,
  /// ascending.
  template <class F>
  void for_each(std::int64_t tasks, F&& fn) {
    if (tasks <= 1 || threads() == 1) {
      for (std::int64_t task = 0; task < tasks && !skips(0); ++task) fn(task, 0);
      return;
    }
    next_task_.store(0, std::memory_order_relaxed);
    run([&](int worker) {
      for (;;) {
        const std::int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
        if (task >= tasks || skips(worker)) return;
        fn(task, worker);
      }
    });
  }

 private:
  struct FreeScratch {
    void operator()(std::byte* memory) const;
  };
  using Erased = void (*)(void* context, int worker);
  void run_erased(Erased fn, void* context);
  void work(int worker);
  void stop();
  bool skips(int worker) {
    if (worker == 0 && cancelled_ != nullptr && !skips_.load(std::memory_order_relaxed) &&
        (*cancelled_)()) {
      skips_.store(true, std::memory_order_relaxed);
    }
    return skips_.load(std::memory_order_relaxed);
  }

  Placement placement_;
  std::unique_ptr<std::byte, FreeScratch> scratch_;  // [threads, scratch_bytes_]
  std::size_t scratch_bytes_ = 0;
  std::vector<std::thread> workers_;
  Erased fn_ = nullptr;
  void* context_ = nullptr;
  const std::function<bool()>* cancelled_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<std::int32_t> pending_{0};
  alignas(64) std::atomic<std::int64_t> next_task_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<bool> skips_{false};  // read before every task, written once at most
};

}  // namespace segue::core
