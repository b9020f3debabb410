// SPDX-License-Identifier: Apache-2.0
// The GPU's executor: the plan's lists live in a DevicePlan, partials in the caller's workspace,
// page tables with the caller.
#ifdef SEGUE_CUDA
#include <algorithm>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "attention/api/executor.h"
#include "attention/cuda/append.h"
#include "attention/cuda/launch.h"
#include "attention/cuda/natural_maps.h"

namespace segue::attention::api {
namespace {

constexpr std::uintptr_t kAlignment = 16;

cuda::Capacity capacity_of(const Layer& layer, const Room& room) {
  cuda::Capacity capacity;
  capacity.items = static_cast<int>(room.capacity.items);
  capacity.reductions = static_cast<int>(room.capacity.reductions);
  capacity.tile_rows = room.capacity.tile_rows;
  capacity.runs = static_cast<int>(room.capacity.runs);
  capacity.partials = room.partials + room.rows * layer.shape.q_heads;  // and the folds' scratch
  return capacity;
}

Status check_aligned(std::initializer_list<std::pair<const void*, const char*>> pointers) {
  for (const auto& [pointer, name] : pointers) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % kAlignment != 0)
      return Error{ErrorCode::kUsage,
                   fmt::format("{} is not aligned to {} bytes", name, kAlignment)};
  }
  return {};
}

/// `more`: other strides, or-ed.
Status check_strides(const kv::View& view, std::int64_t more) {
  const std::int64_t all = view.page_stride | view.head_stride | view.token_stride | more;
  if (all % static_cast<std::int64_t>(kAlignment) == 0) return {};
  return Error{
      ErrorCode::kUsage,
      fmt::format("KV strides of {}, {} and {} bytes and row strides: a GPU needs multiples "
                  "of {}",
                  view.page_stride, view.head_stride, view.token_stride, kAlignment)};
}

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(std::shared_ptr<Layer> layer, const Room& room)
      : layer_(std::move(layer)),
        room_(room),
        plan_(capacity_of(*layer_, room), layer_->shape.head_dim, false),
        ranges_(room.sequences) {}

  std::size_t workspace_bytes() const override { return plan_.partial_bytes(); }

  Status upload(const Plan& plan, std::span<const SequenceRows> sequences, void* handle) override {
    const device::Stream stream = device::Stream::borrowed(handle);
    if (stream.capturing()) {
      return Error{ErrorCode::kUsage,
                   "the stream is being captured: update the plan before the capture and before "
                   "every replay, not within"};
    }
    if (Status status = plan_.upload(plan, room_.table_stride, stream); !status.ok()) return status;
    ranges_.upload(sequences, stream);
    return {};
  }

  Status append(const kv::View& view, const AttentionAppend& rows) override {
    const std::int64_t dense = layer_->shape.key_bytes() / 2;
    cuda::AppendArguments args{};
    args.k = static_cast<const std::byte*>(rows.k);
    args.v = static_cast<const std::byte*>(rows.v);
    args.k_stride = rows.k_stride != 0 ? rows.k_stride : dense;
    args.v_stride = rows.v_stride != 0 ? rows.v_stride : dense;
    args.view = view;
    args.tables = rows.page_tables;
    args.table_stride = room_.table_stride;
    ranges_.fill(args);
    if (Status status =
            check_aligned({{rows.k, "k rows"}, {rows.v, "v rows"}, {view.k, "k"}, {view.v, "v"}});
        !status.ok()) {
      return status;
    }
    if (Status status = check_strides(view, args.k_stride | args.v_stride); !status.ok())
      return status;
    const device::Stream stream = device::Stream::borrowed(rows.stream);
    cuda::append(args, stream.capturing() ? room_.rows : ranges_.rows(), stream);
    return {};
  }

  Status run(const Plan& plan, const kv::View& view, const AttentionCall& call) override {
    if (Status status = check_aligned({{call.q, "q"},
                                       {call.out, "out"},
                                       {view.k, "k"},
                                       {view.v, "v"},
                                       {call.workspace, "workspace"}});
        !status.ok()) {
      return status;
    }
    if (Status status = check_strides(view, 0); !status.ok()) return status;
    const bool maps = layer_->facts.family == GpuFamily::kSm90 &&
                      (view.layout != kv::Layout::kSwizzled8 || view.head_dim > 256);
    if (Status status = maps ? cuda::check_maps(view) : Status{}; !status.ok()) return status;
    DeviceParams params;
    params.plan = &plan_;
    params.q = call.q;
    params.out = call.out;
    params.lse = call.lse;
    params.sinks = call.sinks;
    params.partials = static_cast<float*>(call.workspace);
    params.tables = call.page_tables;
    params.kv = view;
    params.shape = layer_->shape;
    params.scale = layer_->config.scale;
    params.softcap = layer_->config.softcap;
    params.multiprocessors = layer_->facts.multiprocessors;
    params.early_reads = call.early_reads;
    device::Stream stream = device::Stream::borrowed(call.stream);
    params.whole_capacity = stream.capturing();
    plan.kernel->launch_on_gpu(params, stream);
    return {};
  }

 private:
  std::shared_ptr<Layer> layer_;
  Room room_;
  cuda::DevicePlan plan_;
  cuda::RowRanges ranges_;
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(std::shared_ptr<Layer> layer, const Room& room) {
  return std::make_unique<CudaExecutor>(std::move(layer), room);
}

}  // namespace segue::attention::api
#endif
