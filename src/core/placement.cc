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

int Placement::sit([[maybe_unused]] int worker) {
#if defined(__linux__)
  const int cpu = sched_getcpu();
  std::atomic<int>& seat = seats_[static_cast<std::size_t>(worker)].cpu;
  if (seat.load(std::memory_order_relaxed) != cpu) seat.store(cpu, std::memory_order_relaxed);
  return cpu;
#else
  return -1;
#endif
}

void Placement::enter(int worker) {
  const int cpu = sit(worker);
  if (cpu < 0) return;
  for (int other = 0; other < worker; ++other) {
    if (seats_[static_cast<std::size_t>(other)].cpu.load(std::memory_order_relaxed) != cpu)
      continue;
    double& moved_us = seats_[static_cast<std::size_t>(worker)].moved_us;
    const double now = now_us();
    if (now - moved_us < kMoveEveryUs) return;
    moved_us = now;
    move(worker);
    return;
  }
}

bool Placement::shares_cpu(int worker) {
  const int cpu = sit(worker);
  for (int other = 0; cpu >= 0 && other < threads_; ++other) {
    if (other != worker &&
        seats_[static_cast<std::size_t>(other)].cpu.load(std::memory_order_relaxed) == cpu)
      return true;
  }
  return false;
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
