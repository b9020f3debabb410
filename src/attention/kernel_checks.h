// SPDX-License-Identifier: Apache-2.0
// What kernel_test.cc and kernel_slow_test.cc share: the rows of the table as test parameters, and
// the two questions asked of every row: is the result within the derived bound of the reference,
// and are two results the same bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attention/kernel.h"
#include "attention/plan_check.h"
#include "attention/reference.h"
#include "attention/synthetic.h"
#include "core/tolerance.h"

namespace segue::attention {

/// How a problem is planned and run.
struct RunAs {
  Policy policy = Policy::kSegue;
  int force_segments = 0;
  int threads = 1;
};

/// One kernel of the table, with the KV type and layout that it is tried with.
struct KernelCase {
  const Kernel* kernel = nullptr;
  KvType kv = KvType::kBF16;
  kv::Layout layout = kv::Layout::kTiled16;

  Shape shape(int q_heads, int kv_heads, int head_dim, int window = 0, int page_size = 16) const {
    Shape shape;
    shape.q_heads = q_heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.window = window;
    shape.kv = kv;
    shape.layout = layout;
    shape.page_size = page_size;
    return shape;
  }

  Plan plan(const Synthetic& problem, const RunAs& as) const {
    PlanInput input;
    input.shape = problem.options().shape;
    input.sequences = problem.options().sequences;
    input.policy = as.policy;
    input.force_segments = as.force_segments;
    input.decode_rows = 16;
    input.kernel = kernel;
    DeviceFacts device;
    device.workgroups = as.threads;
    device.multiprocessors = as.threads;
    Plan out;
    const Status status = attention::plan(input, device, out);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(check_plan(out, problem.options().sequences, device), "");
    return out;
  }

  LaunchResult run(const Synthetic& problem, const RunAs& as = {}) const {
    core::ThreadPool pool(as.threads);
    LaunchResult result = launch(problem, plan(problem, as), pool);
    EXPECT_EQ(result.overrun, "");
    EXPECT_EQ(problem.check_untouched(), "");
    return result;
  }

  /// Grade B; returns the worst error / bound.
  double expect_near_reference(const Synthetic& problem, const LaunchResult& result) const {
    const Plan whole = plan(problem, {.policy = Policy::kWhole});
    Params params = problem.params();
    params.plan = &whole;
    core::ThreadPool pool(2);
    Stream stream{&pool};
    const ReferenceResult reference = reference_result(params, stream);
    const double eps_out = core::unit_roundoff(KvType::kF32);
    const double eps_acc = core::unit_roundoff(kernel->p_type);
    const auto dim = static_cast<std::size_t>(whole.shape.head_dim);
    std::vector<double> bounds(reference.out.size());
    std::vector<double> lse_bounds(reference.lse.size());
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = core::derived_bound({.reference = reference.out[i],
                                       .absolute_sum = reference.absolute_sum[i],
                                       .score_sum = reference.score_sum[i / dim]},
                                      eps_out, eps_acc);
    }
    for (std::size_t i = 0; i < lse_bounds.size(); ++i) {
      lse_bounds[i] = core::derived_bound(
          {.reference = reference.lse[i], .absolute_sum = 1.0, .score_sum = reference.score_sum[i]},
          eps_out, eps_acc);
    }
    const core::Verdict out =
        core::within_bounds(result.out, reference.out, bounds, coordinates(problem));
    EXPECT_TRUE(out.ok) << "out [row, head, dim] " << out.message;
    const core::Verdict lse = core::within_bounds(result.lse, reference.lse, lse_bounds);
    EXPECT_TRUE(lse.ok) << "lse " << lse.message;
    return std::max(out.worst_ratio, lse.worst_ratio);
  }

  static std::vector<std::int64_t> coordinates(const Synthetic& problem) {
    return {problem.rows(), problem.options().shape.q_heads, problem.options().shape.head_dim};
  }
};

/// Rows [first, first + count) of a result.
inline LaunchResult rows_of(const LaunchResult& result, const Shape& shape, std::int64_t first,
                            std::int64_t count) {
  const std::int64_t heads = shape.q_heads;
  const std::int64_t floats = heads * shape.head_dim;
  LaunchResult part;
  part.out.assign(result.out.begin() + first * floats,
                  result.out.begin() + (first + count) * floats);
  part.lse.assign(result.lse.begin() + first * heads, result.lse.begin() + (first + count) * heads);
  return part;
}

/// Grade A.
inline void expect_same_bytes(const LaunchResult& found, const LaunchResult& expected,
                              const std::string& what) {
  const core::Verdict out = core::exact(found.out, expected.out);
  EXPECT_TRUE(out.ok) << what << ": out " << out.message;
  const core::Verdict lse = core::exact(found.lse, expected.lse);
  EXPECT_TRUE(lse.ok) << what << ": lse " << lse.message;
}

/// Every CPU row of the table with every KV type and layout that it supports; of the reference the
/// layouts only.
inline std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  for (const Kernel* kernel : kernels()) {
    if (kernel->device != DeviceKind::kCpu) continue;  // tests of their own, on their device
    for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
      for (const kv::Layout layout :
           {kv::Layout::kTiled16, kv::Layout::kTokenMajor, kv::Layout::kHeadMajor}) {
        if (kernel == &kReference && kv != KvType::kBF16) continue;
        const KernelCase kernel_case{kernel, kv, layout};
        if (kernel->supports(kernel_case.shape(4, 1, 64))) cases.push_back(kernel_case);
      }
    }
  }
  return cases;
}

inline std::string case_name(const testing::TestParamInfo<KernelCase>& parameter) {
  const KernelCase& kernel_case = parameter.param;
  std::string name(kernel_case.kernel->name);
  name += '_';
  name += kv_type_name(kernel_case.kv);
  name += '_';
  name += kv::layout_name(kernel_case.layout);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

class EveryKernel : public testing::TestWithParam<KernelCase> {
 protected:
  /// Prints the worst error / bound of the test, so that drift shows before it fails.
  void record(double ratio) { worst_ = std::max(worst_, ratio); }
  void TearDown() override {
    if (worst_ > 0) RecordProperty("worst_error_over_bound", std::to_string(worst_));
  }

 private:
  double worst_ = 0;
};

}  // namespace segue::attention
