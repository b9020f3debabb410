// SPDX-License-Identifier: Apache-2.0
// The public classes: what a caller gives is checked here, once, and the planner and an executor do
// the rest. Every entry is a place where exceptions end.
#include "segue/attention.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "attention/api/executor.h"
#include "attention/api/pages.h"
#include "attention/gpu.h"
#include "core/cpu.h"
#include "device/device.h"

namespace segue {

using attention::DeviceKind;
using attention::PlanCapacity;
using attention::Shape;
using attention::api::Executor;
using attention::api::Layer;
using attention::api::Room;

struct Attention::Impl {
  std::shared_ptr<Layer> layer;
};

struct AttentionPlan::Impl {
  std::shared_ptr<Layer> layer;
  AttentionLimits limits;  // defaults filled in
  Room room;
  std::unique_ptr<Executor> executor;
  std::vector<attention::SequenceRows> sequences;
  attention::Plan plan;
  bool current = false;  // the last update() went well
};

namespace {

constexpr std::size_t kDefaultWorkspace = std::size_t{512} << 20;
constexpr std::int64_t kMostKeys = std::numeric_limits<std::int32_t>::max() / 2;
constexpr int kMostThreads = 1024;

Error usage(std::string message) { return {ErrorCode::kUsage, std::move(message)}; }

/// Runs `body`; what the machine throws becomes an Error.
template <class Body>
auto guarded(Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const device::DeviceError& error) {
    return Error{ErrorCode::kDevice, error.what()};
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kNoMemory, "out of memory"};
  } catch (const std::exception& error) {
    return Error{ErrorCode::kIo, error.what()};
  }
}

kv::Layout layout_of(KvLayout layout) {
  switch (layout) {
    case KvLayout::kTokenMajor: return kv::Layout::kTokenMajor;
    case KvLayout::kHeadMajor: return kv::Layout::kHeadMajor;
    case KvLayout::kSwizzled8: return kv::Layout::kSwizzled8;
    case KvLayout::kTiled16:
    case KvLayout::kDevice: break;
  }
  return kv::Layout::kTiled16;
}

bool in_enum(KvType type) { return type <= KvType::kBF16; }

Status check_values(const AttentionConfig& config) {
  if (config.device > AttentionDevice::kCuda) return usage("device: allowed are CPU and CUDA");
  if (config.layout > KvLayout::kSwizzled8 || !in_enum(config.kv) || !in_enum(config.io))
    return usage("layout, KV type or io type is none of those that the header lists");
  if (config.threads < 0 || config.threads > kMostThreads) {
    return usage(
        fmt::format("{} threads; allowed are 0 (all) to {}", config.threads, kMostThreads));
  }
  if (!std::isfinite(config.scale) || config.scale < 0)
    return usage(
        fmt::format("scale {}; allowed are 0 (1 / sqrt(head_dim)) and more", config.scale));
  if (!std::isfinite(config.softcap) || config.softcap < 0)
    return usage(fmt::format("softcap {}; allowed are 0 (none) and more", config.softcap));
  if (config.decode_rows < 1)
    return usage(fmt::format("decode_rows {}; at least 1", config.decode_rows));
  const bool io_ok = config.io == config.kv ||
                     (config.device == AttentionDevice::kCpu && config.io == KvType::kF32);
  if (!io_ok) {
    return usage(fmt::format("q and out in {} with {} KV; allowed are the KV's type{}",
                             kv_type_name(config.io), kv_type_name(config.kv),
                             config.device == AttentionDevice::kCpu ? " and f32" : ""));
  }
  return {};
}

Shape shape_of(const AttentionConfig& config) {
  Shape shape;
  shape.q_heads = config.q_heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.window = config.window;
  shape.kv = config.kv;
  shape.layout = layout_of(config.layout);
  shape.page_size = config.page_size;
  return shape;
}

/// The policy, the forced kernel, facts, threads.
Status open_device(Layer& layer) {
  AttentionConfig& config = layer.config;
  const Result<attention::Policy> policy = attention::parse_policy(config.policy);
  if (!policy.ok()) return policy.error();
  layer.policy = *policy;
  const bool cuda = config.device == AttentionDevice::kCuda;
  if (!config.kernel.empty()) {
    const Result<const attention::Kernel*> kernel = attention::find_kernel(config.kernel);
    if (!kernel.ok()) return kernel.error();
    if ((*kernel)->device != (cuda ? DeviceKind::kCuda : DeviceKind::kCpu))
      return usage(fmt::format("kernel '{}' is not one of this device", config.kernel));
    layer.kernel = *kernel;
  }
  if (cuda) {
    const Result<device::GpuFacts> gpu = device::current_gpu_facts();
    if (!gpu.ok()) return gpu.error();
    if (Status status = attention::check_gpu(*gpu, layer.kernel); !status.ok()) return status;
    layer.facts = attention::gpu_device(*gpu, layer.shape, layer.kernel);
  } else {
    if (config.threads == 0) config.threads = core::cpu_facts().logical_cpus;
    layer.facts = attention::cpu_device(config.threads);
    layer.pool = std::make_unique<core::ThreadPool>(config.threads);
  }
  return {};
}

attention::PlanInput input_of(const Layer& layer,
                              std::span<const attention::SequenceRows> sequences) {
  attention::PlanInput input;
  input.shape = layer.shape;
  input.sequences = sequences;
  input.policy = layer.policy;
  input.decode_rows = layer.config.decode_rows;
  input.kernel = layer.kernel;
  return input;
}

/// Plans one row, so that a shape which no kernel supports is refused at creation, and memory for
/// the kernel is there before the first run.
Status try_plan(const Layer& layer) {
  const attention::SequenceRows row{.depth = 0, .rows = 1};
  attention::Plan plan;
  if (Status status = attention::plan(input_of(layer, {&row, 1}), layer.facts, plan); !status.ok())
    return status;
  if (layer.pool != nullptr) layer.pool->reserve_scratch(plan.kernel->scratch_bytes);
  return {};
}

bool has_element(const kv::View& view, int kv_head, int token, int dim) {
  return kv_head >= 0 && kv_head < view.kv_heads && token >= 0 && token < view.page_size &&
         dim >= 0 && dim < view.head_dim;
}

Status fill_limits(const Shape& shape, AttentionLimits& limits) {
  if (limits.sequences < 1 || limits.rows_per_sequence < 1) {
    return usage(fmt::format("limits of {} sequences and {} rows each; both must be at least 1",
                             limits.sequences, limits.rows_per_sequence));
  }
  if (limits.rows_per_sequence > kMostKeys) {
    return usage(fmt::format("limit of {} rows per sequence; allowed are 1 to {}",
                             limits.rows_per_sequence, kMostKeys));
  }
  if (limits.kv_len < limits.rows_per_sequence || limits.kv_len > kMostKeys) {
    return usage(fmt::format("kv_len limit {}; allowed are {} (the rows of a sequence) to {}",
                             limits.kv_len, limits.rows_per_sequence, kMostKeys));
  }
  const std::int64_t all = std::int64_t{limits.sequences} * limits.rows_per_sequence;
  if (limits.rows < 0) return usage(fmt::format("limit of {} rows; 0 stands for all", limits.rows));
  if (limits.rows == 0 || limits.rows > all) limits.rows = all;
  const std::int64_t entries = (limits.kv_len + shape.page_size - 1) / shape.page_size;
  if (limits.table_stride == 0) limits.table_stride = static_cast<std::int32_t>(entries);
  if (limits.table_stride < entries) {
    return usage(fmt::format("page table rows of {} entries; {} keys in pages of {} need {}",
                             limits.table_stride, limits.kv_len, shape.page_size, entries));
  }
  if (std::int64_t{limits.sequences} * limits.table_stride >
      std::numeric_limits<std::int32_t>::max())
    return usage("page tables of more than 2^31 - 1 entries");
  if (limits.workspace_bytes == 0) limits.workspace_bytes = kDefaultWorkspace;
  return {};
}

/// Sizes of everything, within the workspace that the caller allows.
Result<Room> room_of(const Layer& layer, const AttentionLimits& limits) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t most_rows = kMost / 2 / layer.shape.q_heads;
  if (limits.rows > most_rows) {
    return usage(fmt::format("limits of {} rows; {} query heads allow {}", limits.rows,
                             layer.shape.q_heads, most_rows));
  }
  Room room;
  room.capacity = plan_capacity(layer.shape, layer.facts, layer.policy,
                                {.sequences = limits.sequences,
                                 .rows_per_sequence = limits.rows_per_sequence,
                                 .rows = limits.rows,
                                 .kv_len = limits.kv_len});
  room.sequences = limits.sequences;
  room.rows = limits.rows;
  room.table_stride = limits.table_stride;
  const std::size_t fixed = fixed_bytes(layer, limits.rows);
  if (fixed > limits.workspace_bytes) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("steps of {} rows need a workspace of {} bytes even without a split; "
                             "the limit is {}",
                             limits.rows, fixed, limits.workspace_bytes)};
  }
  const auto space =
      static_cast<std::int64_t>((limits.workspace_bytes - fixed) / partial_bytes(layer));
  room.partials = std::min({room.capacity.partials, space, kMost / 2});
  if (room.capacity.tiles > attention::kMostTiles || room.capacity.items > kMost ||
      room.capacity.reductions > kMost)
    return usage(fmt::format("limits of {} rows are too many", limits.rows));
  return room;
}

std::unique_ptr<Executor> make_executor(const std::shared_ptr<Layer>& layer, const Room& room) {
#ifdef SEGUE_CUDA
  if (layer->facts.kind == DeviceKind::kCuda) return make_cuda_executor(layer, room);
#endif
  return make_cpu_executor(layer, room);
}

Status check_step(const AttentionLimits& limits, std::span<const AttentionSequence> sequences) {
  if (sequences.size() > static_cast<std::size_t>(limits.sequences)) {
    return usage(
        fmt::format("{} sequences; the plan was made for {}", sequences.size(), limits.sequences));
  }
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence& sequence = sequences[i];
    if (sequence.rows < 0 || sequence.rows > limits.rows_per_sequence) {
      return usage(fmt::format("sequence {}: {} rows; allowed are 0 to {}", i, sequence.rows,
                               limits.rows_per_sequence));
    }
    if (sequence.depth < 0 || sequence.depth > limits.kv_len - sequence.rows) {
      return usage(
          fmt::format("sequence {}: depth {} and {} rows; the plan was made for 0 to {} "
                      "keys",
                      i, sequence.depth, sequence.rows, limits.kv_len));
    }
    rows += sequence.rows;
  }
  if (rows <= limits.rows) return {};
  return usage(fmt::format("{} rows; the plan was made for {}", rows, limits.rows));
}

using NamedPointer = std::pair<const void*, const char*>;

Status check_pointers(std::initializer_list<NamedPointer> pointers, const KvPages& pages) {
  for (const auto& [pointer, name] : pointers) {
    if (pointer == nullptr) return usage(fmt::format("{} is null", name));
  }
  if (pages.k == nullptr || pages.v == nullptr) return usage("kv.k or kv.v is null");
  if (pages.pages < 1) return usage(fmt::format("a pool of {} pages", pages.pages));
  return {};
}

Status check_call(const Executor& executor, const AttentionCall& call) {
  if (Status status = check_pointers(
          {{call.q, "q"}, {call.out, "out"}, {call.page_tables, "page_tables"}}, call.kv);
      !status.ok()) {
    return status;
  }
  const std::size_t needed = executor.workspace_bytes();
  if (call.workspace_bytes < needed || (call.workspace == nullptr && needed > 0)) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("a workspace of {} bytes; the plan needs {}",
                             call.workspace == nullptr ? 0 : call.workspace_bytes, needed)};
  }
  return {};
}

/// Of the rows that are appended.
Status check_row_strides(const AttentionConfig& config, const AttentionAppend& rows) {
  const std::int64_t element = kv_type_bytes(config.io);
  const std::int64_t dense = element * config.kv_heads * config.head_dim;
  for (const std::int64_t stride : {rows.k_stride, rows.v_stride}) {
    if (stride == 0 || (stride >= dense && stride % element == 0)) continue;
    return usage(
        fmt::format("rows {} and {} bytes apart (k, v); allowed are 0 (dense) and multiples of {} "
                    "from {} on",
                    rows.k_stride, rows.v_stride, element, dense));
  }
  return {};
}

}  // namespace

namespace attention::api {

std::size_t partial_bytes(const Layer& layer) {
  return (static_cast<std::size_t>(layer.shape.head_dim) + 2) * sizeof(float);
}

std::size_t fixed_bytes(const Layer& layer, std::int64_t rows) {
  const auto heads = static_cast<std::size_t>(rows) * static_cast<std::size_t>(layer.shape.q_heads);
  if (layer.facts.kind == DeviceKind::kCuda) {
    return heads * partial_bytes(layer) + 512;  // scratch of folds; alignment
  }
  if (layer.config.io == KvType::kF32) return 0;
  return 2 * heads * static_cast<std::size_t>(layer.shape.head_dim) * sizeof(float);
}

}  // namespace attention::api

Attention::Attention(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Attention::~Attention() = default;

Result<std::unique_ptr<Attention>> Attention::create(const AttentionConfig& config) noexcept {
  return guarded([&]() -> Result<std::unique_ptr<Attention>> {
    if (Status status = check_values(config); !status.ok()) return status.error();
    auto impl = std::make_shared<Impl>();
    impl->layer = std::make_shared<Layer>();
    Layer& layer = *impl->layer;
    layer.config = config;
    if (config.layout == KvLayout::kDevice) {
      layer.config.layout = config.device == AttentionDevice::kCpu ? KvLayout::kTiled16
                            : attention::gpu_layout(shape_of(config)) == kv::Layout::kSwizzled8
                                ? KvLayout::kSwizzled8
                                : KvLayout::kHeadMajor;
    }
    layer.shape = shape_of(layer.config);
    if (Status status = validate(layer.shape); !status.ok()) return status.error();
    if (layer.shape.layout == kv::Layout::kSwizzled8 &&
        (kv_type_bytes(config.kv) != 2 || config.head_dim % 64 != 0)) {
      return usage(
          fmt::format("layout swizzled8 of {} and head_dim {}; allowed are f16 and bf16, "
                      "and multiples of 64",
                      kv_type_name(config.kv), config.head_dim));
    }
    if (config.scale == 0)
      layer.config.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
    if (Status status = open_device(layer); !status.ok()) return status.error();
    if (Status status = try_plan(layer); !status.ok()) return status.error();
    return std::unique_ptr<Attention>(new Attention(std::move(impl)));
  });
}

const AttentionConfig& Attention::config() const noexcept { return impl_->layer->config; }

std::int64_t Attention::page_bytes() const noexcept {
  return dense_view(impl_->layer->shape).page_stride;
}
std::int64_t Attention::k_offset(int kv_head, int token, int dim) const noexcept {
  const kv::View view = dense_view(impl_->layer->shape);
  if (!has_element(view, kv_head, token, dim)) return -1;
  return kv_head * view.head_stride + view.k_offset(token, dim);
}
std::int64_t Attention::v_offset(int kv_head, int token, int dim) const noexcept {
  const kv::View view = dense_view(impl_->layer->shape);
  if (!has_element(view, kv_head, token, dim)) return -1;
  return kv_head * view.head_stride + view.v_offset(token, dim);
}

Result<std::unique_ptr<AttentionPlan>> Attention::make_plan(
    const AttentionLimits& limits) const noexcept {
  return guarded([&]() -> Result<std::unique_ptr<AttentionPlan>> {
    auto impl = std::make_unique<AttentionPlan::Impl>();
    impl->layer = impl_->layer;
    impl->limits = limits;
    if (Status status = fill_limits(impl->layer->shape, impl->limits); !status.ok())
      return status.error();
    const Result<Room> room = room_of(*impl->layer, impl->limits);
    if (!room.ok()) return room.error();
    impl->room = *room;
    impl->executor = make_executor(impl->layer, *room);
    impl->sequences.reserve(static_cast<std::size_t>(impl->limits.sequences));
    return std::unique_ptr<AttentionPlan>(new AttentionPlan(std::move(impl)));
  });
}

AttentionPlan::AttentionPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AttentionPlan::~AttentionPlan() = default;

Status AttentionPlan::update(std::span<const AttentionSequence> sequences, void* stream) noexcept {
  return guarded([&]() -> Status {
    if (Status status = check_step(impl_->limits, sequences); !status.ok()) return status;
    impl_->sequences.clear();
    for (const AttentionSequence& sequence : sequences) {
      impl_->sequences.push_back({sequence.depth, sequence.rows, sequence.prefill});
    }
    attention::PlanInput input = input_of(*impl_->layer, impl_->sequences);
    input.max_partials = impl_->room.partials;
    input.fit_partials = true;
    impl_->current = false;
    if (Status status = plan(input, impl_->layer->facts, impl_->plan); !status.ok()) return status;
    if (Status status = impl_->executor->upload(impl_->plan, impl_->sequences, stream);
        !status.ok()) {
      return status;
    }
    impl_->current = true;
    return {};
  });
}

std::size_t AttentionPlan::workspace_bytes() const noexcept {
  return impl_->executor->workspace_bytes();
}

Status AttentionPlan::append(const AttentionAppend& rows) noexcept {
  return guarded([&]() -> Status {
    if (!impl_->current) return usage("append() without an update() that went well before it");
    if (Status status = check_pointers(
            {{rows.k, "k"}, {rows.v, "v"}, {rows.page_tables, "page_tables"}}, rows.kv);
        !status.ok()) {
      return status;
    }
    if (Status status = check_row_strides(impl_->layer->config, rows); !status.ok()) return status;
    const Result<kv::View> view = attention::api::view_of(impl_->layer->shape, rows.kv);
    return view.ok() ? impl_->executor->append(*view, rows) : view.error();
  });
}

Status AttentionPlan::run(const AttentionCall& call) noexcept {
  return guarded([&]() -> Status {
    if (!impl_->current) return usage("run() without an update() that went well before it");
    if (impl_->plan.rows == 0 && impl_->layer->facts.kind == DeviceKind::kCpu) return {};
    if (Status status = check_call(*impl_->executor, call); !status.ok()) return status;
    const Result<kv::View> view = attention::api::view_of(impl_->layer->shape, call.kv);
    return view.ok() ? impl_->executor->run(impl_->plan, *view, call) : view.error();
  });
}

std::string AttentionPlan::explain() const {
  core::Json json = core::Json::object();
  core::Json device = core::Json::object();
  device.set("name", impl_->layer->facts.name);
  device.set("workgroups_at_once", impl_->layer->facts.workgroups);
  json.set("device", std::move(device));
  if (!impl_->current) return json.dump();
  const core::Json plan = attention::to_json(impl_->plan, true);
  for (const core::Json::Member& member : *plan.as_object()) json.set(member.first, member.second);
  return json.dump();
}

}  // namespace segue
