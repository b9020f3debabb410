// SPDX-License-Identifier: Apache-2.0
// Each case is run once as a baseline; everything else is compared with that.
#include "lab/exactness.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "attention/kernel.h"
#include "attention/reference.h"
#include "attention/synthetic.h"
#include "core/append.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/hash.h"
#include "core/tolerance.h"
#include "lab/exactness_case.h"
#include "lab/forced_kernel.h"
#include "lab/gpu.h"
#include "lab/stats.h"

namespace segue::lab {
namespace {

using attention::LaunchResult;
using attention::Plan;
using attention::Policy;
using attention::SequenceRows;
using attention::Shape;
using attention::Synthetic;

constexpr std::array kCases{
    ExactnessCase{"4,1,256", 4, 1, 256, 0, 16, 1024},
    ExactnessCase{"4,1,256", 4, 1, 256, 0, 16, 7168},
    ExactnessCase{"4,1,256,512", 4, 1, 256, 512, 16, 2048},
    ExactnessCase{"16,8,256", 16, 8, 256, 0, 16, 2048},
    ExactnessCase{"16,8,256,1024", 16, 8, 256, 1024, 24, 4096},
    ExactnessCase{"8,1,512", 8, 1, 512, 0, 784, 4096},
    ExactnessCase{"8,2,128", 8, 2, 128, 0, 64, 2110},  // rows on both sides of a unit class
    ExactnessCase{"6,2,64", 6, 2, 64, 0, 16, 3, 30.0f, true},
};
constexpr std::array kRows{1, 2, 4};
constexpr std::array kPolicies{Policy::kSegue,    Policy::kStock,          Policy::kPr45450,
                               Policy::kPr47520,  Policy::kBatchInvariant, Policy::kWhole,
                               Policy::kSegmented};
constexpr std::array kSegments{1, 2, 3, 7, 16, 1000};
constexpr int kRepeats = 3;
constexpr int kBlockRows = 8;  // of the block that a case's rows are also computed in

struct Arrangement {
  Policy policy = Policy::kSegue;
  int force_segments = 0;
  int threads = 1;
};

bool same(const LaunchResult& found, const LaunchResult& expected) {
  return core::exact(found.out, expected.out).ok && core::exact(found.lse, expected.lse).ok;
}

LaunchResult rows_of(const LaunchResult& result, const Shape& shape, std::int64_t first,
                     std::int64_t rows) {
  const std::int64_t floats = std::int64_t{shape.q_heads} * shape.head_dim;
  LaunchResult part;
  part.out.assign(result.out.begin() + first * floats,
                  result.out.begin() + (first + rows) * floats);
  part.lse.assign(result.lse.begin() + first * shape.q_heads,
                  result.lse.begin() + (first + rows) * shape.q_heads);
  return part;
}

float rounded(float value, KvType type) {
  switch (type) {
    case KvType::kF32: return value;
    case KvType::kF16: return core::f16_to_f32(core::f32_to_f16(value));
    case KvType::kBF16: return core::bf16_to_f32(core::f32_to_bf16(value));
  }
  return value;
}

/// Numbers of the type between two values of it.
std::int64_t ulps_between(float a, float b, KvType type) {
  const auto ordered = [type](float value) {
    std::int64_t bits = 0;
    std::int64_t sign = 0;
    if (type == KvType::kF32) {
      bits = std::bit_cast<std::int32_t>(value) & 0x7fffffff;
      sign = std::signbit(value) ? -1 : 1;
    } else {
      const std::uint16_t half =
          type == KvType::kF16 ? core::f32_to_f16(value) : core::f32_to_bf16(value);
      bits = half & 0x7fff;
      sign = (half & 0x8000) != 0 ? -1 : 1;
    }
    return sign * bits;
  };
  return std::abs(ordered(rounded(a, type)) - ordered(rounded(b, type)));
}

/// Runs one kernel on problems in any arrangement; keeps a pool per thread count.
class Runner {
 public:
  explicit Runner(const attention::Kernel* kernel) : kernel_(kernel) {}

  Result<Plan> plan(const Synthetic& problem, const Arrangement& as) const {
    attention::PlanInput input;
    input.shape = problem.options().shape;
    input.sequences = problem.options().sequences;
    input.policy = as.policy;
    input.force_segments = as.force_segments;
    input.decode_rows = kBlockRows;
    input.kernel = kernel_;
    Plan plan;
    Status status = attention::plan(input, attention::cpu_device(as.threads), plan);
    if (!status.ok()) return status.error();
    return plan;
  }

  Result<LaunchResult> run(const Synthetic& problem, const Arrangement& as = {}) {
    Result<Plan> planned = plan(problem, as);
    if (!planned.ok()) return planned.error();
    LaunchResult result = attention::launch(problem, *planned, pool(as.threads));
    std::string wrong = result.overrun.empty() ? problem.check_untouched() : result.overrun;
    if (wrong.empty()) return result;
    return Error{ErrorCode::kUnsupported,
                 fmt::format("kernel '{}': {}", planned->kernel->name, wrong)};
  }

  /// Is the result of this arrangement that one? Counts the answer.
  Status compare(const Synthetic& problem, const Arrangement& as, const LaunchResult& expected,
                 Comparisons& comparisons) {
    Result<LaunchResult> result = run(problem, as);
    if (!result.ok()) return result.error();
    comparisons.add(same(*result, expected));
    return {};
  }

  core::ThreadPool& pool(int threads) {
    std::unique_ptr<core::ThreadPool>& slot = pools_[threads];
    if (slot == nullptr) slot = std::make_unique<core::ThreadPool>(threads);
    return *slot;
  }

 private:
  const attention::Kernel* kernel_;
  std::map<int, std::unique_ptr<core::ThreadPool>> pools_;
};

/// One case with one row count.
class CaseRun {
 public:
  CaseRun(const ExactnessCase& spec, int rows, const ExactnessOptions& options, int threads,
          Runner& runner)
      : spec_(spec),
        rows_(rows),
        kv_(options.kv),
        threads_(threads),
        runner_(runner),
        problem_(problem({{.depth = spec.depth, .rows = rows}}, {0})) {}

  Result<core::Json> run() {
    Result<LaunchResult> baseline = runner_.run(problem_);
    if (!baseline.ok()) return baseline.error();
    baseline_ = *std::move(baseline);
    for (auto step :
         {&CaseRun::compare_arrangements, &CaseRun::compare_rows, &CaseRun::compare_batches}) {
      if (Status status = (this->*step)(); !status.ok()) return status.error();
    }
    return report();
  }

 private:
  Synthetic problem(std::vector<SequenceRows> sequences,
                    std::vector<std::uint64_t> contents) const {
    attention::SyntheticOptions options;
    options.shape = {.q_heads = spec_.q_heads,
                     .kv_heads = spec_.kv_heads,
                     .head_dim = spec_.head_dim,
                     .window = spec_.window,
                     .kv = kv_,
                     .page_size = spec_.page_size};
    options.sequences = std::move(sequences);
    options.contents = std::move(contents);
    options.softcap = spec_.softcap;
    options.sinks = spec_.sinks;
    return Synthetic(std::move(options));
  }

  Status compare_arrangements() {
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      if (Status s = runner_.compare(problem_, {}, baseline_, repeats_); !s.ok()) return s;
    }
    for (const int segments : kSegments) {
      const Arrangement as{.force_segments = segments, .threads = threads_};
      if (Status s = runner_.compare(problem_, as, baseline_, segments_); !s.ok()) return s;
    }
    for (int threads = 2; threads <= threads_; ++threads) {
      if (Status s = runner_.compare(problem_, {.threads = threads}, baseline_, thread_counts_);
          !s.ok())
        return s;
    }
    for (const Policy policy : kPolicies) {
      if (Status s = runner_.compare(problem_, {.policy = policy, .threads = threads_}, baseline_,
                                     policies_);
          !s.ok()) {
        return s;
      }
    }
    return {};
  }

  /// Every row alone, and all of them at the head of a longer block.
  Status compare_rows() {
    const Shape& shape = problem_.options().shape;
    for (int row = 0; row < rows_; ++row) {
      const Synthetic alone = problem({{.depth = spec_.depth + row, .rows = 1}}, {0});
      if (Status s = runner_.compare(alone, {}, rows_of(baseline_, shape, row, 1), row_counts_);
          !s.ok())
        return s;
    }
    const Synthetic block = problem({{.depth = spec_.depth, .rows = kBlockRows}}, {0});
    Result<LaunchResult> result = runner_.run(block, {.threads = threads_});
    if (!result.ok()) return result.error();
    row_counts_.add(same(rows_of(*result, shape, 0, rows_), baseline_));
    return {};
  }

  Status compare_batches() {
    const Shape& shape = problem_.options().shape;
    for (const int before : {1, 6}) {
      std::vector<SequenceRows> sequences;
      std::vector<std::uint64_t> contents;
      std::int64_t token = 0;
      for (int i = 0; i < before; ++i) {
        sequences.push_back({.depth = 37 * i, .rows = 1 + i % 3});
        contents.push_back(static_cast<std::uint64_t>(100 + i));
        token += sequences.back().rows;
      }
      sequences.push_back({.depth = spec_.depth, .rows = rows_});
      contents.push_back(0);
      Result<LaunchResult> result =
          runner_.run(problem(sequences, contents), {.threads = threads_});
      if (!result.ok()) return result.error();
      batches_.add(same(rows_of(*result, shape, token, rows_), baseline_));
    }
    return {};
  }

  struct Errors {
    double worst_ratio = 0;
    double largest = 0;
    double largest_plain = 0;
    std::int64_t largest_ulps = 0;
    double mean_ulps = 0;
    bool ok = true;
  };

  Result<Errors> measure_errors() {
    Result<Plan> whole = runner_.plan(problem_, {.policy = Policy::kWhole});
    if (!whole.ok()) return whole.error();
    attention::Params params = problem_.params();
    params.plan = &*whole;
    attention::Stream stream{&runner_.pool(threads_)};
    const attention::ReferenceResult reference = attention::reference_result(params, stream);
    std::vector<float> plain(reference.out.size());
    params.out = plain.data();
    attention::plain_attention(params, stream);
    std::vector<double> bounds(reference.out.size());
    const auto dim = static_cast<std::size_t>(spec_.head_dim);
    Errors errors;
    double ulps = 0;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = core::derived_bound({.reference = reference.out[i],
                                       .absolute_sum = reference.absolute_sum[i],
                                       .score_sum = reference.score_sum[i / dim]},
                                      core::unit_roundoff(KvType::kF32),
                                      core::unit_roundoff(whole->kernel->p_type));
      errors.largest = std::max(errors.largest, std::abs(baseline_.out[i] - reference.out[i]));
      errors.largest_plain = std::max(errors.largest_plain, std::abs(plain[i] - reference.out[i]));
      const std::int64_t distance = ulps_between(baseline_.out[i], plain[i], kv_);
      errors.largest_ulps = std::max(errors.largest_ulps, distance);
      ulps += static_cast<double>(distance);
    }
    errors.mean_ulps = ulps / static_cast<double>(bounds.size());
    const core::Verdict verdict = core::within_bounds(baseline_.out, reference.out, bounds);
    errors.worst_ratio = verdict.worst_ratio;
    errors.ok = verdict.ok;
    return errors;
  }

  Result<core::Json> report() {
    const Result<Errors> errors = measure_errors();
    if (!errors.ok()) return errors.error();
    core::Json equal = core::Json::object();
    bool ok = errors->ok;
    for (const auto& [name, comparisons] :
         {std::pair<std::string_view, const Comparisons*>{"repeats", &repeats_},
          {"rows", &row_counts_},
          {"batch", &batches_},
          {"segments", &segments_},
          {"threads", &thread_counts_},
          {"policies", &policies_}}) {
      equal.set(name, comparisons->json());
      ok = ok && comparisons->differing == 0;
    }
    core::Hash64 hash;
    hash.update(baseline_.out.data(), baseline_.out.size() * sizeof(float));
    core::Json json = core::Json::object();
    json.set("shape", spec_.shape);
    json.set("depth", spec_.depth);
    json.set("rows", rows_);
    json.set("window", spec_.window);
    json.set("page_size", spec_.page_size);
    json.set("ok", ok);
    json.set("hash", fmt::format("{:016x}", hash.digest()));
    json.set("equal", std::move(equal));
    json.set("worst_error_over_bound", errors->worst_ratio);
    json.set("largest_error", errors->largest);
    json.set("largest_error_plain", errors->largest_plain);
    core::Json ulps = core::Json::object();
    ulps.set("type", kv_type_name(kv_));
    ulps.set("largest", errors->largest_ulps);
    ulps.set("mean", errors->mean_ulps);
    json.set("ulps_to_plain", std::move(ulps));
    return json;
  }

  const ExactnessCase& spec_;
  int rows_;
  KvType kv_;
  int threads_;
  Runner& runner_;
  Synthetic problem_;
  LaunchResult baseline_;
  Comparisons repeats_;
  Comparisons row_counts_;
  Comparisons batches_;
  Comparisons segments_;
  Comparisons thread_counts_;
  Comparisons policies_;
};

}  // namespace

Result<core::Json> run_exactness(const ExactnessOptions& options) {
  if (options.device == attention::DeviceKind::kCuda) return run_gpu_exactness(options);
  const Result<const attention::Kernel*> forced =
      forced_kernel(options.kernel, attention::DeviceKind::kCpu);
  if (!forced.ok()) return forced.error();
  const attention::Kernel* kernel = *forced;
  const int threads =
      std::max(options.threads > 0 ? options.threads : core::cpu_facts().logical_cpus, 2);
  Runner runner(kernel);
  core::Json cases = core::Json::array();
  bool ok = true;
  bool interrupted = false;
  int done = 0;
  for (const ExactnessCase& spec : kCases) {
    for (const int rows : kRows) {
      interrupted = interrupted || (options.cancelled && options.cancelled());
      if (interrupted) break;
      Result<core::Json> result = CaseRun(spec, rows, options, threads, runner).run();
      if (!result.ok()) return result.error();
      const bool* case_ok = result->find("ok")->as_bool();
      ok = ok && case_ok != nullptr && *case_ok;
      cases.push(*std::move(result));
      if (options.progress)
        options.progress(++done / static_cast<double>(kCases.size() * kRows.size()));
    }
  }
  Shape shape{.q_heads = 4, .kv_heads = 1, .head_dim = 256, .kv = options.kv};
  for (const attention::Kernel* row : attention::kernels()) {
    if (kernel == nullptr && row->device == attention::DeviceKind::kCpu && row->supports(shape))
      kernel = row;
  }
  core::Json json = core::Json::object();
  json.set("kernel", kernel->name);
  json.set("bits_class", kernel->bits_class);
  json.set("kv", kv_type_name(options.kv));
  json.set("threads", threads);
  json.set("ok", ok);
  json.set("interrupted", interrupted);
  json.set("cases", std::move(cases));
  return json;
}

std::string exactness_table(const core::Json& exactness) {
  const auto text = [](const core::Json& json, std::string_view key) {
    const core::Json* member = json.find(key);
    if (member == nullptr) return std::string();
    return member->as_string() != nullptr ? *member->as_string() : member->dump();
  };
  std::string table;
  core::append(table, "kernel {}, bits class {}\n", text(exactness, "kernel"),
               text(exactness, "bits_class"));
  core::append(table, "{:<16} {:>6} {:>4} {:>12} {:>12} {:>14} {:>10}  {}\n", "shape", "depth",
               "rows", "comparisons", "differing", "error / bound", "ulps", "verdict");
  const core::Json* cases = exactness.find("cases");
  if (cases == nullptr || cases->as_array() == nullptr) return table;
  for (const core::Json& one : *cases->as_array()) {
    std::int64_t made = 0;
    std::int64_t differing = 0;
    for (const core::Json::Member& member : *one.find("equal")->as_object()) {
      made += *member.second.find("made")->as_int();
      differing += *member.second.find("differing")->as_int();
    }
    const core::Json* ulps = one.find("ulps_to_plain");
    core::append(table, "{:<16} {:>6} {:>4} {:>12} {:>12} {:>14.3f} {:>10}  {}\n",
                 *one.find("shape")->as_string(), text(one, "depth"), text(one, "rows"), made,
                 differing, number(one, "worst_error_over_bound"),
                 ulps != nullptr ? text(*ulps, "largest") : "",
                 *one.find("ok")->as_bool() ? "exact" : "DIFFERENT");
  }
  return table;
}

}  // namespace segue::lab
