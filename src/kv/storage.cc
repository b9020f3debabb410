// SPDX-License-Identifier: Apache-2.0
// mmap, madvise, GPU memory, and the strides of the layouts.
#include "kv/storage.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"

namespace segue::kv {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

/// Strides and the distance from K to V; pointers stay relative to a null base.
View layout_view(const PoolSpec& spec, std::int64_t& v_distance) {
  View view;
  view.type = spec.type;
  view.layout = spec.layout;
  view.kv_heads = spec.kv_heads;
  view.head_dim = spec.head_dim;
  view.page_size = spec.page_size;
  view.pages = spec.pages;
  view.page_stride = page_bytes_per_layer(spec);
  const std::int64_t row_bytes = std::int64_t{spec.head_dim} * kv_type_bytes(spec.type);
  if (spec.layout == Layout::kTokenMajor) {
    view.head_stride = row_bytes;
    view.token_stride = row_bytes * spec.kv_heads;
    v_distance = view.token_stride * spec.page_size;
  } else {
    view.head_stride = view.page_stride / spec.kv_heads;
    view.token_stride = row_bytes;
    v_distance = view.head_stride - row_bytes * spec.page_size;
  }
  return view;
}

}  // namespace

Result<Storage> Storage::create(const PoolSpec& spec) {
  Storage storage;
  std::int64_t v_distance = 0;
  storage.first_layer_ = layout_view(spec, v_distance);
  storage.layers_ = spec.layers;
  storage.stream_ = spec.stream;
  const std::int64_t bytes = pool_bytes(spec);
  if (bytes == 0) return storage;
  if (bytes > std::numeric_limits<std::int64_t>::max() - kHugePage) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("KV pool '{}' of {} pages is larger than an address space", spec.name,
                             spec.pages)};
  }
  storage.layer_stride_ = storage.first_layer_.page_stride * spec.pages;
  const Status status =
      spec.stream == nullptr ? storage.map_host(spec, bytes) : storage.take_gpu(spec, bytes);
  if (!status.ok()) return status.error();
  storage.first_layer_.v = storage.first_layer_.k + v_distance;
  return storage;
}

Status Storage::map_host(const PoolSpec& spec, std::int64_t bytes) {
  const std::int64_t slack = bytes >= kHugePage ? kHugePage : 0;
  const auto mapping_bytes = static_cast<std::size_t>(bytes + slack);
  void* mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("KV pool '{}': the system refused {} ({})", spec.name,
                             bytes_text(bytes), std::strerror(errno))};
  }
  mapping_ = mapping;
  mapping_bytes_ = mapping_bytes;
  std::byte* base = static_cast<std::byte*>(mapping);
  if (slack > 0) {
    const auto misaligned =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(base) % kHugePage);
    if (misaligned != 0) base += kHugePage - misaligned;
    madvise(base, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // a wish: small pages work too
  }
  first_layer_.k = base;
  return {};
}

Status Storage::take_gpu(const PoolSpec& spec, std::int64_t bytes) {
  try {
    buffer_ = device::Buffer(static_cast<std::size_t>(bytes));
  } catch (const device::DeviceError& error) {
    const Result<std::int64_t> free = device::gpu_free_bytes();
    return Error{ErrorCode::kNoMemory,
                 fmt::format("KV pool '{}': the GPU refused {}, {} are free ({})", spec.name,
                             bytes_text(bytes), free.ok() ? bytes_text(*free) : "an unknown number",
                             error.what())};
  }
  first_layer_.k = buffer_.as<>();
  return {};
}

Storage::Storage(Storage&& other) noexcept { *this = std::move(other); }

Storage& Storage::operator=(Storage&& other) noexcept {
  std::swap(first_layer_, other.first_layer_);
  std::swap(layer_stride_, other.layer_stride_);
  std::swap(layers_, other.layers_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(buffer_, other.buffer_);
  std::swap(stream_, other.stream_);
  return *this;
}

Storage::~Storage() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

View Storage::view(int layer) const {
  CHECK(layer >= 0 && layer < layers_);
  View view = first_layer_;
  if (view.k == nullptr) return view;
  view.k += layer * layer_stride_;
  view.v += layer * layer_stride_;
  return view;
}

void Storage::copy_page(std::int32_t from, std::int32_t to) const {
  for (int layer = 0; layer < layers_; ++layer) {
    const View pages = view(layer);
    std::byte* const target = pages.k + to * pages.page_stride;
    const std::byte* const source = pages.k + from * pages.page_stride;
    const auto bytes = static_cast<std::size_t>(pages.page_stride);
    if (stream_ == nullptr) {
      std::memcpy(target, source, bytes);
    } else {
      device::copy_on_device(target, source, bytes, *stream_);
    }
  }
}

void Storage::poison_page(std::int32_t page) const {
  constexpr int kAllBits = 0xff;  // a NaN in every floating-point type
  for (int layer = 0; layer < layers_; ++layer) {
    const View pages = view(layer);
    std::byte* const target = pages.k + page * pages.page_stride;
    const auto bytes = static_cast<std::size_t>(pages.page_stride);
    if (stream_ == nullptr) {
      std::memset(target, kAllBits, bytes);
    } else {
      device::fill_bytes(target, kAllBits, bytes, *stream_);
    }
  }
}

}  // namespace segue::kv
