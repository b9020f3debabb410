// SPDX-License-Identifier: Apache-2.0
// What shapes are allowed, and the facts of the CPU.
#include "attention/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/cpu.h"

namespace segue::attention {
namespace {

constexpr std::array kHeadDims{64, 80, 96, 128, 256, 512};
constexpr int kMaxGroup = 16;
constexpr int kMaxHeads = 1024;  // as in the models' files
constexpr int kMaxPageSize = 1 << 20;

}  // namespace

Status validate(const Shape& shape) {
  const auto refuse = [](std::string message) {
    return Error{ErrorCode::kUsage, std::move(message)};
  };
  if (shape.q_heads < 1 || shape.kv_heads < 1) {
    return refuse(
        fmt::format("attention shape: {} query heads and {} kv heads; both must be at least 1",
                    shape.q_heads, shape.kv_heads));
  }
  if (shape.q_heads > kMaxHeads) {
    return refuse(fmt::format("attention shape: {} query heads; allowed are 1 to {}", shape.q_heads,
                              kMaxHeads));
  }
  if (shape.q_heads % shape.kv_heads != 0) {
    return refuse(fmt::format("attention shape: {} query heads do not divide by {} kv heads",
                              shape.q_heads, shape.kv_heads));
  }
  if (shape.group() > kMaxGroup) {
    return refuse(fmt::format("attention shape: {} query heads per kv head; allowed are 1 to {}",
                              shape.group(), kMaxGroup));
  }
  if (std::find(kHeadDims.begin(), kHeadDims.end(), shape.head_dim) == kHeadDims.end()) {
    return refuse(fmt::format("attention shape: head_dim {}; allowed are {}", shape.head_dim,
                              fmt::join(kHeadDims, ", ")));
  }
  if (shape.window < 0) {
    return refuse(
        fmt::format("attention shape: window {}; allowed are 0 (none) and more", shape.window));
  }
  if (shape.page_size < 8 || shape.page_size > kMaxPageSize || shape.page_size % 8 != 0) {
    return refuse(fmt::format("attention shape: page size {}; allowed are multiples of 8 up to {}",
                              shape.page_size, kMaxPageSize));
  }
  return {};
}

DeviceFacts cpu_device(int threads) {
  DeviceFacts facts;
  facts.name = core::cpu_facts().model;
  facts.workgroups = std::max(threads, 1);
  facts.multiprocessors = facts.workgroups;
  facts.min_unit = 128;     // 64 cost 10 to 18 % at 2K keys and in windows of 512
  facts.uneven = true;      // a shared machine slows one CPU by a third for milliseconds ...
  facts.imbalance = 0.25;   // ... and equal work ends that far apart
  facts.target_items = 32;  // 128 cost 7 % at 8 rows x 4 heads of one kv head: partials of 128 keys
  return facts;
}

kv::View dense_view(const Shape& shape) {
  const std::int64_t row = std::int64_t{shape.head_dim} * kv_type_bytes(shape.kv);
  kv::View view;
  view.type = shape.kv;
  view.layout = shape.layout;
  view.kv_heads = shape.kv_heads;
  view.head_dim = shape.head_dim;
  view.page_size = shape.page_size;
  if (shape.layout == kv::Layout::kTokenMajor) {
    view.token_stride = shape.kv_heads * row;
    view.head_stride = row;
    view.page_stride = shape.page_size * view.token_stride;
  } else {
    const int tile = shape.layout == kv::Layout::kTiled16 ? kv::kTokenTile : 1;
    view.token_stride = row;
    view.head_stride = (shape.page_size + tile - 1) / tile * tile * row;
    view.page_stride = shape.kv_heads * view.head_stride;
  }
  return view;
}

}  // namespace segue::attention
