// SPDX-License-Identifier: Apache-2.0
// Times attention on a GPU and writes every sample as JSON: each result is checked against the
// reference in double before it is timed, KV buffers rotate so that a round reads more than 400 MB,
// calls are replayed from a graph, and the read ceiling is measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include "attention/cuda/harness/world.h"
#include "core/check.h"
#include "core/json.h"

namespace segue::attention::cuda {
namespace {

struct NamedShape {
  std::string name;
  int q_heads, kv_heads, head_dim, window;
};

const std::vector<NamedShape> kShapes{{"G-full", 32, 4, 512, 0},      {"G-full-tp2", 16, 2, 512, 0},
                                      {"G-slide", 32, 16, 256, 1024}, {"S-direct", 16, 8, 256, 0},
                                      {"L", 64, 8, 128, 0},           {"ONE", 4, 1, 256, 0}};

struct Options {
  std::vector<std::string> shapes{"G-full", "S-direct", "G-slide", "ONE"};
  std::vector<std::int64_t> lengths{1024, 32768, 131072, 100000};
  std::vector<int> rows{1, 2, 4, 8};
  std::vector<int> batches{1};
  int page_size = 16;
  std::string layout = "swizzled8";
  std::string policy = "segue";
  int replays = 11;
  bool check = true;
  bool prefill = false;
  bool mixed = false;
  bool early = false;
  bool floors = false;
  int window_units = 0, target_units = 0, target_items = 0, min_unit = 0, segments = 0;
  int coarse_keys = -1;
  std::string json;
  std::string label;
};

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    const Result<device::GpuFacts> gpu = device::gpu_facts();
    CHECK(gpu.ok());
    ceiling_ = read_ceiling(stream_, 4'294'967'296);
    document_.set("label", options.label);
    document_.set("machine", core::Json::object()
                                 .set("gpu", gpu->name)
                                 .set("multiprocessors", gpu->multiprocessors)
                                 .set("driver", gpu->driver)
                                 .set("cuda_runtime", gpu->runtime));
    document_.set("read_ceiling_gb_per_s", ceiling_);
    fmt::print("{}, read ceiling {:.0f} GB/s\n", gpu->name, ceiling_);
  }

  void floors() {
    core::Json list = core::Json::array();
    for (int log = 20; log <= 30; ++log) {
      const double us = read_floor(stream_, std::int64_t{1} << log);
      list.push(core::Json::object().set("bytes", std::int64_t{1} << log).set("us", us));
      fmt::print("floor {:5d} MiB {:8.2f} us {:5.1f} %\n", 1 << (log - 20), us,
                 100.0 * static_cast<double>(std::int64_t{1} << log) / us / 1e3 / ceiling_);
    }
    document_.set("floors", std::move(list));
  }

  void run(const NamedShape& named, std::int64_t length, int batch) {
    Shape shape;
    shape.q_heads = named.q_heads;
    shape.kv_heads = named.kv_heads;
    shape.head_dim = named.head_dim;
    shape.window = named.window;
    shape.kv = KvType::kBF16;
    shape.page_size = options_.page_size;
    shape.layout = options_.layout == "token-major"  ? kv::Layout::kTokenMajor
                   : options_.layout == "head-major" ? kv::Layout::kHeadMajor
                                                     : kv::Layout::kSwizzled8;
    const std::int64_t visible =
        named.window > 0 ? std::min<std::int64_t>(named.window, length) : length;
    const std::int64_t bytes = visible * shape.key_bytes() * batch;
    const std::int64_t held = length * shape.key_bytes() * batch;
    WorldOptions world_options;
    world_options.copies = static_cast<int>(std::max<std::int64_t>(420'000'000 / bytes + 1, 2));
    // A window reads a part of its pool only; pools of more than 40 GB are not made for it.
    world_options.copies = static_cast<int>(std::min<std::int64_t>(
        world_options.copies, std::max<std::int64_t>(40'000'000'000 / held, 2)));
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), length);
    World world(shape, lengths, world_options);
    if (options_.window_units > 0) world.facts().window_units = options_.window_units;
    if (options_.target_units > 0) world.facts().target_units = options_.target_units;
    if (options_.target_items > 0) world.facts().target_items = options_.target_items;
    if (options_.coarse_keys >= 0) world.facts().coarse_keys = options_.coarse_keys;
    if (options_.min_unit > 0) world.facts().min_unit = options_.min_unit;
    double first_us = 0;
    for (const int rows : options_.rows) {
      const std::vector<SequenceRows> sequences(
          static_cast<std::size_t>(batch), SequenceRows{length - rows, rows, options_.prefill});
      RunOptions run;
      run.force_segments = options_.segments;
      const Result<Policy> policy = parse_policy(options_.policy);
      CHECK(policy.ok());
      run.policy = *policy;
      core::Verdict verdict;
      double relative = 0;
      if (options_.check) {
        verdict = check(world, sequences, run);
        relative = world.relative_error();
        if (!verdict.ok) {
          fmt::print("{} kv {} rows {} batch {}: WRONG {}\n", named.name, length, rows, batch,
                     verdict.message);
          failed_ = true;
          continue;
        }
      }
      Plan plan;
      double plan_us = 1e9;
      for (int i = 0; i < 5; ++i) {
        const auto start = std::chrono::steady_clock::now();
        plan = world.plan_of(sequences, run);
        plan_us = std::min(plan_us, std::chrono::duration<double, std::micro>(
                                        std::chrono::steady_clock::now() - start)
                                        .count());
      }
      const double estimate = std::max(static_cast<double>(bytes) / ceiling_ / 1e3 + 5,
                                       static_cast<double>(plan.operations) / 400e6);
      const int rounds =
          std::max(1, static_cast<int>(2000 / (estimate * world_options.copies)) + 1);
      const std::vector<double> samples =
          time_plan(world, plan, sequences, run, {world_options.copies, rounds});
      const double us = median(samples);
      if (first_us == 0) first_us = us;
      const double share = static_cast<double>(bytes) / us / 1e3 / ceiling_;
      fmt::print(
          "{:10} kv {:6} batch {:3} rows {:2}: {:8.2f} us {:5.1f} %  t/t1 {:5.3f}  items {} "
          "partials {} unit {} {:.0f} TFLOP/s "
          "bound {:.2f} rel {:.1e}\n",
          named.name, length, batch, rows, us, 100 * share, us / first_us, plan.items.size(),
          plan.partials, plan.tiles.empty() ? 0 : plan.tiles[0].unit,
          static_cast<double>(plan.operations) / us / 1e6, verdict.worst_ratio, relative);
      std::fflush(stdout);
      core::Json cell = core::Json::object();
      cell.set("shape", named.name)
          .set("q_heads", shape.q_heads)
          .set("kv_heads", shape.kv_heads)
          .set("head_dim", shape.head_dim)
          .set("window", shape.window)
          .set("kv_len", length)
          .set("batch", batch)
          .set("rows", rows)
          .set("prefill", options_.prefill)
          .set("kernel", plan.kernel->name)
          .set("layout", kv::layout_name(shape.layout))
          .set("page_size", shape.page_size)
          .set("policy", policy_name(run.policy))
          .set("early_reads", options_.early)
          .set("unit", plan.tiles.empty() ? 0 : plan.tiles[0].unit)
          .set("items", static_cast<std::int64_t>(plan.items.size()))
          .set("kv_bytes", bytes)
          .set("workspace_bytes", plan.workspace_bytes())
          .set("floor_us", static_cast<double>(bytes) / ceiling_ / 1e3)
          .set("us", us)
          .set("share_of_ceiling", share)
          .set("tflop_per_s", static_cast<double>(plan.operations) / us / 1e6)
          .set("error_over_bound", verdict.worst_ratio)
          .set("relative_error", relative)
          .set("plan_us", plan_us)
          .set("samples", core::Json(samples));
      cells_.push(std::move(cell));
    }
  }

  /// Steps of unlike sequences: the whole, and its parts alone.
  void run_mixed(const NamedShape& named) {
    Shape shape;
    shape.q_heads = named.q_heads;
    shape.kv_heads = named.kv_heads;
    shape.head_dim = named.head_dim;
    shape.window = named.window;
    shape.layout = kv::Layout::kSwizzled8;
    constexpr int kRows = 4;
    std::vector<SequenceRows> lengths;
    for (int i = 0; i < 32; ++i) {
      const auto length = static_cast<std::int64_t>(200 * std::pow(1100.0, i / 31.0));
      lengths.push_back({length - kRows, kRows});
    }
    std::vector<std::vector<bool>> alone;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      alone.emplace_back(lengths.size(), false);
      alone.back()[i] = true;
    }
    run_step(named.name + " 32 lengths 200 to 220000, 4 rows", shape, lengths, alone);

    std::vector<SequenceRows> chunk(8, SequenceRows{50'000, 8});
    chunk[0] = {50'000, 2048, true};
    std::vector<bool> prompt(8, false);
    prompt[0] = true;
    std::vector<bool> verify(8, true);
    verify[0] = false;
    run_step(named.name + " a chunk of 2048 and 7 verify blocks of 8 at 50000", shape, chunk,
             {prompt, verify});
  }

  int finish() {
    document_.set("cells", std::move(cells_));
    if (!options_.json.empty()) std::ofstream(options_.json) << document_.dump(1) << '\n';
    return failed_ ? 1 : 0;
  }

 private:
  struct Rounds {
    int copies = 1;
    int each = 1;
  };

  std::vector<double> time_plan(World& world, const Plan& plan,
                                std::span<const SequenceRows> sequences, const RunOptions& run,
                                const Rounds& rounds) const {
    const std::vector<kv::PageTable> tables = world.tables_for(sequences);
    DevicePlan device_plan(capacity_of(plan, tables), world.shape().head_dim);
    CHECK(device_plan.upload(plan, tables, world.stream()).ok());
    world.make_queries(sequences);
    world.stream().synchronize();
    return time_calls(world.stream(), rounds.copies * rounds.each, options_.replays, [&](int i) {
      RunOptions copy = run;
      copy.copy = i % rounds.copies;
      DeviceParams params = world.params(device_plan, copy);
      params.early_reads = options_.early;
      world.launch(plan, params);
    });
  }

  void run_step(const std::string& name, const Shape& shape,
                const std::vector<SequenceRows>& sequences,
                const std::vector<std::vector<bool>>& parts) {
    std::vector<std::int64_t> lengths;
    for (const SequenceRows& rows : sequences) lengths.push_back(rows.kv_len());
    World world(shape, lengths, {});
    const auto time_of = [&](std::span<const SequenceRows> rows) {
      const Plan plan = world.plan_of(rows, {});
      return std::pair(median(time_plan(world, plan, rows, {}, {1, 2})), plan.kv_bytes);
    };
    if (options_.check) {
      const core::Verdict verdict = check(world, sequences, {});
      if (!verdict.ok) {
        fmt::print("{}: WRONG {}\n", name, verdict.message);
        failed_ = true;
        return;
      }
    }
    const auto [us, bytes] = time_of(sequences);
    double sum = 0;
    core::Json samples = core::Json::array();
    for (const std::vector<bool>& part : parts) {
      std::vector<SequenceRows> rows = sequences;
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i].rows = part[i] ? rows[i].rows : 0;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (!part[i]) rows[i].depth = 0;
      }
      const double alone = time_of(rows).first;
      sum += alone;
      samples.push(alone);
    }
    const double floor = static_cast<double>(bytes) / ceiling_ / 1e3;
    fmt::print("{}: {:.1f} us, parts alone {:.1f} us in all, reading each tile's keys {:.1f} us\n",
               name, us, sum, floor);
    std::fflush(stdout);
    cells_.push(core::Json::object()
                    .set("step", name)
                    .set("us", us)
                    .set("parts_alone_us", std::move(samples))
                    .set("parts_alone_sum_us", sum)
                    .set("kv_bytes_by_tile", bytes));
  }

  /// The first and the last sequence; of many rows, the first, middle and last sixteen of the last.
  static core::Verdict check(World& world, std::vector<SequenceRows> sequences,
                             const RunOptions& run) {
    for (std::size_t i = 1; i + 1 < sequences.size(); ++i) sequences[i].rows = 0;
    if (sequences.size() > 1 && sequences.back().rows > 64) sequences.front().rows = 0;
    const Output output = world.run(sequences, run);
    const SequenceRows all = sequences.back();
    if (all.rows <= 64) return world.check(sequences, output);
    constexpr int kRows = 16;
    const auto width = static_cast<std::ptrdiff_t>(world.shape().q_heads) * world.shape().head_dim;
    core::Verdict worst;
    for (const int first : {0, all.rows / 2, all.rows - kRows}) {
      Output part;
      part.out.assign(output.out.begin() + first * width,
                      output.out.begin() + (first + kRows) * width);
      sequences.back() = {all.depth + first, kRows, all.prefill};
      core::Verdict verdict = world.check(sequences, part);
      if (!verdict.ok) return verdict;
      if (verdict.worst_ratio >= worst.worst_ratio) worst = verdict;
    }
    return worst;
  }

  const Options& options_;
  device::Stream stream_;
  double ceiling_ = 0;
  core::Json document_ = core::Json::object();
  core::Json cells_ = core::Json::array();
  bool failed_ = false;
};

int run_main(const Options& options) {
  if (const auto gpu = device::gpu_facts(); !gpu.ok()) {
    fmt::print(stderr, "{}\n", gpu.error().message);
    return 2;
  }
  Bench bench(options);
  if (options.floors) bench.floors();
  if (options.mixed) {
    for (const NamedShape& named : kShapes) {
      if (std::find(options.shapes.begin(), options.shapes.end(), named.name) !=
          options.shapes.end()) {
        bench.run_mixed(named);
      }
    }
    return bench.finish();
  }
  for (const std::string& name : options.shapes) {
    const auto named = std::find_if(kShapes.begin(), kShapes.end(),
                                    [&](const NamedShape& s) { return s.name == name; });
    if (named == kShapes.end()) {
      fmt::print(stderr, "unknown shape '{}'\n", name);
      return 2;
    }
    for (const int batch : options.batches) {
      for (const std::int64_t length : options.lengths) {
        const std::int64_t held = length * named->kv_heads * named->head_dim * 4 * batch;
        if (held > 55'000'000'000) continue;  // two copies must fit
        bench.run(*named, length, batch);
      }
    }
  }
  return bench.finish();
}

}  // namespace
}  // namespace segue::attention::cuda

int main(int argc, char** argv) {
  segue::attention::cuda::Options options;
  CLI::App app{"Attention on a GPU: checked, then timed"};
  app.add_option("--shapes", options.shapes)->delimiter(',');
  app.add_option("--kv", options.lengths, "Keys, the step's rows included")->delimiter(',');
  app.add_option("--rows", options.rows)->delimiter(',');
  app.add_option("--batch", options.batches)->delimiter(',');
  app.add_option("--page-size", options.page_size);
  app.add_option("--layout", options.layout);
  app.add_option("--policy", options.policy);
  app.add_option("--replays", options.replays);
  app.add_option("--window-units", options.window_units);
  app.add_option("--target-units", options.target_units);
  app.add_option("--target-items", options.target_items);
  app.add_option("--min-unit", options.min_unit);
  app.add_option("--coarse-keys", options.coarse_keys);
  app.add_option("--segments", options.segments);
  app.add_flag("--prefill", options.prefill, "The rows are prompt rows");
  app.add_flag("--mixed", options.mixed, "Steps of unlike sequences instead of the table");
  app.add_flag("--early", options.early, "Read KV before the previous kernel ends");
  app.add_flag("--floors", options.floors, "Also the floor of one launch by bytes");
  app.add_flag("!--no-check", options.check);
  app.add_option("--json", options.json);
  app.add_option("--label", options.label, "Recorded as it is: commit, date");
  CLI11_PARSE(app, argc, argv);
  return segue::attention::cuda::run_main(options);
}
