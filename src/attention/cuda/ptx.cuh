// SPDX-License-Identifier: Apache-2.0
// The sm_90 instructions that C++ has no name for: memory barriers with transaction counts, bulk
// copies, cache policies, warpgroup fences, dependent launch. One function per instruction, nothing
// that decides anything.
#pragma once

#include <cstdint>

#include "device/cuda/overlap.cuh"
#include "device/cuda/thread.cuh"

namespace segue::attention::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- mbarriers: 8 bytes of shared memory, one phase per use of a slot ---

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives once and raises the phase's pending bytes.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// As barrier_arrive(), by one thread of a whole warp, without a branch.
__device__ __forceinline__ void barrier_arrive_by_one(std::uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(barrier)
      : "memory");
}

/// Blocks until the phase of the given parity is complete.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// As barrier_wait(), for what another block of the cluster wrote.
__device__ __forceinline__ void barrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// --- clusters ---

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// The address that names the same place in the shared memory of the cluster's block `rank`.
__device__ __forceinline__ std::uint32_t address_in_cluster(std::uint32_t address, int rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
/// All threads of all blocks of the cluster; what they wrote before is visible after it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
/// As barrier_arrive_by_one(), at an address of the cluster: what the warp read from its own shared
/// memory is in registers. A release in the scope of the cluster would say so too, but it is a
/// fence of all memory: a third of the time of a kernel that arrives once a tile (2026-11).
__device__ __forceinline__ void barrier_arrive_in_cluster_by_one(std::uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred p;\nfence.acq_rel.cta;\nelect.sync _|p, 0xffffffff;\n"
      "@p mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];\n}\n" ::"r"(barrier)
      : "memory");
}
/// Stores at an address of the cluster and then takes 16 bytes off what the barrier there, of the
/// same block, expects.
__device__ __forceinline__ void store_in_cluster(std::uint32_t target, float4 value,
                                                 std::uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(target),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

// --- copies ---

/// A policy that makes the lines of an access the last (or first) to leave the L2.
__device__ __forceinline__ std::uint64_t policy_evict_last() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t policy_evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ std::uint64_t policy_evict_normal() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Device memory to shared memory; source, target and bytes are multiples of 16. Completes on the
/// barrier.
__device__ __forceinline__ void bulk_copy(std::uint32_t target, const void* source,
                                          std::uint32_t bytes, std::uint32_t barrier,
                                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(target),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

/// A box of a tensor [groups of 8 tokens][lines][8 tokens][64 dims], swizzled on its way; all
/// lines of a head and as many groups as the map says.
__device__ __forceinline__ void tensor_copy(std::uint32_t target, const void* map, int line,
                                            int group, std::uint32_t barrier,
                                            std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %2, %3, %4}], [%5], %6;" ::"r"(target),
      "l"(map), "r"(0), "r"(line), "r"(group), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void copy_16_async(std::uint32_t target, const void* source,
                                              std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(target),
               "l"(source), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void copy_word_async(std::uint32_t target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void copy_words_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void store_hinted(float* target, float4 value, std::uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(target),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "l"(policy)
               : "memory");
}
__device__ __forceinline__ float4 load_4_hinted(const float* source, std::uint64_t policy) {
  float4 value;
  asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(source), "l"(policy)
               : "memory");
  return value;
}
__device__ __forceinline__ float load_1_hinted(const float* source, std::uint64_t policy) {
  float value;
  asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;"
               : "=f"(value)
               : "l"(source), "l"(policy)
               : "memory");
  return value;
}

// --- warpgroup products: order of registers and shared memory around them ---

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Shared memory written by ordinary stores becomes visible to products and bulk copies.
__device__ __forceinline__ void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// A matrix in shared memory with the 128-byte swizzle: lines of 128 bytes, eight lines to an atom
/// of 1024 bytes. `leading` and `stride` in bytes: from an atom to the next along n (kN only), and
/// along the other axis.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address, int leading,
                                                           int stride) {
  const std::uint32_t low =
      ((address & 0x3ffffu) >> 4) | (static_cast<std::uint32_t>(leading >> 4) << 16);
  const std::uint32_t high = static_cast<std::uint32_t>(stride >> 4) | (1u << 30);
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

/// The descriptor of what lies `bytes` further on in the same matrix.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t descriptor, int bytes) {
  // In the low word alone: addresses end at 256 KB, and the uniform datapath adds words.
  return (descriptor & 0xffffffff00000000u) |
         (static_cast<std::uint32_t>(descriptor) + static_cast<std::uint32_t>(bytes >> 4));
}

// --- threads and launches ---

__device__ __forceinline__ void sync_threads(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
/// Of a barrier that others wait for: goes on.
__device__ __forceinline__ void arrive_threads(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
/// Keeps what `value`, not negative, depends on ahead of what follows: an instruction that is never
/// executed. ptxas moves arithmetic past a wait for products, also where it was meant to run beside
/// them.
__device__ __forceinline__ void wait_until_known(float value) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 0;\n}\n" ::"f"(value)
      : "memory");
}
/// A warpgroup's registers a thread: given away, or taken where another one gave them away.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
using device::allow_next_launch;
using device::lane_again;
using device::thread_again;
using device::wait_for_previous_launch;

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace segue::attention::cuda
