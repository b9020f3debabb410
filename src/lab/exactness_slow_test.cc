// SPDX-License-Identifier: Apache-2.0
// The whole exactness check, as `segue exactness` runs it: minutes in a debug build.
#include "lab/exactness.h"

#include <gtest/gtest.h>

namespace segue::lab {
namespace {

TEST(Exactness, HoldsEveryCaseOfTheFirstKernelOfEveryKvType) {
  for (const KvType kv : {KvType::kBF16, KvType::kF16, KvType::kF32}) {
    int calls = 0;
    ExactnessOptions options;
    options.kv = kv;
    options.threads = 3;
    options.progress = [&](double) { ++calls; };
    const Result<core::Json> result = run_exactness(options);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(*result->find("ok")->as_bool()) << exactness_table(*result);
    EXPECT_GE(result->find("cases")->as_array()->size(), 18u);
    EXPECT_GE(calls, 18);
  }
}

}  // namespace
}  // namespace segue::lab
