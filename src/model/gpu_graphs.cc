// SPDX-License-Identifier: Apache-2.0
#ifdef SEGUE_CUDA
#include "model/gpu_graphs.h"

#include <algorithm>

#include "core/clock.h"

namespace segue::model {

void GraphKey::add(const kv::View& view) {
  add(view.k);
  add(view.v);
  for (const std::int64_t fact : {view.page_stride, view.head_stride, view.token_stride}) add(fact);
  for (const int fact : {static_cast<int>(view.type), static_cast<int>(view.layout), view.kv_heads,
                         view.head_dim, view.page_size, view.pages}) {
    add(std::int64_t{fact});
  }
}

void GraphKey::add(const attention::cuda::Grid& grid) {
  for (const int fact : {grid.items, grid.reductions, grid.tile_rows, grid.runs})
    add(std::int64_t{fact});
  add(std::int64_t{grid.folds});
}

void GraphKey::add(const attention::cuda::DevicePlan& plan) {
  attention::cuda::Arguments args;
  plan.fill(args);
  for (const void* address :
       {static_cast<const void*>(args.counts), static_cast<const void*>(args.items),
        static_cast<const void*>(args.reductions), static_cast<const void*>(args.tables),
        static_cast<const void*>(args.partial_o), static_cast<const void*>(args.partial_m)}) {
    add(address);
  }
}

GpuGraphs::Entry& GpuGraphs::entry_of(const GraphKey& key, bool& found) {
  const auto known = std::ranges::find(entries_, key, &Entry::key);
  found = known != entries_.end();
  if (found) return *known;
  if (entries_.size() < kMost) {
    entries_.emplace_back();
    entries_.back().key = key;
    return entries_.back();
  }
  Entry& oldest = *std::ranges::min_element(entries_, {}, &Entry::used);
  oldest.graph.reset();
  oldest.key = key;
  return oldest;
}

double GpuGraphs::run(const GraphKey& key, bool returns, device::Stream& stream,
                      const std::function<void()>& enqueue) {
  bool found = false;
  Entry& entry = entry_of(key, found);
  entry.used = ++steps_;
  if (!found && !returns) {
    enqueue();
    return 0;
  }
  double recording_us = 0;
  if (entry.graph == nullptr) {
    const double start = core::now_us();
    entry.graph = std::make_unique<device::Graph>(stream, enqueue);
    recording_us = core::now_us() - start;
  }
  entry.graph->replay(stream);
  return recording_us;
}

}  // namespace segue::model
#endif
