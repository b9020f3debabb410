// SPDX-License-Identifier: Apache-2.0
// The exactness check on a GPU: every case is a block of 16 rows, run once as a baseline whose
// error the reference in double bounds; everything else must have its bytes.
#ifdef SEGUE_CUDA
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "attention/cuda/harness/world.h"
#include "attention/gpu.h"
#include "attention/kernel.h"
#include "core/hash.h"
#include "lab/exactness_case.h"
#include "lab/gpu.h"
#include "lab/gpu_run.h"

namespace segue::lab {
namespace {

using attention::Policy;
using attention::SequenceRows;
using attention::Shape;
using attention::cuda::Capacity;
using attention::cuda::DevicePlan;
using attention::cuda::Output;
using attention::cuda::RunOptions;
using attention::cuda::World;

constexpr std::array kCases{
    ExactnessCase{"32,4,512", 32, 4, 512, 0, 16, 1024},
    ExactnessCase{"32,4,512", 32, 4, 512, 0, 16, 32'768},
    ExactnessCase{"16,8,256", 16, 8, 256, 0, 16, 7001},
    ExactnessCase{"16,8,256", 16, 8, 256, 0, 24, 40'000},
    ExactnessCase{"32,16,256,1024", 32, 16, 256, 1024, 16, 4096},
    ExactnessCase{"64,8,128", 64, 8, 128, 0, 16, 100'000},
    ExactnessCase{"64,8,128", 64, 8, 128, 0, 64, 2110},  // rows on both sides of a unit class
    ExactnessCase{"4,1,256", 4, 1, 256, 0, 16, 32'760},
    ExactnessCase{"16,1,512", 16, 1, 512, 0, 8, 5000},
    ExactnessCase{"6,2,64,700", 6, 2, 64, 700, 32, 3000, 30.0f, true},
    ExactnessCase{"32,8,96", 32, 8, 96, 0, 16, 20'000},
    ExactnessCase{"32,32,80", 32, 32, 80, 0, 24, 3000},
};
constexpr int kRows = 16;
constexpr std::array kPolicies{Policy::kStock,          Policy::kPr45450, Policy::kPr47520,
                               Policy::kBatchInvariant, Policy::kWhole,   Policy::kSegmented};
constexpr std::array kSegments{1, 2, 3, 7, 16, 1000};
constexpr int kRepeats = 3;

class CaseRun {
 public:
  CaseRun(const ExactnessCase& spec, const Shape& shape, const attention::Kernel* kernel)
      : spec_(spec), shape_(shape), world_(shape, lengths(spec), world_options(spec)) {
    as_.kernel = kernel;
  }

  core::Json run() {
    const std::vector<SequenceRows> block{{spec_.depth, kRows}};
    baseline_ = world_.run(block, as_);
    const core::Verdict verdict = world_.check(block, baseline_);
    compare_rows();
    compare_arrangements();
    compare_batches();
    compare_replays();
    core::Json equal = core::Json::object();
    bool ok = verdict.ok;
    for (const auto& [name, comparisons] :
         {std::pair<std::string_view, const Comparisons*>{"repeats", &repeats_},
          {"rows", &row_counts_},
          {"batch", &batches_},
          {"segments", &segments_},
          {"policies", &policies_},
          {"replays", &replays_}}) {
      equal.set(name, comparisons->json());
      ok = ok && comparisons->differing == 0;
    }
    core::Hash64 hash;
    hash.update(baseline_.out.data(), baseline_.out.size() * sizeof(baseline_.out[0]));
    return core::Json::object()
        .set("shape", spec_.shape)
        .set("depth", spec_.depth)
        .set("rows", kRows)
        .set("window", spec_.window)
        .set("page_size", spec_.page_size)
        .set("kernel", world_.plan_of(block, as_).kernel->name)
        .set("ok", ok)
        .set("hash", fmt::format("{:016x}", hash.digest()))
        .set("equal", std::move(equal))
        .set("worst_error_over_bound", verdict.worst_ratio)
        .set("relative_error", world_.relative_error());
  }

 private:
  static std::vector<std::int64_t> lengths(const ExactnessCase& spec) {
    return {spec.depth + kRows, spec.depth / 3 + kRows, 40};
  }
  static attention::cuda::WorldOptions world_options(const ExactnessCase& spec) {
    attention::cuda::WorldOptions options;
    options.softcap = spec.softcap;
    options.sinks = spec.sinks;
    return options;
  }

  /// The first sequence's rows of `found`, which begin at row `first` of the baseline.
  bool same(const Output& found, int first, int rows) const {
    const auto width = static_cast<std::size_t>(shape_.q_heads * shape_.head_dim);
    const auto count = static_cast<std::size_t>(rows) * width;
    return core::exact(
               std::span(found.out).first(count),
               std::span(baseline_.out).subspan(static_cast<std::size_t>(first) * width, count))
        .ok;
  }

  void compare(const std::vector<SequenceRows>& step, const RunOptions& as,
               Comparisons& comparisons) {
    const Output found = world_.run(step, as);
    const auto first = static_cast<int>(step[0].depth - spec_.depth);
    comparisons.add(same(found, first, step[0].rows));
  }

  void compare_rows() {
    for (int row = 0; row < kRows; ++row) compare({{spec_.depth + row, 1}}, as_, row_counts_);
    for (int rows = 2; rows < kRows; ++rows) {
      compare({{spec_.depth, rows}}, as_, row_counts_);
      compare({{spec_.depth + kRows - rows, rows}}, as_, row_counts_);
    }
  }

  void compare_arrangements() {
    const std::vector<SequenceRows> block{{spec_.depth, kRows}};
    for (int repeat = 0; repeat < kRepeats; ++repeat) compare(block, as_, repeats_);
    for (const int segments : kSegments) {
      RunOptions as = as_;
      as.force_segments = segments;
      compare(block, as, segments_);
      compare({{spec_.depth + 3, 1}}, as, segments_);
    }
    for (const Policy policy : kPolicies) {
      RunOptions as = as_;
      as.policy = policy;
      compare(block, as, policies_);
    }
  }

  void compare_batches() {
    const std::int64_t other = spec_.depth / 3;
    compare({{spec_.depth, kRows}, {other, kRows}, {24, 16}}, as_, batches_);
    compare({{spec_.depth + 2, 9}, {other, 0}, {39, 1}}, as_, batches_);
    compare({{spec_.depth + 15, 1}, {other, 4}}, as_, batches_);
  }

  /// Captured on a short sequence with the capacity of all steps, replayed at the others.
  void compare_replays() {
    const std::vector<std::vector<SequenceRows>> steps{
        {{spec_.depth, 1}}, {{spec_.depth, kRows}}, {{spec_.depth + 5, 3}}};
    Capacity capacity;
    for (const auto& step : steps) {
      capacity = attention::cuda::larger(
          capacity,
          attention::cuda::capacity_of(world_.plan_of(step, as_), world_.tables_for(step)));
    }
    world_.make_queries(steps[1]);
    DevicePlan device_plan(capacity, shape_.head_dim);
    device::Stream& stream = world_.stream();
    const attention::Plan first = world_.plan_of(steps[0], as_);
    attention::DeviceParams params = world_.params(device_plan, as_);
    params.whole_capacity = true;
    device::Graph graph(stream, [&] { world_.launch(first, params); });
    for (const auto& step : steps) {
      const attention::Plan plan = world_.plan_of(step, as_);
      if (!device_plan.upload(plan, world_.tables_for(step), stream).ok()) continue;
      world_.make_queries(step);
      world_.poison_output();
      graph.replay(stream);
      ++replays_.made;
      const auto offset = static_cast<int>(step[0].depth - spec_.depth);
      replays_.differing +=
          same(world_.read_output(plan.rows, false), offset, step[0].rows) ? 0 : 1;
    }
  }

  const ExactnessCase& spec_;
  Shape shape_;
  World world_;
  RunOptions as_;
  Output baseline_;
  Comparisons repeats_;
  Comparisons row_counts_;
  Comparisons batches_;
  Comparisons segments_;
  Comparisons policies_;
  Comparisons replays_;
};

Shape shape_of(const ExactnessCase& spec, KvType kv) {
  Shape shape;
  shape.q_heads = spec.q_heads;
  shape.kv_heads = spec.kv_heads;
  shape.head_dim = spec.head_dim;
  shape.window = spec.window;
  shape.kv = kv;
  shape.layout = attention::gpu_layout(shape);
  shape.page_size = spec.page_size;
  return shape;
}

Result<core::Json> check(const ExactnessOptions& options, const device::GpuFacts& gpu,
                         const attention::Kernel* kernel) {
  core::Json cases = core::Json::array();
  bool ok = true;
  bool interrupted = false;
  double done = 0;
  std::string_view bits_class;
  for (const ExactnessCase& spec : kCases) {
    interrupted = options.cancelled && options.cancelled();
    if (interrupted) break;
    const Shape shape = shape_of(spec, options.kv);
    if (kernel != nullptr && !kernel->supports(shape)) continue;
    const SequenceRows row{.depth = spec.depth, .rows = 1};
    attention::PlanInput input;
    input.shape = shape;
    input.sequences = {&row, 1};
    input.kernel = kernel;
    attention::Plan plan;
    if (Status status = attention::plan(input, attention::gpu_device(gpu, shape, kernel), plan);
        !status.ok()) {
      return status.error();
    }
    bits_class = plan.kernel->bits_class;
    core::Json result = CaseRun(spec, shape, kernel).run();
    ok = ok && *result.find("ok")->as_bool();
    cases.push(std::move(result));
    ++done;
    if (options.progress) options.progress(done / static_cast<double>(kCases.size()));
  }
  if (done == 0 && !interrupted) {
    return Error{ErrorCode::kUsage,
                 fmt::format("kernel '{}' supports none of the cases with {} KV",
                             kernel != nullptr ? kernel->name : "", kv_type_name(options.kv))};
  }
  return core::Json::object()
      .set("kernel", kernel != nullptr ? kernel->name : "of the table")
      .set("bits_class", bits_class)
      .set("kv", kv_type_name(options.kv))
      .set("gpu", gpu_json(gpu))
      .set("ok", ok)
      .set("interrupted", interrupted)
      .set("cases", std::move(cases));
}

}  // namespace

Result<core::Json> run_gpu_exactness(const ExactnessOptions& options) {
  return on_gpu(options.kernel, [&](const device::GpuFacts& gpu, const attention::Kernel* kernel) {
    return check(options, gpu, kernel);
  });
}

}  // namespace segue::lab
#endif
