// SPDX-License-Identifier: Apache-2.0
// Keeps the threads of a pool on different CPUs. A scheduler may wake a worker on the CPU of the
// thread that woke it and leave both there for milliseconds while another CPU is idle: then two
// threads are as slow as one. Nothing is pinned: a thread that meets another one of its pool on its
// CPU moves once and stays free to be moved.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace segue::core {

class Placement {
 public:
  explicit Placement(int threads);

  /// Thread `worker` of the pool says where it runs, and moves to a CPU on which none of the pool
  /// was last seen if a thread of a lower index is on its own. Costs some 20 ns when it stays; at
  /// most one move per millisecond and thread. Does nothing where the system cannot tell.
  void enter(int worker);

  /// Was another thread of the pool last seen on the CPU on which `worker`, the caller, is?
  bool shares_cpu(int worker);

  /// Moves that enter() made.
  std::int64_t moves() const { return moves_.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Seat {
    std::atomic<int> cpu{-1};
    double moved_us = 0;  // of its own thread
  };

  int sit(int worker);  // where the caller is, -1 unknown; remembered
  void move(int worker);

  int threads_;
  std::unique_ptr<Seat[]> seats_;  // [threads]
  std::atomic<std::int64_t> moves_{0};
};

}  // namespace segue::core
