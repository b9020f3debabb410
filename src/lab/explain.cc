// SPDX-License-Identifier: Apache-2.0
// explain: a plan made and shown. kernels: the table shown.
#include "lab/explain.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>

#include "attention/kernel.h"
#include "core/cpu.h"

namespace segue::lab {
namespace {

struct Explained {
  attention::Plan plan;
  attention::DeviceFacts device;
};

Result<Explained> make_plan(const ExplainOptions& options) {
  Explained explained;
  const int threads = options.threads > 0 ? options.threads : core::cpu_facts().logical_cpus;
  explained.device = attention::cpu_device(threads);
  if (options.workgroups > 0) {
    explained.device.name = "assumed";
    explained.device.workgroups = options.workgroups;
    explained.device.multiprocessors = options.workgroups;
  }
  attention::PlanInput input;
  input.shape = options.shape.shape;
  const std::vector<attention::SequenceRows> sequences(
      static_cast<std::size_t>(options.batch), {.depth = options.depth, .rows = options.rows});
  input.sequences = sequences;
  input.policy = options.policy;
  input.decode_rows = options.decode_rows;
  if (!options.kernel.empty()) {
    const Result<const attention::Kernel*> kernel = attention::find_kernel(options.kernel);
    if (!kernel.ok()) return kernel.error();
    input.kernel = *kernel;
  }
  if (Status status = attention::plan(input, explained.device, explained.plan); !status.ok()) {
    return status.error();
  }
  return explained;
}

struct KernelRow {
  const attention::Kernel* kernel = nullptr;
  std::string kv;
  bool available = false;
};

/// KV types that a kernel supports in any layout.
std::string kv_types(const attention::Kernel& kernel) {
  std::string types;
  for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    const std::array layouts{kv::Layout::kTiled16, kv::Layout::kTokenMajor, kv::Layout::kHeadMajor,
                             kv::Layout::kSwizzled8};
    const bool any = std::ranges::any_of(layouts, [&](kv::Layout layout) {
      attention::Shape shape{.q_heads = 4, .kv_heads = 1, .head_dim = 256, .kv = kv};
      shape.layout = layout;
      return kernel.supports(shape);
    });
    if (any) types += fmt::format("{}{}", types.empty() ? "" : " ", kv_type_name(kv));
  }
  return types;
}

std::vector<KernelRow> kernel_rows() {
  std::vector<KernelRow> rows;
  for (const attention::Kernel& kernel : attention::cpu_kernels()) {
    rows.push_back({&kernel, kv_types(kernel), core::isa_available(kernel.isa)});
  }
  for (const attention::Kernel* kernel : attention::kernels()) {
    const bool listed =
        std::ranges::any_of(rows, [&](const KernelRow& row) { return row.kernel == kernel; });
    if (!listed) rows.push_back({kernel, kv_types(*kernel), true});
  }
  return rows;
}

std::string_view device_name(attention::DeviceKind kind) {
  return kind == attention::DeviceKind::kCpu ? "cpu" : "cuda";
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
  device.set("workgroups", explained->device.workgroups);
  device.set("multiprocessors", explained->device.multiprocessors);
  json.set("device", std::move(device));
  const core::Json plan = attention::to_json(explained->plan);
  for (const core::Json::Member& member : *plan.as_object()) json.set(member.first, member.second);
  return json;
}

Result<std::string> explain_text(const ExplainOptions& options) {
  Result<Explained> explained = make_plan(options);
  if (!explained.ok()) return explained.error();
  return fmt::format("step        {} x {} rows at depth {}, on {} workgroups ({})\n", options.batch,
                     options.rows, options.depth, explained->device.workgroups,
                     explained->device.name) +
         attention::to_text(explained->plan);
}

core::Json kernels_json() {
  core::Json list = core::Json::array();
  for (const KernelRow& row : kernel_rows()) {
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
  return json;
}

std::string kernels_table() {
  std::string text = fmt::format("{:<22} {:<18} {:<7} {:<13} {}\n", "kernel", "bits class",
                                 "device", "KV", "on this machine");
  for (const KernelRow& row : kernel_rows()) {
    fmt::format_to(
        std::back_inserter(text), "{:<22} {:<18} {:<7} {:<13} {}\n", row.kernel->name,
        row.kernel->bits_class, device_name(row.kernel->device), row.kv,
        row.available ? "yes" : fmt::format("no: needs {}", core::isa_name(row.kernel->isa)));
  }
  return text;
}

}  // namespace segue::lab
