// SPDX-License-Identifier: Apache-2.0
// What every forward pass on a GPU is made of: memory that grows to the largest step, and the plan
// of one kind of layer with what of it is on the device. Private to this folder, CUDA builds only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/cuda/device_plan.h"
#include "attention/plan.h"
#include "device/device.h"
#include "kv/view.h"
#include "model/place.h"
#include "segue/error.h"

namespace segue::model {

/// Device memory that grows to the largest step seen. Nothing may be in flight when it does.
template <class T>
class Rows {
 public:
  T* of(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > buffer_.bytes()) {
      buffer_ = device::Buffer();
      buffer_ = device::Buffer(bytes);
    }
    return buffer_.as<T>();
  }
  T* data() const { return buffer_.as<T>(); }

 private:
  device::Buffer buffer_;
};

/// The same in pinned host memory.
template <class T>
class HostRows {
 public:
  T* of(std::int64_t count) {
    if (count > capacity_) {
      buffer_ = device::PinnedBuffer();
      buffer_ = device::PinnedBuffer(static_cast<std::size_t>(count) * sizeof(T));
      capacity_ = count;
    }
    return reinterpret_cast<T*>(buffer_.data());
  }
  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }

 private:
  device::PinnedBuffer buffer_;
  std::int64_t capacity_ = 0;
};

/// kNoMemory with the sizes when weights of `path` that need so many bytes do not fit.
Status fits_on_gpu(const Place& place, std::int64_t bytes, const std::string& path);

/// Attention of the layers of one kind in the step at hand.
struct PlannedAttention {
  attention::Plan plan;
  std::vector<kv::PageTable> tables;  // [sequences]
  attention::cuda::Capacity capacity;
  std::optional<attention::cuda::DevicePlan> on_device;

  /// Plans and uploads; `tables` are set.
  Status set(const attention::PlanInput& asked, const attention::DeviceFacts& facts,
             const device::Stream& stream);
};

}  // namespace segue::model
