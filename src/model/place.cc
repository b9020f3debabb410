// SPDX-License-Identifier: Apache-2.0
#include "model/place.h"

#include <algorithm>

#include <fmt/format.h>

#include "attention/gpu.h"
#include "core/cpu.h"
#include "kv/sizing.h"

namespace segue::model {
namespace {

// What the kernels of ops/cuda take.
constexpr std::int64_t kInputBlock = 32;
constexpr std::int64_t kWidest = 16384;

}  // namespace

Error not_on_gpu(const std::string& who, const std::string& what) {
  return {ErrorCode::kUnsupported,
          fmt::format("{} has {}; with --device cuda that does not run yet, with --device cpu it "
                      "does",
                      who, what)};
}

std::string Place::name() const {
  return device == Device::kCuda ? gpu.name : core::cpu_facts().model;
}

std::string Place::text() const {
  if (device == Device::kCuda) return fmt::format("{}, weights {}", name(), weights);
  return fmt::format("{}, {}", name(), core::isa_name(core::best_isa()));
}

std::int64_t Place::memory_bytes() const {
  return device == Device::kCuda ? gpu.memory_bytes : core::cpu_facts().memory_bytes;
}

Result<Place> find_place(Device device, int threads) {
  Place place{device, threads, {}};
  if (device == Device::kCpu) return place;
  Result<device::GpuFacts> gpu = device::current_gpu_facts();
  if (!gpu.ok()) return gpu.error();
  if (Status status = attention::check_gpu(*gpu); !status.ok()) return status.error();
  place.gpu = std::move(gpu).value();
  return place;
}

Status check_widths(const Place& place, const Config& config, const std::string& who) {
  if (place.device == Device::kCpu) return {};
  for (const Layer& layer : config.layers) {
    if (layer.intermediate % kInputBlock == 0) continue;
    return not_on_gpu(who, fmt::format("an MLP of {} (needed: a multiple of {})",
                                       layer.intermediate, kInputBlock));
  }
  if (config.hidden % kInputBlock != 0 || config.hidden > kWidest) {
    return not_on_gpu(who, fmt::format("rows of {} (needed: a multiple of {}, at most {})",
                                       config.hidden, kInputBlock, kWidest));
  }
  return {};
}

Status check_place(const Place& place, const Config& config) {
  if (place.device == Device::kCpu) return {};
  const std::string name = fmt::format("'{}'", config.name);
  if (config.experts.count > 0)
    return not_on_gpu(name, fmt::format("{} experts a layer", config.experts.count));
  return check_widths(place, config, name);
}

Status check_place(const Place& place, KvType type, const attention::Kernel* kernel) {
  if (kernel != nullptr && kernel->device != place.device) {
    return Error{ErrorCode::kUsage,
                 fmt::format("kernel '{}' is one of --device {}; this runs on --device {}",
                             kernel->name, device_name(kernel->device), device_name(place.device))};
  }
  if (place.device == Device::kCpu) return {};
  if (type != KvType::kBF16) {
    return Error{ErrorCode::kUsage, fmt::format("kv is {}; with --device cuda the engine has bf16",
                                                kv_type_name(type))};
  }
  return attention::check_gpu(place.gpu, kernel);
}

attention::Shape attention_shape(const Place& place, const Config& config, int kind, KvType type,
                                 int page_size) {
  const LayerKind& facts = config.kinds[static_cast<std::size_t>(kind)];
  attention::Shape shape{config.q_heads, facts.kv_heads,       facts.head_dim, facts.window,
                         type,           kv::Layout::kTiled16, page_size};
  if (place.device == Device::kCuda) shape.layout = attention::gpu_layout(shape);
  return shape;
}

attention::DeviceFacts device_facts(const Place& place, const attention::Shape& shape,
                                    const attention::Kernel* kernel) {
  if (place.device == Device::kCpu) return attention::cpu_device(place.threads);
  return attention::gpu_device(place.gpu, shape, kernel);
}

std::int64_t gpu_weight_bytes(const Config& config) {
  std::int64_t weights = config.hidden * config.vocab * (config.tied ? 1 : 2);
  for (const Layer& layer : config.layers) {
    const LayerKind& kind = config.kind_of(layer);
    const std::int64_t parts = !layer.owns_kv ? 0 : kind.v_from_k ? 1 : 2;
    weights +=
        config.hidden * (std::int64_t{2} * config.q_heads + parts * kind.kv_heads) * kind.head_dim +
        config.hidden * (3 * layer.intermediate + std::int64_t{2} * config.per_layer_input);
  }
  weights += config.hidden * config.layer_count() * config.per_layer_input;
  return 2 * weights;
}

}  // namespace segue::model
