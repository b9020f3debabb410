// SPDX-License-Identifier: Apache-2.0
// Steps recorded as graphs: a small model waits for its launches, a dozen a layer, and a graph is
// one. A graph holds addresses and grids; what buffers hold, plans and page tables included, is
// read when it replays. Private to this folder, CUDA builds only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attention/cuda/device_plan.h"
#include "device/device.h"
#include "kv/view.h"

namespace segue::model {

/// All that a recorded step depends on but for the contents of its buffers. Equal keys, the same
/// graph; so a buffer that moved makes another key, and nothing is ever invalid.
class GraphKey {
 public:
  void clear() { facts_.clear(); }
  void add(std::int64_t fact) { facts_.push_back(fact); }
  void add(const void* address) { add(reinterpret_cast<std::intptr_t>(address)); }
  void add(const kv::View& view);
  void add(const attention::cuda::Grid& grid);
  void add(const attention::cuda::DevicePlan& plan);

  friend bool operator==(const GraphKey&, const GraphKey&) = default;

 private:
  std::vector<std::int64_t> facts_;
};

/// The graphs of one stream, the least recently used dropped beyond kMost.
class GpuGraphs {
 public:
  /// Each takes a few MB of the device's memory, of which caches leave a tenth.
  static constexpr std::size_t kMost = 64;

  /// Puts the step on the stream: replays the graph of this key, or calls `enqueue`, recording it
  /// when the key is known from an earlier step or `returns`: it is sure to come again. Returns the
  /// microseconds that recording took, 0 otherwise.
  double run(const GraphKey& key, bool returns, device::Stream& stream,
             const std::function<void()>& enqueue);

 private:
  struct Entry {
    GraphKey key;
    std::unique_ptr<device::Graph> graph;  // null: seen once
    std::uint64_t used = 0;
  };
  Entry& entry_of(const GraphKey& key, bool& found);

  std::vector<Entry> entries_;
  std::uint64_t steps_ = 0;
};

}  // namespace segue::model
