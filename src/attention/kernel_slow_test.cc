// SPDX-License-Identifier: Apache-2.0
// Every row of the kernel table on long problems and on many random ones: the situations that need
// depth, and the full matrix of what may not change a byte. Minutes, not seconds; short problems
// are in kernel_test.cc.
#include <array>
#include <random>

#include "attention/kernel_checks.h"

namespace segue::attention {
namespace {

/// The reference would be compared with itself, slowly.
std::vector<KernelCase> fast_cases() {
  std::vector<KernelCase> cases = kernel_cases();
  std::erase_if(cases, [](const KernelCase& one) { return one.kernel == &kReference; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Table, EveryKernel, testing::ValuesIn(fast_cases()), case_name);

Synthetic problem_of(const Shape& shape, std::vector<SequenceRows> sequences) {
  SyntheticOptions options;
  options.shape = shape;
  options.sequences = std::move(sequences);
  return Synthetic(std::move(options));
}

TEST_P(EveryKernel, IsRightAndIndifferentToItsSplitOnRandomProblems) {
  std::mt19937 random(11);
  const auto pick = [&](auto... values) {
    const std::array options{values...};
    return options[random() % options.size()];
  };
  for (int round = 0; round < 120; ++round) {
    const int kv_heads = pick(1, 2, 3);
    SyntheticOptions options;
    options.shape = GetParam().shape(kv_heads * pick(1, 2, 3, 4, 8, 16), kv_heads,
                                     pick(64, 80, 96, 128, 256, 512), pick(0, 0, 1, 30, 512, 1024),
                                     pick(8, 16, 24, 40, 64, 256, 784));
    if (!GetParam().kernel->supports(options.shape)) continue;
    for (int i = 0; i < pick(1, 1, 2, 5); ++i) {
      options.sequences.push_back(
          {.depth = pick(0, 1, 15, 16, 63, 64, 65, 500, 1023, 2050, 2110, 3000),
           .rows = pick(0, 1, 1, 2, 3, 5, 9, 16, 70)});
    }
    options.spread = pick(0.0f, 1.0f, 5.0f, 40.0f);
    options.softcap = pick(0.0f, 0.0f, 30.0f);
    options.sinks = random() % 2 == 0;
    const bool natural = GetParam().layout != kv::Layout::kTiled16;
    options.interleaved = natural && random() % 2 == 0;
    const Synthetic problem(options);
    const LaunchResult whole = GetParam().run(problem, {.policy = Policy::kWhole});
    record(GetParam().expect_near_reference(problem, whole));
    const RunAs other{
        .policy = pick(Policy::kSegue, Policy::kStock, Policy::kSegmented, Policy::kPr45450),
        .force_segments = pick(0, 0, 2, 3, 7, 1000),
        .threads = pick(1, 2, 3, 4)};
    expect_same_bytes(GetParam().run(problem, other), whole, "another split");
    if (natural) {
      KernelCase device = GetParam();
      options.shape.layout = device.layout = kv::Layout::kTiled16;
      options.interleaved = false;
      expect_same_bytes(device.run(Synthetic(options), other), whole, "the device layout");
    }
    if (HasFailure()) {
      FAIL() << "round " << round << "\n" << to_text(GetParam().plan(problem, other));
    }
  }
}

TEST_P(EveryKernel, Situation1PageSizesThatAreNoPowersOfTwoAt32K) {
  const auto of = [&](int page_size) {
    return problem_of(GetParam().shape(4, 1, 256, 0, page_size), {{.depth = 32'768, .rows = 2}});
  };
  const LaunchResult usual = GetParam().run(of(16));
  for (const int page_size : {784, 544, 1056, 1072}) {
    const Synthetic problem = of(page_size);
    const LaunchResult result = GetParam().run(problem, {.threads = 2});
    expect_same_bytes(result, usual, "page size " + std::to_string(page_size));
    if (page_size == 784) record(GetParam().expect_near_reference(problem, result));
  }
}

TEST_P(EveryKernel, Situation3APrefillChunkBesideSevenVerifyRequests) {
  const Shape shape = GetParam().shape(4, 2, 64);
  SyntheticOptions options;
  options.shape = shape;
  options.sequences = {{.depth = 0, .rows = 2048, .prefill = true}};
  options.contents = {99};
  for (int i = 0; i < 7; ++i) {
    options.sequences.push_back({.depth = 50'000, .rows = 4});
    options.contents.push_back(static_cast<std::uint64_t>(i));
  }
  const Synthetic mixed(options);
  const LaunchResult result = GetParam().run(mixed, {.threads = 2});
  record(GetParam().expect_near_reference(mixed, result));
  SyntheticOptions alone;
  alone.shape = shape;
  alone.sequences = {{.depth = 50'000, .rows = 4}};
  alone.contents = {6};
  expect_same_bytes(rows_of(result, shape, 2048 + 6 * 4, 4), GetParam().run(Synthetic(alone)),
                    "alone");
}

TEST_P(EveryKernel, Situation6TwoToSixteenRowsAtHeadDim512) {
  for (const int group : {4, 8}) {
    const Shape shape = GetParam().shape(group, 1, 512);
    const Synthetic all = problem_of(shape, {{.depth = 4096, .rows = 16}});
    const LaunchResult block = GetParam().run(all, {.threads = 2});
    record(GetParam().expect_near_reference(all, block));
    for (int rows = 2; rows < 16; ++rows) {
      expect_same_bytes(GetParam().run(problem_of(shape, {{.depth = 4096, .rows = rows}})),
                        rows_of(block, shape, 0, rows), std::to_string(rows) + " rows");
    }
  }
}

TEST_P(EveryKernel, Situation7GroupsOfOneAndFourKvHeads) {
  for (const int kv_heads : {1, 4}) {
    const Synthetic problem = problem_of(GetParam().shape(16, kv_heads, 128),
                                         {{.depth = 6000, .rows = 3}, {.depth = 70, .rows = 1}});
    const LaunchResult result = GetParam().run(problem, {.threads = 2});
    record(GetParam().expect_near_reference(problem, result));
    expect_same_bytes(GetParam().run(problem, {.policy = Policy::kWhole}), result, "whole");
  }
}

TEST_P(EveryKernel, Situation11OneRowAndKPlusOneRowsAtThreeDepths) {
  for (const std::int64_t depth : {2048, 7168, 16'384}) {
    const Shape shape = GetParam().shape(4, 1, 128);
    const LaunchResult block =
        GetParam().run(problem_of(shape, {{.depth = depth, .rows = 8}}), {.threads = 2});
    for (int row = 0; row < 8; ++row) {
      expect_same_bytes(GetParam().run(problem_of(shape, {{.depth = depth + row, .rows = 1}})),
                        rows_of(block, shape, row, 1), "row " + std::to_string(row));
      expect_same_bytes(GetParam().run(problem_of(shape, {{.depth = depth, .rows = row + 1}})),
                        rows_of(block, shape, 0, row + 1), std::to_string(row + 1) + " rows");
    }
  }
}

TEST_P(EveryKernel, Situation13ACanvasOf256RowsOver32K) {
  const Shape shape = GetParam().shape(4, 1, 64);
  const Synthetic canvas = problem_of(shape, {{.depth = 32'768, .rows = 256}});
  const LaunchResult result = GetParam().run(canvas, {.threads = 2});
  record(GetParam().expect_near_reference(canvas, result));
  for (const int row : {0, 1, 64, 255}) {
    expect_same_bytes(GetParam().run(problem_of(shape, {{.depth = 32'768 + row, .rows = 1}})),
                      rows_of(result, shape, row, 1), "row " + std::to_string(row));
  }
}

}  // namespace
}  // namespace segue::attention
