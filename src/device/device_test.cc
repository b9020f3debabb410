// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <gtest/gtest.h>

namespace segue::device {
namespace {

TEST(Device, SaysWhatIsMissingWhereThereIsNoGpu) {
  const Result<GpuFacts> facts = gpu_facts();
  EXPECT_EQ(facts.ok(), gpu_count() > 0);
  if (!facts.ok()) {
    EXPECT_FALSE(facts.error().message.empty());
    return;
  }
  EXPECT_GT(facts->multiprocessors, 0);
  EXPECT_FALSE(facts->name.empty());
}

TEST(Device, RefusesAnIndexPastTheLastGpu) { EXPECT_FALSE(gpu_facts(1 << 20).ok()); }

}  // namespace
}  // namespace segue::device
