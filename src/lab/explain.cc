// SPDX-License-Identifier: Apache-2.0
// explain: a plan made and shown. kernels: the table shown.
#include "lab/explain.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "attention/gpu.h"
#include "attention/kernel.h"
#include "core/append.h"
#include "core/cpu.h"
#include "lab/forced_kernel.h"
#include "lab/gpu.h"

namespace segue::lab {
namespace {

struct Explained {
  attention::Plan plan;
  attention::DeviceFacts device;
  bool assumed = false;
};

constexpr std::string_view kAssumedGpu = "h200";

/// Stands for the GPU's kernels in a build that has none: planning needs no more of them.
const attention::Kernel kAbsent = {.name = "none: this build has no CUDA",
                                   .bits_class = {},
                                   .device = attention::DeviceKind::kCuda,
                                   .supports = [](const attention::Shape&) { return true; }};

/// This machine's GPU, or the one that was named.
Status find_gpu(const ExplainOptions& options, const attention::Kernel* forced,
                Explained& explained) {
  const Result<device::GpuFacts> here =
      options.device_facts.empty() ? device::current_gpu_facts()
                                   : Result<device::GpuFacts>(Error{ErrorCode::kNotFound, ""});
  explained.assumed = !here.ok();
  const Result<device::GpuFacts> gpu =
      here.ok() ? here
                : parse_gpu(options.device_facts.empty() ? kAssumedGpu
                                                         : std::string_view(options.device_facts));
  if (!gpu.ok()) return gpu.error();
  if (Status status = attention::check_gpu(*gpu, forced); !status.ok()) return status;
  explained.device = attention::gpu_device(*gpu, options.shape.shape, forced);
  return {};
}

void find_cpu(const ExplainOptions& options, Explained& explained) {
  const int threads = options.threads > 0 ? options.threads : core::cpu_facts().logical_cpus;
  explained.device = attention::cpu_device(threads);
}

Result<Explained> make_plan(const ExplainOptions& given) {
  ExplainOptions options = given;
  Explained explained;
  attention::PlanInput input;
  constexpr std::int64_t kMostRows = 1 << 18;  // hundreds of megabytes of plan
  if (const std::int64_t rows = std::int64_t{options.batch} * options.rows; rows > kMostRows) {
    return Error{ErrorCode::kUsage,
                 fmt::format("a step of {} sequences with {} rows each has {} rows; allowed: up to "
                             "{}",
                             options.batch, options.rows, rows, kMostRows)};
  }
  const Result<const attention::Kernel*> kernel = forced_kernel(options.kernel, options.device);
  if (!kernel.ok()) return kernel.error();
  if (options.device == attention::DeviceKind::kCuda) {
    if (options.shape.shape.kv == KvType::kF32)
      return Error{ErrorCode::kUsage, "--kv is f32; allowed with --device cuda: f16, bf16"};
    if (options.shape.shape.layout == kv::Layout::kTiled16)
      options.shape.shape.layout = attention::gpu_layout(options.shape.shape);
    if (Status status = find_gpu(options, *kernel, explained); !status.ok()) return status.error();
#ifndef SEGUE_CUDA
    input.kernel = &kAbsent;
#endif
  } else if (!options.device_facts.empty()) {
    return Error{ErrorCode::kUsage, "--device-facts names a GPU; it goes with --device cuda"};
  } else {
    find_cpu(options, explained);
  }
  if (options.workgroups > 0) {
    explained.device.name = "assumed";
    explained.device.workgroups = options.workgroups;
    explained.device.multiprocessors = options.workgroups;
    explained.assumed = true;
  }
  input.shape = options.shape.shape;
  const std::vector<attention::SequenceRows> sequences(
      static_cast<std::size_t>(options.batch), {.depth = options.depth, .rows = options.rows});
  input.sequences = sequences;
  input.policy = options.policy;
  input.decode_rows = options.decode_rows;
  if (*kernel != nullptr) input.kernel = *kernel;
  if (Status status = attention::plan(input, explained.device, explained.plan); !status.ok()) {
    return status.error();
  }
  if (input.kernel == &kAbsent) explained.plan.kernel_reason = "configure with -DSEGUE_CUDA=ON";
  return explained;
}

struct KernelRow {
  const attention::Kernel* kernel = nullptr;
  std::string kv;
  bool available = false;
};

/// KV types that a kernel supports in any layout and head dim.
std::string kv_types(const attention::Kernel& kernel) {
  std::string types;
  for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    const std::array layouts{kv::Layout::kTiled16, kv::Layout::kTokenMajor, kv::Layout::kHeadMajor,
                             kv::Layout::kSwizzled8};
    const std::array head_dims{64, 80, 96, 128, 256, 512};
    const bool any = std::ranges::any_of(layouts, [&](kv::Layout layout) {
      return std::ranges::any_of(head_dims, [&](int head_dim) {
        return kernel.supports(
            {.q_heads = 4, .kv_heads = 1, .head_dim = head_dim, .kv = kv, .layout = layout});
      });
    });
    if (any) types += fmt::format("{}{}", types.empty() ? "" : " ", kv_type_name(kv));
  }
  return types;
}

std::vector<KernelRow> kernel_rows(std::optional<attention::DeviceKind> device) {
  std::vector<KernelRow> rows;
  for (const attention::Kernel& kernel : attention::cpu_kernels()) {
    rows.push_back({&kernel, kv_types(kernel), core::isa_available(kernel.isa)});
  }
  const Result<device::GpuFacts> gpu = device::current_gpu_facts();
  for (const attention::Kernel* kernel : attention::kernels()) {
    const bool listed =
        std::ranges::any_of(rows, [&](const KernelRow& row) { return row.kernel == kernel; });
    const bool here = kernel->device == attention::DeviceKind::kCpu ||
                      (gpu.ok() && attention::runs_family(*gpu, kernel->family));
    if (!listed) rows.push_back({kernel, kv_types(*kernel), here});
  }
  if (device.has_value()) {
    std::erase_if(rows, [&](const KernelRow& row) { return row.kernel->device != *device; });
  }
  return rows;
}

std::string missing(const attention::Kernel& kernel) {
  return kernel.device == attention::DeviceKind::kCuda
             ? fmt::format("no: needs a GPU of {}", attention::family_range(kernel.family))
             : fmt::format("no: needs {}", core::isa_name(kernel.isa));
}

/// Why nothing runs on the device that was asked for; empty: something does.
std::string why_missing(std::optional<attention::DeviceKind> device) {
  if (device != attention::DeviceKind::kCuda) return {};
  const Result<device::GpuFacts> gpu = device::gpu_facts();
  return gpu.ok() ? std::string() : gpu.error().message;
}

}  // namespace

Result<core::Json> explain(const ExplainOptions& options) {
  Result<Explained> explained = make_plan(options);
  if (!explained.ok()) return explained.error();
  core::Json json = core::Json::object();
  json.set("name", options.shape.name);
  json.set("depth", options.depth);
  json.set("step_rows", options.rows);
  json.set("batch", options.batch);
  json.set("decode_rows", options.decode_rows);
  core::Json device = core::Json::object();
  device.set("name", explained->device.name);
  device.set("workgroups_at_once", explained->device.workgroups);
  device.set("multiprocessors", explained->device.multiprocessors);
  device.set("assumed", explained->assumed);
  json.set("device", std::move(device));
  const core::Json plan = attention::to_json(explained->plan);
  for (const core::Json::Member& member : *plan.as_object()) json.set(member.first, member.second);
  return json;
}

Result<std::string> explain_text(const ExplainOptions& options) {
  Result<Explained> explained = make_plan(options);
  if (!explained.ok()) return explained.error();
  const bool assumed_gpu = explained->assumed && options.workgroups == 0;
  return fmt::format("step        {} x {} rows at depth {}\n", options.batch, options.rows,
                     options.depth) +
         fmt::format("device      {}{}; runs {} workgroups at once\n", explained->device.name,
                     assumed_gpu ? ", by its name" : "", explained->device.workgroups) +
         attention::to_text(explained->plan);
}

Status check_kernels(std::optional<attention::DeviceKind> device) {
  if (!kernel_rows(device).empty()) return {};
  return Error{ErrorCode::kUnsupported, why_missing(device)};
}

core::Json kernels_json(std::optional<attention::DeviceKind> device) {
  core::Json list = core::Json::array();
  for (const KernelRow& row : kernel_rows(device)) {
    core::Json json = core::Json::object();
    json.set("name", row.kernel->name);
    json.set("bits_class", row.kernel->bits_class);
    json.set("device", device_name(row.kernel->device));
    json.set("isa", core::isa_name(row.kernel->isa));
    json.set("kv", row.kv);
    json.set("available", row.available);
    list.push(std::move(json));
  }
  core::Json json = core::Json::object();
  json.set("kernels", std::move(list));
  if (const std::string why = why_missing(device); !why.empty()) json.set("missing", why);
  return json;
}

std::string kernels_table(std::optional<attention::DeviceKind> device) {
  std::string text = fmt::format("{:<22} {:<18} {:<7} {:<13} {}\n", "kernel", "bits class",
                                 "device", "KV", "on this machine");
  for (const KernelRow& row : kernel_rows(device)) {
    core::append(text, "{:<22} {:<18} {:<7} {:<13} {}\n", row.kernel->name, row.kernel->bits_class,
                 device_name(row.kernel->device), row.kv,
                 row.available ? "yes" : missing(*row.kernel));
  }
  if (const std::string why = why_missing(device); !why.empty()) text += why + "\n";
  return text;
}

}  // namespace segue::lab
