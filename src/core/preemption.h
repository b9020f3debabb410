// SPDX-License-Identifier: Apache-2.0
// Preemption: how long other programs held the CPUs of a pool's threads. On a shared machine a step
// now and then waits a whole time slice: a short step seldom, a long one nearly always. Times that
// are compared with each other are better off without that. Counts of the kernel's scheduler, where
// it keeps them (Linux: proc(5), schedstat); zero elsewhere.
#pragma once

#include <cstdint>
#include <vector>

#include "core/thread_pool.h"

namespace segue::core {

class Preemption {
 public:
  Preemption() = default;
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  /// For how long the calling thread and the pool's workers were ready to run but did not since the
  /// last call, microseconds. The longest of the threads: they wait for each other. The first call
  /// starts the count; later ones are by the same thread. A system call and a microsecond a thread.
  double since_last_us(ThreadPool& pool);

 private:
  void open(ThreadPool& pool);

  struct Thread {
    int file = -1;
    std::int64_t waited_ns = 0;
  };
  bool opened_ = false;
  std::vector<Thread> threads_;
};

}  // namespace segue::core
