// SPDX-License-Identifier: Apache-2.0
// The CPU's executor: the kernels take q and give out in f32, so other types are converted at the
// edges, in the workspace.
#include <cstring>
#include <memory>
#include <mutex>

#include "attention/api/executor.h"
#include "core/dtype.h"
#include "kv/write.h"

namespace segue::attention::api {
namespace {

void widen(const void* from, KvType type, std::size_t count, float* to) {
  const auto* const bits = static_cast<const std::uint16_t*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = type == KvType::kF16 ? core::f16_to_f32(bits[i]) : core::bf16_to_f32(bits[i]);
  }
}

void narrow(const float* from, std::size_t count, KvType type, void* to) {
  auto* const bits = static_cast<std::uint16_t*>(to);
  for (std::size_t i = 0; i < count; ++i) {
    bits[i] = type == KvType::kF16 ? core::f32_to_f16(from[i]) : core::f32_to_bf16(from[i]);
  }
}

/// Page tables of a step as the kernels take them, and the launch.
class CpuExecutor final : public Executor {
 public:
  CpuExecutor(std::shared_ptr<Layer> layer, const Room& room)
      : layer_(std::move(layer)), room_(room) {}

  std::size_t workspace_bytes() const override {
    return fixed_bytes(*layer_, room_.rows) +
           static_cast<std::size_t>(room_.partials) * partial_bytes(*layer_);
  }

  Status upload(const Plan& /*plan*/, std::span<const SequenceRows> sequences,
                void* /*stream*/) override {
    sequences_.assign(sequences.begin(), sequences.end());
    return {};
  }

  Status append(const kv::View& view, const AttentionAppend& rows) override {
    const auto row_elements =
        static_cast<std::size_t>(view.kv_heads) * static_cast<std::size_t>(view.head_dim);
    const auto bytes = static_cast<std::int64_t>(row_elements) * kv_type_bytes(layer_->config.io);
    const std::byte* k = static_cast<const std::byte*>(rows.k);
    const std::byte* v = static_cast<const std::byte*>(rows.v);
    floats_.resize(2 * row_elements);
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const kv::PageTable table{rows.page_tables + i * static_cast<std::size_t>(room_.table_stride),
                                room_.table_stride};
      for (int row = 0; row < sequences_[i].rows; ++row) {
        const std::int64_t position = sequences_[i].depth + row;
        const std::int32_t page = table.pages[position / view.page_size];
        if (page >= 0 && page < view.pages) {
          load(k, row_elements, floats_.data());
          load(v, row_elements, floats_.data() + row_elements);
          kv::write_rows(view, table, position, 1,
                         {.k = floats_.data(), .v = floats_.data() + row_elements});
        }
        k += rows.k_stride != 0 ? rows.k_stride : bytes;
        v += rows.v_stride != 0 ? rows.v_stride : bytes;
      }
    }
    return {};
  }

  Status run(const Plan& plan, const kv::View& view, const AttentionCall& call) override {
    const Shape& shape = layer_->shape;
    const auto elements = static_cast<std::size_t>(plan.rows) *
                          static_cast<std::size_t>(shape.q_heads) *
                          static_cast<std::size_t>(shape.head_dim);
    const bool converts = layer_->config.io != KvType::kF32;
    tables_.resize(plan.sequences.size());
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      tables_[i] = {call.page_tables + i * static_cast<std::size_t>(room_.table_stride),
                    room_.table_stride};
    }
    float* next = static_cast<float*>(call.workspace);
    const auto take = [&](std::size_t floats) {
      float* const taken = next;
      next += floats;
      return taken;
    };
    const auto partials = static_cast<std::size_t>(plan.partials);
    Params params;
    params.plan = &plan;
    params.kv = view;
    params.tables = tables_.data();
    params.scale = layer_->config.scale;
    params.softcap = layer_->config.softcap;
    params.sinks = call.sinks;
    params.lse = call.lse;
    params.partial_o = take(partials * static_cast<std::size_t>(shape.head_dim));
    params.partial_m = take(partials);
    params.partial_l = take(partials);
    if (converts) {
      float* const q = take(elements);
      widen(call.q, layer_->config.io, elements, q);
      params.q = q;
      params.out = take(elements);
    } else {
      params.q = static_cast<const float*>(call.q);
      params.out = static_cast<float*>(call.out);
    }
    {
      const std::lock_guard turn(layer_->turn);
      Stream stream{layer_->pool.get()};
      plan.kernel->launch(params, stream);
    }
    if (converts) narrow(params.out, elements, layer_->config.io, call.out);
    return {};
  }

 private:
  std::shared_ptr<Layer> layer_;
  Room room_;
  void load(const std::byte* from, std::size_t count, float* to) const {
    if (layer_->config.io == KvType::kF32) {
      std::memcpy(to, from, count * sizeof(float));
    } else {
      widen(from, layer_->config.io, count, to);
    }
  }

  std::vector<kv::PageTable> tables_;
  std::vector<SequenceRows> sequences_;
  std::vector<float> floats_;  // one row of K and V
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(std::shared_ptr<Layer> layer, const Room& room) {
  return std::make_unique<CpuExecutor>(std::move(layer), room);
}

}  // namespace segue::attention::api
