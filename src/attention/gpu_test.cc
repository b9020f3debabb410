// SPDX-License-Identifier: Apache-2.0
// Which GPU gets which kernels: a table of compute capabilities and head dims, and the messages
// where there is nothing.
#include "attention/gpu.h"

#include <gtest/gtest.h>

#include "attention/kernel.h"

namespace segue::attention {
namespace {

device::GpuFacts gpu_of(std::string name, int major, int minor) {
  device::GpuFacts gpu;
  gpu.name = std::move(name);
  gpu.major = major;
  gpu.minor = minor;
  gpu.multiprocessors = 100;
  return gpu;
}

Shape shape_of(int head_dim) { return {.q_heads = 8, .kv_heads = 2, .head_dim = head_dim}; }

Kernel kernel_of(std::string_view name, GpuFamily family) {
  Kernel kernel;
  kernel.name = name;
  kernel.device = DeviceKind::kCuda;
  kernel.family = family;
  return kernel;
}

TEST(Gpu, HopperHasItsOwnKernelsAndEverythingElseFrom80OnTheCommonOnes) {
  for (const int head_dim : {64, 128, 256, 512}) {
    EXPECT_EQ(gpu_device(gpu_of("H200", 9, 0), shape_of(head_dim)).family, GpuFamily::kSm90);
    for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 9}, {10, 0}, {12, 0}}) {
      EXPECT_EQ(gpu_device(gpu_of("x", major, minor), shape_of(head_dim)).family, GpuFamily::kSm80)
          << major << "." << minor;
    }
  }
}

TEST(Gpu, HeadDimsThatAreNoMultipleOf64GetTheCommonKernelsOnHopperToo) {
  for (const int head_dim : {80, 96}) {
    const Shape shape = shape_of(head_dim);
    EXPECT_EQ(gpu_device(gpu_of("H200", 9, 0), shape).family, GpuFamily::kSm80);
    EXPECT_EQ(gpu_layout(shape), kv::Layout::kHeadMajor);
  }
  EXPECT_EQ(gpu_layout(shape_of(64)), kv::Layout::kSwizzled8);
}

TEST(Gpu, FactsAreThoseOfTheForcedKernelsFamilyWhichChangesTilesAndUnitsOfHeadDim512) {
  const device::GpuFacts h200 = gpu_of("H200", 9, 0);
  const Kernel forced = kernel_of("cuda.sm80.x", GpuFamily::kSm80);
  ASSERT_TRUE(check_gpu(h200, &forced).ok());
  for (const int head_dim : {64, 128, 256, 512}) {
    const DeviceFacts own = gpu_device(h200, shape_of(head_dim));
    const DeviceFacts other = gpu_device(h200, shape_of(head_dim), &forced);
    EXPECT_EQ(other.family, GpuFamily::kSm80);
    EXPECT_EQ(other.max_tile_rows, 64);
    EXPECT_EQ(own.max_tile_rows, head_dim > 256 ? 64 : 128);
    EXPECT_EQ(other.workgroups, head_dim > 128 ? 100 : 200);
    EXPECT_EQ(own.workgroups, head_dim > 256 ? 50 : 200);
    EXPECT_EQ(other.target_units, 32);
    EXPECT_EQ(own.target_units, head_dim > 256 || head_dim == 128 ? 16 : 32);
    if (head_dim > 256) continue;
    EXPECT_EQ(other.unit_granule, own.unit_granule);
    EXPECT_EQ(other.min_unit, own.min_unit);
  }
}

TEST(Gpu, WhatCannotRunIsRefusedWithBothNumbers) {
  const Status old = check_gpu(gpu_of("Tesla T4", 7, 5));
  ASSERT_FALSE(old.ok());
  EXPECT_EQ(old.error().message,
            "Tesla T4 has compute capability 7.5; the attention kernels are for 8.0 and later");
  const Kernel hopper = kernel_of("cuda.sm90.x", GpuFamily::kSm90);
  EXPECT_TRUE(check_gpu(gpu_of("A100", 8, 0)).ok());
  const Status forced = check_gpu(gpu_of("A100", 8, 0), &hopper);
  ASSERT_FALSE(forced.ok());
  EXPECT_EQ(forced.error().message,
            "kernel 'cuda.sm90.x' is for compute capability 9.0; A100 has 8.0");
}

}  // namespace
}  // namespace segue::attention
