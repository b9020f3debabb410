// SPDX-License-Identifier: Apache-2.0
// Test support: plans that are checked as they are made.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "attention/plan.h"
#include "attention/plan_check.h"

namespace segue::attention {

inline DeviceFacts device_of(int workgroups) {
  DeviceFacts device;
  device.workgroups = workgroups;
  device.multiprocessors = workgroups;
  return device;
}

inline Plan plan_of(const PlanInput& input, const DeviceFacts& device) {
  Plan out;
  const Status status = plan(input, device, out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(check_plan(out, input.sequences, device), "") << to_text(out);
  return out;
}

inline Plan plan_of(const Shape& shape, const std::vector<SequenceRows>& sequences,
                    const DeviceFacts& device, Policy policy = Policy::kSegue,
                    int decode_rows = 1) {
  PlanInput input;
  input.shape = shape;
  input.sequences = sequences;
  input.policy = policy;
  input.decode_rows = decode_rows;
  return plan_of(input, device);
}

}  // namespace segue::attention
