// SPDX-License-Identifier: Apache-2.0
#include "core/placement.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include "core/clock.h"

namespace segue::core {
namespace {

constexpr double kMoveEveryUs = 1000;

}  // namespace

Placement::Placement(int threads)
    : threads_(threads), seats_(std::make_unique<Seat[]>(static_cast<std::size_t>(threads))) {}

void Placement::enter([[maybe_unused]] int worker) {
#if defined(__linux__)
  const int cpu = sched_getcpu();
  if (cpu < 0) return;
  const auto self = static_cast<std::size_t>(worker);
  if (seats_[self].cpu.load(std::memory_order_relaxed) != cpu)
    seats_[self].cpu.store(cpu, std::memory_order_relaxed);
  for (std::size_t other = 0; other < self; ++other) {
    if (seats_[other].cpu.load(std::memory_order_relaxed) != cpu) continue;
    const double now = now_us();
    if (now - seats_[self].moved_us < kMoveEveryUs) return;
    seats_[self].moved_us = now;
    move(worker);
    return;
  }
#endif
}

void Placement::move([[maybe_unused]] int worker) {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t free = allowed;
  for (int other = 0; other < threads_; ++other) {
    const int taken = seats_[static_cast<std::size_t>(other)].cpu.load(std::memory_order_relaxed);
    if (taken >= 0 && taken < CPU_SETSIZE) CPU_CLR(static_cast<std::size_t>(taken), &free);
  }
  if (CPU_COUNT(&free) == 0) return;
  if (sched_setaffinity(0, sizeof(free), &free) != 0) return;  // moves at once
  sched_setaffinity(0, sizeof(allowed), &allowed);
  seats_[static_cast<std::size_t>(worker)].cpu.store(sched_getcpu(), std::memory_order_relaxed);
  moves_.fetch_add(1, std::memory_order_relaxed);
#endif
}

}  // namespace segue::core
