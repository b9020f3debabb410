// SPDX-License-Identifier: Apache-2.0
// Where a thread is, read again rather than kept in a register.
#pragma once

namespace segue::device {

__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ int lane_again() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

}  // namespace segue::device
