// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "lab/gpu_mixed.h"

#include <cmath>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "attention/cuda/harness/world.h"
#include "attention/gpu.h"
#include "lab/gpu_check.h"
#include "lab/stats.h"

namespace segue::lab {
namespace {

using attention::SequenceRows;
using attention::Shape;
using attention::cuda::DevicePlan;
using attention::cuda::RunOptions;
using attention::cuda::World;

constexpr int kCalls = 2;  // of a graph: these steps read far more than the caches hold

struct Step {
  std::string_view name;
  std::vector<SequenceRows> sequences;
  std::vector<std::vector<std::size_t>> parts;  // sequences that make a step of their own
};

Step ragged() {
  constexpr int kSequences = 32;
  constexpr int kRows = 4;
  Step step{"32 sequences of 200 to 220000 keys, 4 rows each", {}, {}};
  for (std::size_t i = 0; i < kSequences; ++i) {
    const auto length = static_cast<std::int64_t>(
        200 * std::pow(1100.0, static_cast<double>(i) / (kSequences - 1)));
    step.sequences.push_back({length - kRows, kRows});
    step.parts.push_back({i});
  }
  return step;
}

Step chunk_among_verify_blocks() {
  constexpr std::int64_t kDepth = 50'000;
  Step step{"a prompt chunk of 2048 rows and 7 verify blocks of 8 at 50000", {}, {{0}, {}}};
  step.sequences.assign(8, SequenceRows{kDepth, 8});
  step.sequences[0] = {kDepth, 2048, true};
  step.parts[1].resize(7);
  std::iota(step.parts[1].begin(), step.parts[1].end(), 1);
  return step;
}

class MixedRun {
 public:
  MixedRun(const SweepOptions& options, const NamedShape& named, const attention::Kernel* kernel,
           double read_gbps, const Step& step)
      : options_(options), named_(named), read_gbps_(read_gbps), step_(step) {
    run_.kernel = kernel;
    Shape shape = named.shape;
    shape.kv = options.kv;
    shape.page_size = options.page_size;
    shape.layout = options.layout.value_or(attention::gpu_layout(shape));
    std::vector<std::int64_t> lengths;
    for (const SequenceRows& rows : step.sequences) lengths.push_back(rows.kv_len());
    world_.emplace(shape, lengths, attention::cuda::WorldOptions{});
  }

  Result<core::Json> run() {
    double relative_error = 0;
    const core::Verdict verdict = check_some(*world_, step_.sequences, run_, relative_error);
    if (!verdict.ok) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("{}, {}: the result is wrong, nothing is timed: {}", named_.name,
                               step_.name, verdict.message)};
    }
    const Timed whole = time(step_.sequences);
    core::Json alone = core::Json::array();
    double sum = 0;
    for (const std::vector<std::size_t>& part : step_.parts) {
      std::vector<SequenceRows> rows(step_.sequences.size());
      for (const std::size_t i : part) rows[i] = step_.sequences[i];
      const double us = median(time(rows).us);
      alone.push(us);
      sum += us;
    }
    return core::Json::object()
        .set("step", step_.name)
        .set("shape", named_.name)
        .set("us", samples_json(whole.us))
        .set("parts_alone_us", std::move(alone))
        .set("parts_alone_sum_us", sum)
        .set("floor_us", static_cast<double>(whole.kv_bytes) / read_gbps_ / 1e3)
        .set("kv_bytes", whole.kv_bytes)
        .set("worst_error_over_bound", verdict.worst_ratio);
  }

 private:
  struct Timed {
    std::vector<double> us;
    std::int64_t kv_bytes = 0;
  };

  Timed time(const std::vector<SequenceRows>& sequences) {
    World& world = *world_;
    const attention::Plan plan = world.plan_of(sequences, run_);
    const std::vector<kv::PageTable> tables = world.tables_for(sequences);
    DevicePlan device_plan(attention::cuda::capacity_of(plan, tables), world.shape().head_dim);
    if (const Status status = device_plan.upload(plan, tables, world.stream()); !status.ok())
      throw device::DeviceError(status.error().message);
    world.make_queries(sequences);
    world.stream().synchronize();
    attention::DeviceParams params = world.params(device_plan, run_);
    params.early_reads = options_.early_reads;
    return {attention::cuda::time_calls(world.stream(), kCalls, options_.rounds,
                                        [&](int) { world.launch(plan, params); }),
            plan.kv_bytes};
  }

  const SweepOptions& options_;
  const NamedShape& named_;
  double read_gbps_;
  const Step& step_;
  RunOptions run_;
  std::optional<World> world_;
};

}  // namespace

Result<core::Json> run_mixed_steps(const SweepOptions& options, const device::GpuFacts& gpu,
                                   const attention::Kernel* kernel, double read_gbps) {
  core::Json results = core::Json::array();
  const std::vector<Step> steps{ragged(), chunk_among_verify_blocks()};
  double done = 0;
  bool interrupted = false;
  for (const NamedShape& named : options.shapes) {
    for (const Step& step : steps) {
      interrupted = interrupted || (options.cancelled && options.cancelled());
      if (interrupted) break;
      attention::PlanInput input;
      input.shape = named.shape;
      input.shape.kv = options.kv;
      input.shape.page_size = options.page_size;
      input.shape.layout = options.layout.value_or(attention::gpu_layout(named.shape));
      input.sequences = step.sequences;
      input.kernel = kernel;
      attention::Plan plan;
      if (Status status =
              attention::plan(input, attention::gpu_device(gpu, input.shape, kernel), plan);
          !status.ok()) {
        return status.error();
      }
      Result<core::Json> result = MixedRun(options, named, kernel, read_gbps, step).run();
      if (!result.ok()) return result.error();
      results.push(std::move(result).value());
      if (options.progress)
        options.progress(++done / static_cast<double>(steps.size() * options.shapes.size()));
    }
  }
  return core::Json::object().set("steps", std::move(results)).set("interrupted", interrupted);
}

}  // namespace segue::lab
#endif
