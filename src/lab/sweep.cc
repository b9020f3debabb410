// SPDX-License-Identifier: Apache-2.0
// One synthetic cache per (shape, depth) serves all its cells: an r-row cell runs the last r rows,
// so all cells read the same keys and equal rows must have equal bytes.
#include "lab/sweep.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "attention/kernel.h"
#include "attention/reference.h"
#include "attention/synthetic.h"
#include "core/append.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/memory.h"
#include "core/tolerance.h"
#include "kv/sizing.h"
#include "lab/forced_kernel.h"
#include "lab/gpu.h"
#include "lab/probe.h"
#include "lab/stats.h"

namespace segue::lab {
namespace {

using attention::Plan;

constexpr std::size_t kColdBytes = std::size_t{448} << 20;  // all copies of a cold cell's cache
constexpr std::int64_t kCheckOperations =
    4'000'000'000;                  // more: only the last row meets the reference
constexpr double kSampleUs = 2000;  // warm launches of one sample: about this long
constexpr int kWarmLaunches = 20;   // at most
constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Zeroed memory in huge pages where the system gives them, as the KV pools have it.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
    void* mapping = mmap(nullptr, bytes_ + kHugePage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return;
    mapping_ = mapping;
    const auto address = reinterpret_cast<std::uintptr_t>(mapping);
    data_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
    madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  ~Memory() {
    if (mapping_ != nullptr) munmap(mapping_, bytes_ + kHugePage);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }  // null: the system refused

 private:
  std::size_t bytes_;
  void* mapping_ = nullptr;
  std::byte* data_ = nullptr;
};

/// kNoMemory when the machine has less left than `bytes`; a double, which does not overflow.
Status check_available(double bytes, std::string_view what) {
  const std::int64_t available = core::available_memory_bytes();
  if (bytes <= static_cast<double>(available)) return {};
  const double most = static_cast<double>(std::numeric_limits<std::int64_t>::max() / 2);
  const auto needed = static_cast<std::int64_t>(std::min(bytes, most));
  return Error{
      ErrorCode::kNoMemory,
      fmt::format("the sweep needs {} bytes ({}) for {}; {} bytes ({}) are available", needed,
                  kv::bytes_text(needed), what, available, kv::bytes_text(available))};
}

/// A cell: its plan, its buffers, its times.
struct Cell {
  int rows = 0;
  attention::Policy policy = attention::Policy::kSegue;
  Plan plan;
  const float* q = nullptr;
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<float> partial_m;
  std::vector<float> partial_l;
  std::vector<float> partial_o;
  int launches = 1;  // per sample
  std::vector<double> us;
  std::vector<double> gbps;       // as many: reading from the cell's cache, just before
  std::vector<double> bounds_us;  // as many
  int checked_rows = 0;           // against the reference; the others by equality of bytes
  double worst_error_over_bound = 0;
};

/// All cells of one (shape, depth).
class Group {
 public:
  Group(const SweepOptions& options, const NamedShape& shape, std::int64_t depth,
        const attention::Kernel* kernel, core::ThreadPool& pool)
      : options_(options),
        name_(shape.name),
        shape_(shape.shape),
        depth_(depth),
        most_rows_(*std::ranges::max_element(options.rows)),
        kernel_(kernel),
        pool_(pool),
        device_(attention::cpu_device(pool.threads())) {
    shape_.kv = options.kv;
    shape_.page_size = options.page_size;
    shape_.layout = options.layout.value_or(kv::Layout::kTiled16);
  }

  /// Refuses a kernel that cannot run the shape, and more memory than there is.
  Status plan_cells() {
    for (const attention::Policy policy : options_.policies) {
      for (const int rows : options_.rows) {
        Cell& cell = cells_.emplace_back();
        cell.rows = rows;
        cell.policy = policy;
        if (Status status = make_plan(rows, policy, cell.plan); !status.ok()) return status;
      }
    }
    return check_memory();
  }

  /// Plans, fills and checks. kCancelled when `stop` says so before the end.
  Status prepare(const std::function<bool()>& stop) {
    if (Status status = plan_cells(); !status.ok()) return status;
    if (Status status = fill_caches(stop); !status.ok()) return status;
    const std::int64_t row_floats = std::int64_t{shape_.q_heads} * shape_.head_dim;
    for (Cell& cell : cells_) {
      cell.q = problem_->params().q + (most_rows_ - cell.rows) * row_floats;
      const auto partials = static_cast<std::size_t>(cell.plan.partials);
      cell.out.resize(static_cast<std::size_t>(cell.rows * row_floats));
      cell.lse.resize(static_cast<std::size_t>(cell.rows) *
                      static_cast<std::size_t>(shape_.q_heads));
      cell.partial_m.resize(partials);
      cell.partial_l.resize(partials);
      cell.partial_o.resize(partials * static_cast<std::size_t>(shape_.head_dim));
    }
    return check();
  }

  /// One round: every cell once, each right after the rates that bound it were measured, since a
  /// shared machine changes from one moment to the next.
  void sample() {
    for (Cell& cell : cells_) {
      const double gbps = cache_gbps();
      const double operations_us =
          static_cast<double>(cell.plan.operations) / peak_gflops(pool_, 3) / 1e3;
      cell.gbps.push_back(gbps);
      cell.bounds_us.push_back(
          std::max(static_cast<double>(kv_bytes(cell)) / gbps / 1e3, operations_us));
      if (options_.cache == CacheState::kWarm) launch(cell);
      const double start = core::now_us();
      for (int i = 0; i < cell.launches; ++i) launch(cell);
      cell.us.push_back((core::now_us() - start) / cell.launches);
    }
  }

  void report(core::Json& cells) const {
    for (const Cell& cell : cells_) cells.push(cell_json(cell));
  }

 private:
  /// What the caches and buffers of all cells take, against what the machine has left. The caches
  /// are copies of a synthetic one, which is filled first.
  Status check_memory() {
    const std::int64_t first = shape_.first_key(depth_ - most_rows_) / shape_.page_size;
    const std::int64_t pages = (depth_ + shape_.page_size - 1) / shape_.page_size - first;
    const std::int64_t cache = kv::pool_bytes({.name = {},
                                               .layers = 1,
                                               .kv_heads = shape_.kv_heads,
                                               .head_dim = shape_.head_dim,
                                               .type = shape_.kv,
                                               .layout = shape_.layout,
                                               .page_size = shape_.page_size,
                                               .pages = static_cast<int>(pages)});
    copies_ = options_.cache == CacheState::kCold
                  ? std::max<std::size_t>(1, (kColdBytes + static_cast<std::size_t>(cache) - 1) /
                                                 static_cast<std::size_t>(cache))
                  : 1;
    double bytes = static_cast<double>(cache) * (1 + static_cast<double>(copies_));
    for (const Cell& cell : cells_) {
      bytes +=
          static_cast<double>(cell.plan.workspace_bytes()) +
          sizeof(float) * static_cast<double>(cell.rows) * shape_.q_heads * (shape_.head_dim + 1);
    }
    return check_available(bytes, fmt::format("{} at depth {}", name_, depth_));
  }

  Status fill_caches(const std::function<bool()>& stop) {
    attention::SyntheticOptions synthetic;
    synthetic.shape = shape_;
    synthetic.sequences = {{.depth = depth_ - most_rows_, .rows = most_rows_}};
    synthetic.scattered = false;
    synthetic.cancelled = stop;
    problem_.emplace(std::move(synthetic));
    const kv::View view = problem_->params().kv;
    buffer_bytes_ =
        static_cast<std::size_t>(view.page_stride) * static_cast<std::size_t>(view.pages);
    memory_.emplace(copies_ * 2 * buffer_bytes_);
    if (memory_->data() == nullptr) {
      return Error{ErrorCode::kNoMemory,
                   fmt::format("the system refused {} bytes for the caches of {} at depth {}",
                               copies_ * 2 * buffer_bytes_, name_, depth_)};
    }
    for (std::size_t copy = 0; copy < copies_; ++copy) {
      if (stop()) return Error{ErrorCode::kCancelled, "the sweep was interrupted"};
      std::byte* p = memory_->data() + copy * 2 * buffer_bytes_;
      std::memcpy(p, view.k, buffer_bytes_);
      std::memcpy(p + buffer_bytes_, view.v, buffer_bytes_);
    }
    return {};
  }

  /// K and V of the keys that any row of the cell sees, once.
  std::int64_t kv_bytes(const Cell& cell) const {
    const attention::Shape& shape = cell.plan.shape;
    return (depth_ - shape.first_key(depth_ - cell.rows)) * shape.key_bytes();
  }

  /// Bandwidth of reading from the cache that the cells read from: as many bytes as the largest
  /// cell, or all copies.
  double cache_gbps() const {
    const bool warm = options_.cache == CacheState::kWarm;
    const std::size_t bytes =
        warm ? std::min<std::size_t>(2 * buffer_bytes_,
                                     static_cast<std::size_t>(cells_.back().plan.kv_bytes))
             : copies_ * 2 * buffer_bytes_;
    return read_gbps(pool_, memory_->data(), bytes, warm ? 3 : 1);
  }

  Status make_plan(int rows, attention::Policy policy, Plan& plan) const {
    const attention::SequenceRows sequence{.depth = depth_ - rows, .rows = rows};
    attention::PlanInput input;
    input.shape = shape_;
    input.sequences = {&sequence, 1};
    input.policy = policy;
    input.decode_rows = rows;
    input.kernel = kernel_;
    return attention::plan(input, device_, plan);
  }

  void launch(Cell& cell) {
    attention::Params params = problem_->params();
    params.plan = &cell.plan;
    params.q = cell.q;
    params.out = cell.out.data();
    params.lse = cell.lse.data();
    params.partial_m = cell.partial_m.data();
    params.partial_l = cell.partial_l.data();
    params.partial_o = cell.partial_o.data();
    params.kv.k = memory_->data() + next_copy_ * 2 * buffer_bytes_;
    params.kv.v = params.kv.k + buffer_bytes_;
    next_copy_ = (next_copy_ + 1) % copies_;
    attention::Stream stream{&pool_};
    cell.plan.kernel->launch(params, stream);
  }

  /// The last `rows` rows within the derived bound of the reference; the worst error / bound.
  Result<double> check_reference(const Cell& cell, int rows) const {
    Plan plan;
    if (Status status = make_plan(rows, attention::Policy::kWhole, plan); !status.ok()) {
      return status.error();
    }
    const attention::Shape& shape = plan.shape;
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    const std::size_t skip =
        static_cast<std::size_t>(cell.rows - rows) * static_cast<std::size_t>(shape.q_heads) * dim;
    attention::Params params = problem_->params();
    params.plan = &plan;
    params.q = cell.q + skip;
    attention::Stream stream{&pool_};
    const attention::ReferenceResult reference = attention::reference_result(params, stream);
    std::vector<double> bounds(reference.out.size());
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = core::derived_bound({.reference = reference.out[i],
                                       .absolute_sum = reference.absolute_sum[i],
                                       .score_sum = reference.score_sum[i / dim]},
                                      core::unit_roundoff(KvType::kF32),
                                      core::unit_roundoff(cell.plan.kernel->p_type));
    }
    const core::Verdict verdict =
        core::within_bounds(std::span(cell.out).subspan(skip), reference.out, bounds,
                            std::vector<std::int64_t>{rows, shape.q_heads, shape.head_dim});
    if (verdict.ok) return verdict.worst_ratio;
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{} at depth {}, {} rows, policy {}, kernel {}: the result is wrong, "
                             "nothing is timed: {}",
                             name_, depth_, cell.rows, attention::policy_name(cell.policy),
                             cell.plan.kernel->name, verdict.message)};
  }

  /// Every cell is run once; the one with most rows meets the reference, the others must have its
  /// bytes.
  Status check() {
    Cell* largest = &cells_.front();
    for (Cell& cell : cells_) {
      std::ranges::fill(cell.out, std::nanf(""));
      const double start = core::now_us();
      launch(cell);
      if (options_.cache == CacheState::kWarm) {
        cell.launches =
            std::clamp(static_cast<int>(kSampleUs / (core::now_us() - start)), 1, kWarmLaunches);
      }
      if (cell.rows > largest->rows) largest = &cell;
    }
    const int rows = largest->plan.operations <= kCheckOperations ? largest->rows : 1;
    const Result<double> worst = check_reference(*largest, rows);
    if (!worst.ok()) return worst.error();
    for (Cell& cell : cells_) {
      cell.checked_rows = std::min(rows, cell.rows);
      cell.worst_error_over_bound = *worst;
      const std::span<const float> expected = std::span(largest->out).last(cell.out.size());
      if (const core::Verdict verdict = core::exact(std::span<const float>(cell.out), expected);
          !verdict.ok) {
        return Error{
            ErrorCode::kUnsupported,
            fmt::format(
                "{} at depth {}: rows of {} rows with policy {} differ from those of {} rows: {}",
                name_, depth_, cell.rows, attention::policy_name(cell.policy), largest->rows,
                verdict.message)};
      }
    }
    return {};
  }

  core::Json cell_json(const Cell& cell) const {
    const Plan& plan = cell.plan;
    const std::int64_t bytes = kv_bytes(cell);
    const double us = median(cell.us);
    const double gbps = static_cast<double>(bytes) / us / 1e3;
    core::Json json = core::Json::object();
    json.set("shape", name_);
    json.set("depth", depth_);
    json.set("rows", cell.rows);
    json.set("policy", attention::policy_name(cell.policy));
    json.set("kernel", plan.kernel->name);
    json.set("layout", kv::layout_name(shape_.layout));
    json.set("path", attention::path_name(plan.verdict.path));
    json.set("workgroups", plan.workgroups());
    json.set("us", samples_json(cell.us));
    json.set("bytes", bytes);
    json.set("gbps", gbps);
    json.set("percent_of_read", 100 * gbps / median(cell.gbps));
    core::Json ratio;
    for (const Cell& other : cells_) {
      if (other.rows == 1 && other.policy == cell.policy)
        ratio = paired_ratio(cell.us, other.us).median;
    }
    json.set("ratio_to_one_row", std::move(ratio));
    json.set("operations", plan.operations);
    json.set("bound_us", median(cell.bounds_us));
    json.set("ratio_to_bound", paired_ratio(cell.us, cell.bounds_us).median);
    json.set("partial_bytes", plan.workspace_bytes());
    json.set("checked_rows", cell.checked_rows);
    json.set("worst_error_over_bound", cell.worst_error_over_bound);
    json.set("clause", plan.verdict.fired());
    return json;
  }

  const SweepOptions& options_;
  std::string name_;
  attention::Shape shape_;
  std::int64_t depth_;
  int most_rows_;
  const attention::Kernel* kernel_;
  core::ThreadPool& pool_;
  attention::DeviceFacts device_;
  std::optional<attention::Synthetic> problem_;
  std::optional<Memory> memory_;
  std::size_t buffer_bytes_ = 0;  // of K, and of V
  std::size_t copies_ = 1;
  std::size_t next_copy_ = 0;
  std::vector<Cell> cells_;
};

Status check_options(const SweepOptions& options) {
  if (options.shapes.empty() || options.depths.empty() || options.rows.empty() ||
      options.policies.empty() || options.batches.empty()) {
    return Error{ErrorCode::kUsage,
                 "the sweep needs at least one shape, depth, row count, batch and policy"};
  }
  const int most = *std::ranges::max_element(options.rows);
  if (*std::ranges::min_element(options.rows) < 1)
    return Error{ErrorCode::kUsage, "rows must be at least 1"};
  if (*std::ranges::min_element(options.depths) < most) {
    return Error{ErrorCode::kUsage, fmt::format("depth {} is less than the {} rows of a step",
                                                *std::ranges::min_element(options.depths), most)};
  }
  if (*std::ranges::min_element(options.batches) < 1)
    return Error{ErrorCode::kUsage, "a batch must be at least 1"};
  if (options.device != attention::DeviceKind::kCpu) return {};
  if (*std::ranges::max_element(options.batches) > 1)
    return Error{ErrorCode::kUsage,
                 "the sweep of the CPU has batch 1 only; allowed are more with "
                 "--device cuda"};
  if (options.prefill || options.mixed || options.early_reads)
    return Error{ErrorCode::kUsage, "--prefill, --mixed and --early-reads go with --device cuda"};
  if (options.layout == kv::Layout::kSwizzled8) {
    return Error{ErrorCode::kUsage,
                 "layout swizzled8 goes with --device cuda; the CPU's sweep has "
                 "device, token-major and head-major"};
  }
  return {};
}

std::string_view text(const core::Json& json, std::string_view key) {
  const core::Json* member = json.find(key);
  return member != nullptr && member->as_string() != nullptr ? *member->as_string()
                                                             : std::string_view();
}

/// Steps of unlike sequences.
std::string steps_table(const core::Json& sweep) {
  std::string table = fmt::format("{}: reading {:.0f} GB/s\n{:<24} {:>10} {:>12} {:>10}  step\n",
                                  text(*sweep.find("gpu"), "gpu"), number(sweep, "read_gbps"),
                                  "shape", "us", "parts alone", "floor us");
  for (const core::Json& step : *sweep.find("steps")->as_array()) {
    core::append(table, "{:<24} {:>10.1f} {:>12.1f} {:>10.1f}  {}\n", text(step, "shape"),
                 number(*step.find("us"), "median"), number(step, "parts_alone_sum_us"),
                 number(step, "floor_us"), text(step, "step"));
  }
  return table;
}

}  // namespace

Result<core::Json> run_sweep(const SweepOptions& options) {
  if (Status status = check_options(options); !status.ok()) return status.error();
  if (options.device == attention::DeviceKind::kCuda) return run_gpu_sweep(options);
  const Result<const attention::Kernel*> forced =
      forced_kernel(options.kernel, attention::DeviceKind::kCpu);
  if (!forced.ok()) return forced.error();
  const attention::Kernel* const kernel = *forced;
  if (Status status = check_available(kColdBytes, "its measurement of the bandwidth"); !status.ok())
    return status.error();
  core::ThreadPool pool(options.threads > 0 ? options.threads : core::cpu_facts().logical_cpus);
  // The last cell's problem is said before the first is measured.
  for (const NamedShape& shape : options.shapes) {
    for (const std::int64_t depth : options.depths) {
      if (Status status = Group(options, shape, depth, kernel, pool).plan_cells(); !status.ok())
        return status.error();
    }
  }
  const double peak = peak_gflops(pool, 15);
  double read = 0;
  {
    const Memory memory(kColdBytes);
    if (memory.data() == nullptr)
      return Error{ErrorCode::kNoMemory, fmt::format("the sweep needs {} bytes", kColdBytes)};
    std::memset(memory.data(), 1, kColdBytes);
    read = read_gbps(pool, memory.data(), kColdBytes, 5);
  }
  core::Json cells = core::Json::array();
  const double steps =
      static_cast<double>(options.shapes.size() * options.depths.size()) * (options.rounds + 1);
  double done = 0;
  const auto advance = [&] {
    if (options.progress) options.progress(++done / steps);
  };
  bool interrupted = false;
  const auto stop = [&] {
    return interrupted = interrupted || (options.cancelled && options.cancelled());
  };
  for (const NamedShape& shape : options.shapes) {
    for (const std::int64_t depth : options.depths) {
      if (stop()) break;
      Group group(options, shape, depth, kernel, pool);
      if (Status status = group.prepare(stop); !status.ok() && !interrupted) return status.error();
      advance();
      int round = 0;
      for (; round < options.rounds && !stop(); ++round) {
        group.sample();
        advance();
      }
      if (round > 0) group.report(cells);
    }
  }
  core::Json json = core::Json::object();
  json.set("read_gbps", read);
  json.set("peak_gflops", peak);
  json.set("threads", pool.threads());
  json.set("cache", options.cache == CacheState::kCold ? "cold" : "warm");
  json.set("interrupted", interrupted);
  json.set("cells", std::move(cells));
  return json;
}

std::string sweep_table(const core::Json& sweep) {
  if (sweep.find("steps") != nullptr) return steps_table(sweep);
  std::string table;
  if (const core::Json* gpu = sweep.find("gpu"); gpu != nullptr) {
    core::append(table, "{}, {} cache: reading {:.0f} GB/s\n", text(*gpu, "gpu"),
                 text(sweep, "cache"), number(sweep, "read_gbps"));
  } else {
    core::append(table,
                 "{} threads, {} cache: reading {:.1f} GB/s from memory, peak {:.0f} GFLOP/s\n",
                 number(sweep, "threads"), text(sweep, "cache"), number(sweep, "read_gbps"),
                 number(sweep, "peak_gflops"));
  }
  core::append(table,
               "{:<24} {:>8} {:>5} {:>4} {:<15} {:<10} {:>5} {:>10} {:>8} {:>7} {:>7} {:>7}  {}\n",
               "shape", "depth", "batch", "rows", "policy", "path", "wg", "us", "GB/s", "% read",
               "x 1 row", "x bound", "kernel");
  const core::Json* cells = sweep.find("cells");
  if (cells == nullptr || cells->as_array() == nullptr) return table;
  for (const core::Json& cell : *cells->as_array()) {
    const core::Json* us = cell.find("us");
    const double to_one_row = number(cell, "ratio_to_one_row");
    core::append(table,
                 "{:<24} {:>8} {:>5} {:>4} {:<15} {:<10} {:>5} {:>10.1f} {:>8.2f} {:>7.1f} "
                 "{:>7} {:>7.2f}  {}\n",
                 text(cell, "shape"), number(cell, "depth"),
                 cell.find("batch") != nullptr ? number(cell, "batch") : 1, number(cell, "rows"),
                 text(cell, "policy"), text(cell, "path"), number(cell, "workgroups"),
                 us != nullptr ? number(*us, "median") : 0, number(cell, "gbps"),
                 number(cell, "percent_of_read"),
                 to_one_row > 0 ? fmt::format("{:.2f}", to_one_row) : "-",
                 number(cell, "ratio_to_bound"), text(cell, "kernel"));
  }
  return table;
}

}  // namespace segue::lab
