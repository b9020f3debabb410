// SPDX-License-Identifier: Apache-2.0
// The memory of one pool and where things lie in it: [layer][page], and within a page
//   token-major:       K [token][kv_head][head_dim], then V the same
//   all other layouts: [kv_head] { K block, V block }, so that a (page, kv head) is one run of
//   bytes
// Host memory only; a device's pool will be another storage behind the same view.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/sizing.h"
#include "kv/view.h"
#include "segue/error.h"

namespace segue::kv {

/// Anonymous memory, reserved at once and touched lazily, on huge pages where the system has them.
class Storage {
 public:
  /// kNoMemory with the size when the system refuses.
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

  View first_layer_;
  std::int64_t layer_stride_ = 0;
  int layers_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
};

}  // namespace segue::kv
