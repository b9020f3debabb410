// SPDX-License-Identifier: Apache-2.0
// Where a model runs, and what follows from that before a weight is read: what is supported there,
// the shape of its attention and the facts that plans read.
#pragma once

#include <cstdint>
#include <string>

#include "attention/kernel.h"
#include "attention/shape.h"
#include "device/device.h"
#include "model/config.h"
#include "segue/error.h"
#include "segue/types.h"

namespace segue::model {

struct Place {
  Device device = Device::kCpu;
  int threads = 1;        // CPU
  device::GpuFacts gpu;   // GPU
  std::string weights{};  // GPU: the forms they have there and what is not, once they are loaded

  /// "AMD EPYC 9B14", "NVIDIA H200".
  std::string name() const;
  /// "AMD EPYC 9B14, avx512", "NVIDIA H200, weights bf16",
  /// "NVIDIA H200, weights 4 bit and bf16".
  std::string text() const;
  /// Memory that weights and caches share.
  std::int64_t memory_bytes() const;
  /// Prompt rows have other bits than the same rows generated: a cache of generated rows is no
  /// prefix of a prompt.
  bool prompts_differ() const { return device == Device::kCuda; }
};

/// kUnsupported where there is no such device, or this build has no code for it.
Result<Place> find_place(Device device, int threads);

/// kUnsupported for a model, kUsage for a KV type or kernel (null: none is forced) that does not
/// run there, by name.
Status check_place(const Place& place, const Config& config);
Status check_place(const Place& place, KvType type, const attention::Kernel* kernel);
/// For `who` in the message: widths of rows and MLPs that the products there do not take.
Status check_widths(const Place& place, const Config& config, const std::string& who);
/// "WHO has WHAT; .. does not run yet, ..".
Error not_on_gpu(const std::string& who, const std::string& what);

/// The shape that attention has in the layers of a kind, in the layout of that place.
attention::Shape attention_shape(const Place& place, const Config& config, int kind, KvType type,
                                 int page_size);

/// The facts that plans of this shape read; `kernel`: forced, or null.
attention::DeviceFacts device_facts(const Place& place, const attention::Shape& shape,
                                    const attention::Kernel* kernel);

/// Bytes of the matrices in bf16: on a GPU they take no more, whatever the file has. The table of
/// per-layer embeddings, which stays on the host, is not among them.
std::int64_t gpu_weight_bytes(const Config& config);

}  // namespace segue::model
