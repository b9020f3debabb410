// SPDX-License-Identifier: Apache-2.0
// Every row of the kernel table on small problems: right (grade B against the double reference,
// with poisoned caches and guarded outputs), and the same bytes however a row's work is arranged
// (grade A). Long ones: kernel_slow_test.cc.
#include "attention/kernel.h"

#include <algorithm>
#include <cmath>

#include "attention/kernel_checks.h"

namespace segue::attention {
namespace {

INSTANTIATE_TEST_SUITE_P(Table, EveryKernel, testing::ValuesIn(kernel_cases()), case_name);

class NaturalLayouts : public EveryKernel {};

std::vector<KernelCase> natural_cases() {
  std::vector<KernelCase> cases = kernel_cases();
  std::erase_if(cases, [](const KernelCase& one) { return one.layout == kv::Layout::kTiled16; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Table, NaturalLayouts, testing::ValuesIn(natural_cases()), case_name);

Synthetic problem_of(const Shape& shape, std::vector<SequenceRows> sequences, float spread = 1.0f) {
  SyntheticOptions options;
  options.shape = shape;
  options.sequences = std::move(sequences);
  options.spread = spread;
  return Synthetic(std::move(options));
}

TEST(KernelTable, EndsWithTheReferenceAndFindsEveryRowByName) {
  ASSERT_FALSE(kernels().empty());
  EXPECT_EQ(kernels().back(), &kReference);
  for (const Kernel* kernel : kernels()) {
    const Result<const Kernel*> found = find_kernel(kernel->name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, kernel);
  }
  const Result<const Kernel*> unknown = find_kernel("cuda.9000");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kUsage);
  EXPECT_NE(unknown.error().message.find("reference"), std::string::npos);
}

TEST(KernelTable, ForcingAKernelThatLacksTheShapeIsRefused) {
  for (const Kernel* kernel : kernels()) {
    Shape shape{.q_heads = 4, .kv_heads = 1, .head_dim = 64, .kv = KvType::kF32};
    shape.layout = kv::Layout::kTokenMajor;
    if (kernel->supports(shape)) continue;
    const std::vector<SequenceRows> sequences{{.depth = 5, .rows = 1}};
    PlanInput input;
    input.shape = shape;
    input.sequences = sequences;
    input.kernel = kernel;
    Plan out;
    const Status status = plan(input, cpu_device(1), out);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kUsage);
  }
}

TEST(KernelTable, NaturalLayoutsHaveTheKernelOfTheDeviceLayout) {
  const auto first_of = [](const Shape& shape) {
    const auto row = std::ranges::find_if(
        kernels(), [&](const Kernel* kernel) { return kernel->supports(shape); });
    return (*row)->name;
  };
  for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    for (const int head_dim : {64, 80, 96, 128, 256, 512}) {
      Shape shape{.q_heads = 16, .kv_heads = 1, .head_dim = head_dim, .kv = kv};
      const std::string_view expected = first_of(shape);
      EXPECT_NE(expected, kReference.name);
      for (const kv::Layout layout : {kv::Layout::kTokenMajor, kv::Layout::kHeadMajor}) {
        shape.layout = layout;
        EXPECT_EQ(first_of(shape), expected) << kv::layout_name(layout);
      }
    }
  }
}

TEST(Reference, GivesTheSameBytesForEveryLayout) {
  for (const KvType kv : {KvType::kF16, KvType::kBF16}) {
    LaunchResult expected;
    for (const kv::Layout layout : {kv::Layout::kTokenMajor, kv::Layout::kHeadMajor,
                                    kv::Layout::kTiled16, kv::Layout::kSwizzled8}) {
      const KernelCase reference{&kReference, kv, layout};
      const Shape shape = reference.shape(8, 2, 128, 0, 24);
      const LaunchResult result = reference.run(problem_of(shape, {{.depth = 100, .rows = 3}}));
      if (expected.out.empty()) expected = result;
      expect_same_bytes(result, expected, std::string(kv::layout_name(layout)));
    }
  }
}

TEST_P(EveryKernel, IsRightForEveryHeadDimAndGroup) {
  for (const int head_dim : {64, 80, 96, 128, 256, 512}) {
    for (const int group : {1, 2, 3, 4, 8, 16}) {
      const Shape shape = GetParam().shape(group * 2, 2, head_dim);
      if (!GetParam().kernel->supports(shape)) continue;
      const Synthetic problem = problem_of(shape, {{.depth = 77, .rows = 3}});
      record(GetParam().expect_near_reference(problem, GetParam().run(problem)));
      if (HasFailure()) FAIL() << "head_dim " << head_dim << ", group " << group;
    }
  }
}

TEST_P(EveryKernel, IsRightAroundPageUnitAndTileBoundaries) {
  for (const int page_size : {8, 16, 24, 64}) {
    for (const int keys :
         {1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 63, 64, 65, 66, 127, 128, 129, 193}) {
      const Synthetic problem =
          problem_of(GetParam().shape(2, 1, 64, 0, page_size), {{.depth = keys - 1, .rows = 1}});
      record(GetParam().expect_near_reference(problem,
                                              GetParam().run(problem, {.force_segments = 3})));
      if (HasFailure()) FAIL() << "page size " << page_size << ", keys " << keys;
    }
  }
}

TEST_P(EveryKernel, IsRightInWindows) {
  for (const int window : {1, 2, 15, 16, 17, 64, 100}) {
    for (const int depth : {0, 14, 63, 64, 99, 100, 333}) {
      for (const int page_size : {8, 24}) {
        const Synthetic problem = problem_of(GetParam().shape(4, 2, 64, window, page_size),
                                             {{.depth = depth, .rows = 5}});
        record(GetParam().expect_near_reference(problem, GetParam().run(problem)));
        if (HasFailure())
          FAIL() << "window " << window << ", depth " << depth << ", page size " << page_size;
      }
    }
  }
}

TEST_P(EveryKernel, IsRightWithSoftcapSinksAndPeakedScores) {
  for (const float spread : {0.0f, 1.0f, 20.0f}) {
    for (const float softcap : {0.0f, 5.0f, 50.0f}) {
      for (const bool sinks : {false, true}) {
        SyntheticOptions options;
        options.shape = GetParam().shape(4, 1, 128);
        options.sequences = {{.depth = 200, .rows = 2}};
        options.spread = spread;
        options.softcap = softcap;
        options.sinks = sinks;
        const Synthetic problem(options);
        const LaunchResult whole = GetParam().run(problem);
        record(GetParam().expect_near_reference(problem, whole));
        expect_same_bytes(GetParam().run(problem, {.force_segments = 3}), whole, "3 segments");
        if (HasFailure())
          FAIL() << "spread " << spread << ", softcap " << softcap << ", sinks " << sinks;
      }
    }
  }
}

TEST_P(EveryKernel, GivesARowTheSameBytesWithOneToSixteenRows) {
  for (const int window : {0, 100}) {
    const Shape shape = GetParam().shape(8, 2, 64, window);
    const Synthetic all = problem_of(shape, {{.depth = 250, .rows = 16}});
    const LaunchResult block = GetParam().run(all);
    for (int rows = 1; rows <= 9; ++rows) {
      const Synthetic some = problem_of(shape, {{.depth = 250, .rows = rows}});
      expect_same_bytes(GetParam().run(some), rows_of(block, shape, 0, rows),
                        std::to_string(rows) + " rows");
    }
    for (int row = 0; row < 16; ++row) {
      const Synthetic alone = problem_of(shape, {{.depth = 250 + row, .rows = 1}});
      expect_same_bytes(GetParam().run(alone), rows_of(block, shape, row, 1),
                        "row " + std::to_string(row) + " alone");
    }
  }
}

TEST_P(EveryKernel, GivesTheSameBytesForEverySplitThreadCountAndPolicy) {
  const Synthetic problem =
      problem_of(GetParam().shape(8, 2, 80, 0, 24), {{.depth = 700, .rows = 3}});
  const LaunchResult whole = GetParam().run(problem, {.policy = Policy::kWhole});
  record(GetParam().expect_near_reference(problem, whole));
  for (const int segments : {1, 2, 3, 7, 16, 1000}) {
    expect_same_bytes(
        GetParam().run(problem, {.force_segments = segments, .threads = 1 + segments % 4}), whole,
        std::to_string(segments) + " segments");
  }
  for (const Policy policy : {Policy::kSegue, Policy::kStock, Policy::kPr45450, Policy::kPr47520,
                              Policy::kBatchInvariant, Policy::kSegmented}) {
    for (const int threads : {1, 2, 4}) {
      expect_same_bytes(
          GetParam().run(problem, {.policy = policy, .threads = threads}), whole,
          std::string(policy_name(policy)) + " on " + std::to_string(threads) + " threads");
    }
  }
}

TEST_P(EveryKernel, GivesTheSameBytesForEveryPageSize) {
  const Shape first = GetParam().shape(4, 1, 64, 0, 8);
  const LaunchResult expected = GetParam().run(problem_of(first, {{.depth = 1100, .rows = 2}}));
  for (const int page_size : {16, 24, 64, 544, 784, 1056, 1072}) {
    const Shape shape = GetParam().shape(4, 1, 64, 0, page_size);
    expect_same_bytes(GetParam().run(problem_of(shape, {{.depth = 1100, .rows = 2}})), expected,
                      "page size " + std::to_string(page_size));
  }
}

TEST_P(NaturalLayouts, GiveTheBytesOfTheDeviceLayoutWhateverTheirStrides) {
  KernelCase device = GetParam();
  device.layout = kv::Layout::kTiled16;
  for (const int head_dim : {64, 80, 96, 128, 256, 512}) {
    for (const int window : {0, 1, 90}) {
      for (const int page_size : {8, 24, 64}) {
        const auto options_of = [&](const KernelCase& kernel_case) {
          SyntheticOptions options;
          options.shape = kernel_case.shape(6, 2, head_dim, window, page_size);
          options.sequences = {{.depth = 301, .rows = 1}, {.depth = 9, .rows = 7}};
          options.softcap = 20.0f;
          options.sinks = true;
          return options;
        };
        const LaunchResult expected = device.run(Synthetic(options_of(device)));
        SyntheticOptions options = options_of(GetParam());
        for (const bool interleaved : {false, true}) {
          options.interleaved = interleaved;
          expect_same_bytes(GetParam().run(Synthetic(options)), expected,
                            interleaved ? "K beside V" : "dense");
        }
        if (HasFailure())
          FAIL() << "head_dim " << head_dim << ", window " << window << ", page " << page_size;
      }
    }
  }
}

TEST_P(EveryKernel, KeepsARequestsBytesInBatchesOf2And7And32) {  // situation 12
  const Shape shape = GetParam().shape(4, 1, 64);
  SyntheticOptions alone;
  alone.shape = shape;
  alone.sequences = {{.depth = 400, .rows = 3}};
  alone.contents = {1000};
  const LaunchResult expected = GetParam().run(Synthetic(alone));
  for (const int batch : {2, 7, 32}) {
    SyntheticOptions options;
    options.shape = shape;
    std::int64_t before = 0;
    for (int i = 0; i < batch; ++i) {
      if (i == batch / 2) {
        options.sequences.push_back(alone.sequences[0]);
        options.contents.push_back(1000);
        continue;
      }
      options.sequences.push_back({.depth = 13 * i, .rows = i % 4});
      options.contents.push_back(static_cast<std::uint64_t>(i));
      if (i < batch / 2) before += i % 4;
    }
    const LaunchResult result = GetParam().run(Synthetic(options), {.threads = 2});
    expect_same_bytes(rows_of(result, shape, before, 3), expected,
                      "batch " + std::to_string(batch));
  }
}

TEST_P(EveryKernel, RowsDoNotSeeNanInTheKeysOfLaterRows) {
  for (const int window : {0, 40}) {
    const Shape shape = GetParam().shape(4, 1, 64, window);
    SyntheticOptions options;
    options.shape = shape;
    options.sequences = {{.depth = 125, .rows = 6}};
    const LaunchResult clean = GetParam().run(Synthetic(options));
    options.nan_from = 4;
    const LaunchResult poisoned = GetParam().run(Synthetic(options));
    expect_same_bytes(rows_of(poisoned, shape, 0, 4), rows_of(clean, shape, 0, 4),
                      "rows before the NaN");
    for (const float value : rows_of(poisoned, shape, 4, 2).out) ASSERT_TRUE(std::isnan(value));
  }
}

TEST_P(EveryKernel, RepeatsItsBytes) {
  const Synthetic problem = problem_of(GetParam().shape(4, 2, 128), {{.depth = 600, .rows = 4}});
  const LaunchResult first = GetParam().run(problem, {.threads = 4});
  for (int repeat = 0; repeat < 5; ++repeat)
    expect_same_bytes(GetParam().run(problem, {.threads = 4}), first, "repeat");
}

TEST_P(EveryKernel, Situation2VerifyRowsInAWindowFarDown) {
  const Shape shape = GetParam().shape(2, 1, 64, 1024);
  const Synthetic problem = problem_of(shape, {{.depth = 60'000, .rows = 5}});
  const LaunchResult result = GetParam().run(problem, {.threads = 2});
  record(GetParam().expect_near_reference(problem, result));
  expect_same_bytes(GetParam().run(problem, {.policy = Policy::kStock}), result, "stock");
}

TEST_P(EveryKernel, Situation4KeysAtUnitBoundaries) {
  for (const int keys : {1984, 1985, 2111, 2112, 2113, 2114}) {  // unit 64 up to 2112 keys, then 80
    const Synthetic problem =
        problem_of(GetParam().shape(2, 2, 64, 0, 64), {{.depth = keys - 1, .rows = 1}});
    const LaunchResult whole = GetParam().run(problem);
    record(GetParam().expect_near_reference(problem, whole));
    expect_same_bytes(GetParam().run(problem, {.force_segments = 1000}), whole,
                      std::to_string(keys) + " keys");
  }
}

TEST_P(EveryKernel, Situation8SequencesOfDifferentRowCountsMergeInOneLaunch) {
  std::vector<SequenceRows> sequences;
  for (const int rows : {3, 1, 9, 0, 16, 2})
    sequences.push_back({.depth = 150 + 7 * rows, .rows = rows});
  const Synthetic problem = problem_of(GetParam().shape(8, 2, 64), sequences);
  const LaunchResult split = GetParam().run(problem, {.policy = Policy::kSegmented, .threads = 3});
  record(GetParam().expect_near_reference(problem, split));
  expect_same_bytes(GetParam().run(problem, {.policy = Policy::kWhole}), split, "whole");
}

TEST_P(EveryKernel, Situation9AContextShorterThanTheVerifyBlock) {
  for (const int page_size : {8, 784}) {
    const Synthetic problem =
        problem_of(GetParam().shape(4, 1, 256, 0, page_size), {{.depth = 3, .rows = 5}});
    record(GetParam().expect_near_reference(problem, GetParam().run(problem)));
  }
}

}  // namespace
}  // namespace segue::attention
