// SPDX-License-Identifier: Apache-2.0
// The sweep on a GPU. One pool of synthetic sequences per (shape, depth, batch), in several copies
// that calls rotate over; an r-row cell runs the last r rows, so equal rows must have equal bytes.
#ifdef SEGUE_CUDA
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "attention/cuda/harness/world.h"
#include "attention/gpu.h"
#include "attention/kernel.h"
#include "core/clock.h"
#include "lab/gpu.h"
#include "lab/gpu_check.h"
#include "lab/gpu_mixed.h"
#include "lab/gpu_run.h"
#include "lab/stats.h"

namespace segue::lab {
namespace {

using attention::Plan;
using attention::SequenceRows;
using attention::cuda::DevicePlan;
using attention::cuda::Output;
using attention::cuda::RunOptions;
using attention::cuda::World;

constexpr std::int64_t kRoundBytes = 420'000'000;         // that calls of a round read together
constexpr std::int64_t kCeilingBytes = 4'294'967'296;     // read to find the ceiling
constexpr std::int64_t kFloorBytes = 2'147'483'648;       // larger cells have no launch floor
constexpr std::int64_t kSparePoolBytes = 40'000'000'000;  // windows read a part of their pools only
constexpr double kGraphUs = 2000;                         // calls of one graph: about this long
constexpr double kMemoryShare = 0.9;                      // of the GPU's memory for pools
constexpr int kPlanRepeats = 20;

struct Cell {
  int rows = 0;
  attention::Policy policy = attention::Policy::kSegue;
  Plan plan;
  std::unique_ptr<DevicePlan> device_plan;
  std::unique_ptr<device::Graph> graph;
  int calls = 1;
  std::vector<double> us;
  double plan_us = std::numeric_limits<double>::infinity();
  double update_us = std::numeric_limits<double>::infinity();
  double worst_error_over_bound = 0;
  double relative_error = 0;
};

/// What one launch that reads so many bytes takes, measured once for each size.
class Floors {
 public:
  core::Json us(device::Stream& stream, std::int64_t bytes) {
    if (bytes > kFloorBytes) return {};
    const auto [entry, fresh] = known_.try_emplace(bytes / 16 * 16, 0);
    if (fresh) entry->second = attention::cuda::read_floor(stream, entry->first);
    return entry->second;
  }

 private:
  std::map<std::int64_t, double> known_;
};

/// All cells of one (shape, depth, batch).
class Group {
 public:
  Group(const SweepOptions& options, const NamedShape& named, std::int64_t depth, int batch,
        const attention::Kernel* kernel, double read_gbps)
      : options_(options),
        name_(named.name),
        shape_(named.shape),
        depth_(depth),
        batch_(batch),
        kernel_(kernel),
        read_gbps_(read_gbps) {
    shape_.kv = options.kv;
    shape_.page_size = options.page_size;
    shape_.layout = options.layout.value_or(attention::gpu_layout(shape_));
    const std::int64_t seen =
        shape_.window > 0 ? std::min<std::int64_t>(shape_.window, depth) : depth;
    kv_bytes_ = seen * shape_.key_bytes() * batch;
    if (options.cache == CacheState::kCold) {
      const std::int64_t spare = std::max<std::int64_t>(kSparePoolBytes / pool_bytes(), 2);
      copies_ =
          static_cast<int>(std::min(std::max<std::int64_t>(kRoundBytes / kv_bytes_ + 1, 2), spare));
    }
  }

  std::int64_t memory_bytes() const { return pool_bytes() * copies_; }

  Status prepare(const device::GpuFacts& gpu) {
    if (Status status = try_plans(gpu); !status.ok()) return status;
    attention::cuda::WorldOptions world;
    world.copies = copies_;
    world_.emplace(shape_, std::vector<std::int64_t>(static_cast<std::size_t>(batch_), depth_),
                   world);
    if (Status status = check(); !status.ok()) return status;
    world_->make_queries(sequences(*std::ranges::max_element(options_.rows)));
    for (Cell& cell : cells_) capture(cell);
    for (int warm = 0; warm < 2; ++warm) {
      for (Cell& cell : cells_) cell.graph->replay(world_->stream());
    }
    world_->stream().synchronize();
    return {};
  }

  void sample() {
    device::Stream& stream = world_->stream();
    for (Cell& cell : cells_) {
      device::Event start;
      device::Event end;
      start.record(stream);
      cell.graph->replay(stream);
      end.record(stream);
      end.synchronize();
      cell.us.push_back(end.us_since(start) / cell.calls);
    }
  }

  void report(Floors& floors, core::Json& cells) {
    for (const Cell& cell : cells_) cells.push(cell_json(cell, floors));
  }

 private:
  std::int64_t pool_bytes() const { return depth_ * shape_.key_bytes() * batch_; }

  std::vector<SequenceRows> sequences(int rows) const {
    return std::vector<SequenceRows>(static_cast<std::size_t>(batch_),
                                     {depth_ - rows, rows, options_.prefill});
  }

  RunOptions run_options(const Cell& cell, int copy = 0) const {
    RunOptions run;
    run.policy = cell.policy;
    run.kernel = kernel_;
    run.copy = copy;
    return run;
  }

  /// Makes the cells; what cannot be planned is refused before any memory is taken.
  Status try_plans(const device::GpuFacts& gpu) {
    const attention::DeviceFacts facts = attention::gpu_device(gpu, shape_, kernel_);
    for (const attention::Policy policy : options_.policies) {
      for (const int rows : options_.rows) {
        Cell& cell = cells_.emplace_back();
        cell.rows = rows;
        cell.policy = policy;
        const std::vector<SequenceRows> step = sequences(rows);
        attention::PlanInput input;
        input.shape = shape_;
        input.sequences = step;
        input.policy = policy;
        input.decode_rows = rows;
        input.kernel = kernel_;
        for (int repeat = 0; repeat < kPlanRepeats; ++repeat) {
          const double start = core::now_us();
          if (Status status = attention::plan(input, facts, cell.plan); !status.ok()) return status;
          cell.plan_us = std::min(cell.plan_us, core::now_us() - start);
        }
      }
    }
    return {};
  }

  /// Every cell against the reference; and where one sequence is alone, the rows that cells share
  /// against each other.
  Status check() {
    const Cell* largest = &cells_.front();
    for (const Cell& cell : cells_) {
      if (cell.rows > largest->rows) largest = &cell;
    }
    const Output expected =
        world_->run(checked_part(sequences(largest->rows)), run_options(*largest));
    for (Cell& cell : cells_) {
      const std::vector<SequenceRows> step = checked_part(sequences(cell.rows));
      const Output found = world_->run(step, run_options(cell));
      const core::Verdict verdict = near_reference(*world_, step, found, cell.relative_error);
      if (!verdict.ok) return wrong(cell, "the result is wrong: " + verdict.message);
      cell.worst_error_over_bound = verdict.worst_ratio;
      if (batch_ > 1) continue;
      const core::Verdict equal =
          core::exact(std::span(found.out), std::span(expected.out).last(found.out.size()));
      if (!equal.ok) {
        return wrong(cell, fmt::format("its rows differ from those of {} rows: {}", largest->rows,
                                       equal.message));
      }
    }
    return {};
  }

  Error wrong(const Cell& cell, std::string_view what) const {
    return {
        ErrorCode::kUnsupported,
        fmt::format("{} at depth {}, batch {}, {} rows, policy {}, kernel {}: nothing is timed, "
                    "{}",
                    name_, depth_, batch_, cell.rows, attention::policy_name(cell.policy),
                    cell.plan.kernel->name, what)};
  }

  void capture(Cell& cell) {
    device::Stream& stream = world_->stream();
    const std::vector<SequenceRows> step = sequences(cell.rows);
    const std::vector<kv::PageTable> tables = world_->tables_for(step);
    cell.device_plan = std::make_unique<DevicePlan>(attention::cuda::capacity_of(cell.plan, tables),
                                                    shape_.head_dim);
    for (int repeat = 0; repeat < kPlanRepeats; ++repeat) {
      stream.synchronize();
      const double start = core::now_us();
      const Status status = cell.device_plan->upload(cell.plan, tables, stream);
      cell.update_us = std::min(cell.update_us, cell.plan_us + core::now_us() - start);
      if (!status.ok()) throw device::DeviceError(status.error().message);
    }
    stream.synchronize();
    const double estimate_us = static_cast<double>(kv_bytes_) / read_gbps_ / 1e3 + 5;
    cell.calls = copies_ * (static_cast<int>(kGraphUs / (estimate_us * copies_)) + 1);
    cell.graph = std::make_unique<device::Graph>(stream, [&] {
      for (int call = 0; call < cell.calls; ++call) {
        attention::DeviceParams params =
            world_->params(*cell.device_plan, run_options(cell, call % copies_));
        params.early_reads = options_.early_reads;
        world_->launch(cell.plan, params);
      }
    });
  }

  core::Json cell_json(const Cell& cell, Floors& floors) {
    const Plan& plan = cell.plan;
    const double us = median(cell.us);
    const double gbps = static_cast<double>(kv_bytes_) / us / 1e3;
    const double floor_us = static_cast<double>(kv_bytes_) / read_gbps_ / 1e3;
    core::Json ratio;
    for (const Cell& other : cells_) {
      if (other.rows == 1 && other.policy == cell.policy)
        ratio = paired_ratio(cell.us, other.us).median;
    }
    core::Json json = core::Json::object();
    json.set("shape", name_)
        .set("depth", depth_)
        .set("batch", batch_)
        .set("rows", cell.rows)
        .set("policy", attention::policy_name(cell.policy))
        .set("kernel", plan.kernel->name)
        .set("layout", kv::layout_name(shape_.layout))
        .set("page_size", shape_.page_size)
        .set("path", attention::path_name(plan.verdict.path))
        .set("workgroups", plan.workgroups())
        .set("unit", plan.tiles.empty() ? 0 : plan.tiles[0].unit)
        .set("us", samples_json(cell.us))
        .set("bytes", kv_bytes_)
        .set("gbps", gbps)
        .set("percent_of_read", 100 * gbps / read_gbps_)
        .set("ratio_to_one_row", std::move(ratio))
        .set("prefill", options_.prefill)
        .set("operations", plan.operations)
        .set("tflops", static_cast<double>(plan.operations) / us / 1e6)
        .set("floor_us", floor_us)
        .set("launch_floor_us", floors.us(world_->stream(), kv_bytes_))
        .set("ratio_to_bound", us / floor_us)
        .set("partial_bytes", plan.workspace_bytes())
        .set("plan_us", cell.plan_us)
        .set("update_us", cell.update_us)
        .set("checked_rows", cell.rows <= kCheckedRows ? cell.rows : 3 * kCheckedRun)
        .set("worst_error_over_bound", cell.worst_error_over_bound)
        .set("relative_error", cell.relative_error)
        .set("clause", plan.verdict.fired());
    return json;
  }

  const SweepOptions& options_;
  std::string name_;
  attention::Shape shape_;
  std::int64_t depth_;
  int batch_;
  const attention::Kernel* kernel_;
  double read_gbps_;
  std::int64_t kv_bytes_ = 0;  // visible keys of the last row, all sequences
  int copies_ = 1;
  std::optional<World> world_;
  std::vector<Cell> cells_;
};

Result<core::Json> sweep(const SweepOptions& options, const device::GpuFacts& gpu,
                         const attention::Kernel* kernel) {
  device::Stream stream;
  const double read_gbps = attention::cuda::read_ceiling(stream, kCeilingBytes);
  if (options.mixed) {
    Result<core::Json> steps = run_mixed_steps(options, gpu, kernel, read_gbps);
    if (!steps.ok()) return steps.error();
    return std::move(steps).value().set("read_gbps", read_gbps).set("gpu", gpu_json(gpu));
  }
  Floors floors;
  core::Json cells = core::Json::array();
  core::Json skipped = core::Json::array();
  const auto groups =
      static_cast<double>(options.shapes.size() * options.depths.size() * options.batches.size());
  double done = 0;
  bool interrupted = false;
  for (const NamedShape& shape : options.shapes) {
    for (const std::int64_t depth : options.depths) {
      for (const int batch : options.batches) {
        interrupted = interrupted || (options.cancelled && options.cancelled());
        if (interrupted) break;
        Group group(options, shape, depth, batch, kernel, read_gbps);
        if (static_cast<double>(group.memory_bytes()) >
            kMemoryShare * static_cast<double>(gpu.memory_bytes)) {
          skipped.push(core::Json::object()
                           .set("shape", shape.name)
                           .set("depth", depth)
                           .set("batch", batch)
                           .set("needs_bytes", group.memory_bytes()));
        } else {
          if (Status status = group.prepare(gpu); !status.ok()) return status.error();
          for (int round = 0; round < options.rounds; ++round) group.sample();
          group.report(floors, cells);
        }
        if (options.progress) options.progress(++done / groups);
      }
    }
  }
  core::Json json = core::Json::object();
  json.set("read_gbps", read_gbps)
      .set("peak_gflops", core::Json())
      .set("gpu", gpu_json(gpu))
      .set("cache", options.cache == CacheState::kCold ? "cold" : "warm")
      .set("interrupted", interrupted)
      .set("cells", std::move(cells))
      .set("skipped", std::move(skipped));
  return json;
}

}  // namespace

Result<core::Json> run_gpu_sweep(const SweepOptions& options) {
  return on_gpu(options.kernel, [&](const device::GpuFacts& gpu, const attention::Kernel* kernel) {
    return sweep(options, gpu, kernel);
  });
}

}  // namespace segue::lab
#endif
