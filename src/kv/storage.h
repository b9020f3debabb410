// SPDX-License-Identifier: Apache-2.0
// The memory of one pool and where things lie in it: [layer][page], and within a page
//   token-major:       K [token][kv_head][head_dim], then V the same
//   all other layouts: [kv_head] { K block, V block }, so that a (page, kv head) is one run of
//   bytes
// In host memory or in a GPU's, behind the same view.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kv/sizing.h"
#include "kv/view.h"
#include "segue/error.h"

namespace segue::kv {

/// Host: anonymous memory, reserved at once and touched lazily, on huge pages where the system has
/// them. GPU: taken at once; what is done with it goes through the spec's stream, which outlives
/// this, and may throw DeviceError.
class Storage {
 public:
  /// kNoMemory with the size when the system or the GPU refuses.
  static Result<Storage> create(const PoolSpec& spec);
  Storage(Storage&& other) noexcept;
  Storage& operator=(Storage&& other) noexcept;
  ~Storage();

  View view(int layer) const;
  std::int64_t bytes() const { return layer_stride_ * layers_; }

  /// Copies a page in all layers.
  void copy_page(std::int32_t from, std::int32_t to) const;
  /// Fills a page with NaN in all layers, tile padding included.
  void poison_page(std::int32_t page) const;

 private:
  Storage() = default;
  Status map_host(const PoolSpec& spec, std::int64_t bytes);
  Status take_gpu(const PoolSpec& spec, std::int64_t bytes);

  View first_layer_;
  std::int64_t layer_stride_ = 0;
  int layers_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  device::Buffer buffer_;
  const device::Stream* stream_ = nullptr;
};

}  // namespace segue::kv
