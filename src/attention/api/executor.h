// SPDX-License-Identifier: Apache-2.0
// What the public API asks of a device: buffers for plans of a bounded size, and a launch. One
// executor belongs to one plan object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "attention/capacity.h"
#include "attention/kernel.h"
#include "attention/plan.h"
#include "core/thread_pool.h"
#include "kv/view.h"
#include "segue/attention.h"

namespace segue::attention::api {

/// Facts of an Attention that its executors use; they keep it alive.
struct Layer {
  AttentionConfig config;  // defaults filled in
  Shape shape;
  DeviceFacts facts;
  Policy policy = Policy::kSegue;
  const Kernel* kernel = nullptr;          // forced, or null
  std::unique_ptr<core::ThreadPool> pool;  // CPU
  std::mutex turn;                         // CPU: one run at a time uses the pool
};

/// What one executor is made for.
struct Room {
  PlanCapacity capacity;
  int sequences = 0;
  std::int64_t rows = 0;
  std::int64_t partials = 0;  // of plans; at most capacity.partials
  std::int32_t table_stride = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// Makes `plan`, of these sequences, the current one; `stream` as in AttentionPlan::update.
  virtual Status upload(const Plan& plan, std::span<const SequenceRows> sequences,
                        void* stream) = 0;
  /// Writes the rows of the current step. Pointers have been checked for null.
  virtual Status append(const kv::View& view, const AttentionAppend& rows) = 0;
  /// Pointers have been checked for null.
  virtual Status run(const Plan& plan, const kv::View& view, const AttentionCall& call) = 0;
};

/// Bytes of workspace that do not depend on how work is split, and of one partial.
std::size_t fixed_bytes(const Layer& layer, std::int64_t rows);
std::size_t partial_bytes(const Layer& layer);

std::unique_ptr<Executor> make_cpu_executor(std::shared_ptr<Layer> layer, const Room& room);

#ifdef SEGUE_CUDA
/// Throws DeviceError.
std::unique_ptr<Executor> make_cuda_executor(std::shared_ptr<Layer> layer, const Room& room);
#endif

}  // namespace segue::attention::api
