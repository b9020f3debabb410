// SPDX-License-Identifier: Apache-2.0
// segue sweep, exactness, explain and kernels: the lab's view of attention, without a model's
// weights.
#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/terminal.h"
#include "core/log.h"
#include "lab/exactness.h"
#include "lab/explain.h"
#include "lab/model_shapes.h"
#include "lab/sweep.h"

namespace segue::cli {
namespace {

constexpr std::string_view kPolicies =
    "segue, stock, pr45450, pr47520, batch_invariant, whole, segmented";

/// Flags that all of them have.
struct CommonFlags {
  std::string json;
  int threads = 0;
  bool quiet = false;

  void declare(Args& args) {
    args.integer("--threads", threads, ranges::kThreads, "threads; 0: all CPUs of this process")
        .path("--json", json, "write the result to this file (-: standard output)")
        .flag("-q,--quiet", quiet, "no table, no progress");
  }
};

std::function<bool()> stop_on_interrupt() {
  const std::atomic<bool>& stop = interrupted();
  return [&stop] { return stop.load(); };
}

attention::DeviceKind parse_device(const std::string& name) {
  return name == "cuda" ? attention::DeviceKind::kCuda : attention::DeviceKind::kCpu;
}

std::optional<kv::Layout> parse_layout(const std::string& name) {
  for (const kv::Layout layout :
       {kv::Layout::kSwizzled8, kv::Layout::kTokenMajor, kv::Layout::kHeadMajor}) {
    if (kv::layout_name(layout) == name) return layout;
  }
  return {};
}

Status finish(const CommonFlags& flags, core::Json document, core::Json settings,
              const std::string& table) {
  return finish_measurement(flags.json, flags.quiet, std::move(document), std::move(settings),
                            table);
}

/// What was used; a GPU uses none.
core::Json threads_of(const core::Json& results) {
  const core::Json* threads = results.find("threads");
  return threads == nullptr ? core::Json() : *threads;
}

}  // namespace

Status sweep_command(int argc, const char* const* argv) {
  CommonFlags flags;
  std::vector<std::string> shapes;
  std::vector<std::int64_t> rows{1, 2, 4, 8};
  std::vector<std::string> policies{"segue", "stock", "whole"};
  std::vector<std::int64_t> batches{1};
  std::string device = "cpu";
  std::string layout = "device";
  std::string kv = "bf16";
  std::string cache = "cold";
  lab::SweepOptions options;
  options.depths = {1024, 4096, 16384};
  Args args("sweep",
            "Time attention alone: shapes x depths x rows x policies. Depth is kv_len here.",
            {"segue sweep --shape 4,1,256 --depths 16384 --rows 1,2,4,8 --cache warm",
             "segue sweep --shape gemma-4-31b-global --policies segue,stock --json sweep.json",
             "segue sweep --device cuda --shape llama-70b --depths 4096,32768 --batch 1,16"});
  args.texts("--shape", shapes,
             "Q_HEADS,KV_HEADS,HEAD_DIM[,WINDOW] or the name of a published shape; may repeat",
             true)
      .integers("--depths", options.depths, ranges::kDepth, "keys that the last row sees")
      .integers("--rows", rows, {1, 8192}, "query rows")
      .list("--policies", policies, kPolicies)
      .choice("--device", device, {"cpu", "cuda"}, "where to run")
      .integers("--batch", batches, {1, 4096}, "sequences alike; on the CPU 1")
      .choice("--layout", layout, {"device", "swizzled8", "token-major", "head-major"},
              "of the KV cache; device: the device's fastest")
      .flag("--prefill", options.prefill, "GPU: the rows are prompt rows")
      .flag("--mixed", options.mixed,
            "GPU: steps of unlike sequences, and their parts alone, instead of cells")
      .flag("--early-reads", options.early_reads,
            "GPU: read KV before the stream's previous kernel ends")
      .integer("--page-size", options.page_size, {8, 1 << 16, 8}, "tokens of a KV page")
      .choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .choice("--cache", cache, {"cold", "warm"},
              "cold: every call reads another copy of the cache")
      .integer("--rounds", options.rounds, {3, 1000}, "samples of a cell")
      .text("--kernel", options.kernel, "force an attention kernel (see segue kernels)");
  flags.declare(args);
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  for (const std::string& text : shapes) {
    if (std::ranges::count(shapes, text) > 1)
      return Error{ErrorCode::kUsage, fmt::format("--shape: {} is given twice", text)};
    const Result<lab::NamedShape> shape = lab::parse_shape(text);
    if (!shape.ok()) return shape.error();
    options.shapes.push_back(*shape);
  }
  for (const std::string& text : policies) {
    const Result<attention::Policy> policy = attention::parse_policy(text);
    if (!policy.ok()) return policy.error();
    options.policies.push_back(*policy);
  }
  options.rows.assign(rows.begin(), rows.end());
  options.batches.assign(batches.begin(), batches.end());
  options.device = parse_device(device);
  options.layout = parse_layout(layout);
  options.kv = parse_kv(kv).value();
  options.cache = cache == "cold" ? lab::CacheState::kCold : lab::CacheState::kWarm;
  options.threads = flags.threads;
  options.progress = progress_bar("measuring", flags.quiet);
  options.cancelled = stop_on_interrupt();
  if (Status status = check_writable(flags.json); !status.ok()) return status;
  Result<core::Json> sweep = lab::run_sweep(options);
  if (!sweep.ok()) return sweep.error();
  core::Json settings = core::Json::object();
  settings.set("shapes", shapes)
      .set("depths", options.depths)
      .set("rows", rows)
      .set("batch", batches)
      .set("policies", policies)
      .set("device", device)
      .set("layout", layout)
      .set("prefill", options.prefill)
      .set("mixed", options.mixed)
      .set("early_reads", options.early_reads)
      .set("page_size", options.page_size)
      .set("kv", kv)
      .set("cache", cache)
      .set("rounds", options.rounds)
      .set("kernel", forced_kernel(options.kernel))
      .set("threads", threads_of(*sweep));
  const std::string table = lab::sweep_table(*sweep);
  return finish(flags, std::move(sweep).value(), std::move(settings), table);
}

Status exactness_command(int argc, const char* const* argv) {
  CommonFlags flags;
  std::string kv = "bf16";
  std::string device = "cpu";
  lab::ExactnessOptions options;
  Args args("exactness", "Check that attention gives the same bytes however the work is arranged.",
            {"segue exactness", "segue exactness --kernel cpu.portable.bf16 --json exactness.json",
             "segue exactness --device cuda --kv f16"});
  args.choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .choice("--device", device, {"cpu", "cuda"}, "where to run")
      .text("--kernel", options.kernel, "the kernel to check; empty: the first of the table");
  flags.declare(args);
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  if (Status status = check_writable(flags.json); !status.ok()) return status;
  options.kv = parse_kv(kv).value();
  options.device = parse_device(device);
  options.threads = flags.threads;
  options.progress = progress_bar("checking", flags.quiet);
  options.cancelled = stop_on_interrupt();
  Result<core::Json> exactness = lab::run_exactness(options);
  if (!exactness.ok()) return exactness.error();
  const bool* ok = exactness->find("ok")->as_bool();
  const bool good = ok != nullptr && *ok;
  core::Json settings = core::Json::object();
  settings.set("kv", kv)
      .set("device", device)
      .set("kernel", forced_kernel(options.kernel))
      .set("threads", threads_of(*exactness));
  const std::string table = lab::exactness_table(*exactness);
  if (Status status = finish(flags, std::move(exactness).value(), std::move(settings), table);
      !status.ok()) {
    return status;
  }
  if (!good)
    return Error{ErrorCode::kUnsupported, "at least one case is not exact; the table says which"};
  return {};
}

Status explain_command(int argc, const char* const* argv) {
  CommonFlags flags;
  std::string model;
  std::string shape;
  std::string policy = "segue";
  std::string device = "cpu";
  std::string layout = "device";
  std::string kv = "bf16";
  lab::ExplainOptions options;
  Args args("explain", "Which path a step takes, on how many workgroups, and why; nothing is run.",
            {"segue explain --shape 16,8,256 --policy stock --rows 2 --depth 32768",
             "segue explain --shape 16,8,256 --kv f16 --kernel cpu.portable.f16",
             "segue explain -m model.gguf --depth 16384 --rows 5",
             "segue explain --shape 16,8,256 --policy pr45450 --decode-rows 2 --rows 2",
             "segue explain --device cuda --device-facts h200 --shape llama-70b --rows 5"});
  args.path("-m,--model", model,
            "explain every kind of layer of this model: file (GGUF), folder, or config.json")
      .text("--shape", shape, "Q_HEADS,KV_HEADS,HEAD_DIM[,WINDOW] or the name of a published shape")
      .integer("--depth", options.depth, {0, ranges::kDepth.high},
               "keys in the cache before the step")
      .integer("--rows", options.rows, {1, 4096}, "query rows of each sequence")
      .integer("--batch", options.batch, {1, 4096}, "sequences")
      .integer("--decode-rows", options.decode_rows, {1, 64},
               "1 + k that the engine was started with")
      .text("--policy", policy, kPolicies)
      .choice("--device", device, {"cpu", "cuda"}, "plan for the CPU or for a GPU")
      .choice("--layout", layout, {"device", "swizzled8", "token-major", "head-major"},
              "of the KV cache; device: the device's fastest")
      .choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .text("--device-facts", options.device_facts,
            "a GPU by name (h200), here or not; empty: this machine's, without one the H200")
      .integer("--workgroups", options.workgroups, {0, 1 << 20},
               "workgroups that the device runs at once; 0: as it is")
      .text("--kernel", options.kernel, "force an attention kernel (see segue kernels)");
  flags.declare(args);
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  if (model.empty() == shape.empty())
    return Error{ErrorCode::kUsage, "exactly one of -m FILE and --shape is needed"};
  const Result<attention::Policy> chosen = attention::parse_policy(policy);
  if (!chosen.ok()) return chosen.error();
  const NamedPath inputs[] = {{"--model", model}};
  const NamedPath outputs[] = {{"--json", flags.json}};
  if (Status status = check_distinct(inputs, outputs); !status.ok()) return status;
  if (Status status = check_writable(flags.json); !status.ok()) return status;
  options.policy = *chosen;
  options.device = parse_device(device);
  options.threads = flags.threads;
  std::vector<lab::NamedShape> shapes;
  if (model.empty()) {
    const Result<lab::NamedShape> one = lab::parse_shape(shape);
    if (!one.ok()) return one.error();
    shapes.push_back(*one);
  } else {
    if (Status status = check_model_path("--model", model, kAnyConfig); !status.ok()) return status;
    Result<lab::ModelShapes> all = lab::model_shapes(model);
    if (!all.ok()) return all.error();
    const std::int64_t deepest = std::max<std::int64_t>(0, all->context - options.rows);
    if (!args.given("--depth")) options.depth = std::min(options.depth, deepest);
    if (options.depth + options.rows > all->context) {
      return Error{ErrorCode::kUsage, fmt::format("--depth {} and {} rows need {} positions; the "
                                                  "model has {}",
                                                  options.depth, options.rows,
                                                  options.depth + options.rows, all->context)};
    }
    shapes = std::move(all->shapes);
  }
  core::Json groups = core::Json::array();
  std::string text;
  for (const lab::NamedShape& one : shapes) {
    options.shape = one;
    options.shape.shape.kv = parse_kv(kv).value();
    options.shape.shape.layout = parse_layout(layout).value_or(options.shape.shape.layout);
    Result<core::Json> json = lab::explain(options);
    if (!json.ok()) return json.error();
    const Result<std::string> words = lab::explain_text(options);
    if (!words.ok()) return words.error();
    text += text.empty() ? "" : "\n";
    if (!model.empty()) {
      text += fmt::format("layers      {}\n", core::printable(one.name));
      json->set("layers", one.name);
    }
    text += *words;
    groups.push(std::move(json).value());
  }
  core::Json document = core::Json::object();
  if (model.empty()) {
    document = (*groups.as_array())[0];
  } else {
    document.set("groups", std::move(groups));
  }
  core::Json settings = core::Json::object();
  settings.set("model", model)
      .set("shape", shape)
      .set("depth", options.depth)
      .set("rows", options.rows)
      .set("batch", options.batch)
      .set("decode_rows", options.decode_rows)
      .set("policy", policy)
      .set("kv", kv)
      .set("device", device)
      .set("device_facts", options.device_facts)
      .set("workgroups", options.workgroups)
      .set("kernel", forced_kernel(options.kernel));
  return finish(flags, std::move(document), std::move(settings), text);
}

Status kernels_command(int argc, const char* const* argv) {
  CommonFlags flags;
  std::string device;
  Args args("kernels", "List the attention kernels of this build, best first.",
            {"segue kernels", "segue kernels --device cuda --json -"});
  args.choice("--device", device, {"cpu", "cuda"}, "one device's only");
  flags.declare(args);
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  std::optional<attention::DeviceKind> one;
  if (!device.empty()) one = parse_device(device);
  if (Status status = lab::check_kernels(one); !status.ok()) return status;
  return finish(flags, lab::kernels_json(one), core::Json::object().set("device", device),
                lab::kernels_table(one));
}

}  // namespace segue::cli
