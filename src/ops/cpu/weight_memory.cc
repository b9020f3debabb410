// SPDX-License-Identifier: Apache-2.0
// Bump allocation in anonymous maps of at least 32 MiB, aligned to the huge page size.
#include "ops/cpu/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace segue::ops {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
constexpr std::int64_t kSlabBytes = std::int64_t{32} << 20;
constexpr std::int64_t kAlignment = 64;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

/// A map whose start is a multiple of the huge page size: one page more than asked, ends given
/// back.
std::byte* map_aligned(std::int64_t size) {
  const auto padded = static_cast<std::size_t>(size + kHugePage);
  void* map = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(map);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const auto head = static_cast<std::size_t>(-address % static_cast<std::uintptr_t>(kHugePage));
  const std::size_t tail = padded - head - static_cast<std::size_t>(size);
  if (head > 0) munmap(start, head);
  if (tail > 0) munmap(start + head + size, tail);
  madvise(start + head, static_cast<std::size_t>(size),
          MADV_HUGEPAGE);  // a wish; failure costs only speed
  return start + head;
}

}  // namespace

WeightMemory::WeightMemory(WeightMemory&& other) noexcept
    : slabs_(std::move(other.slabs_)), bytes_(std::exchange(other.bytes_, 0)) {
  other.slabs_.clear();
}

WeightMemory& WeightMemory::operator=(WeightMemory&& other) noexcept {
  if (this != &other) {
    release();
    slabs_ = std::move(other.slabs_);
    other.slabs_.clear();
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

WeightMemory::~WeightMemory() { release(); }

void WeightMemory::release() {
  for (const Slab& slab : slabs_) munmap(slab.data, static_cast<std::size_t>(slab.size));
  slabs_.clear();
}

std::byte* WeightMemory::allocate(std::int64_t bytes) {
  const std::int64_t size = round_up(bytes, kAlignment);
  if (slabs_.empty() || slabs_.back().size - slabs_.back().used < size) {
    const std::int64_t slab_size = round_up(std::max(size, kSlabBytes), kHugePage);
    std::byte* data = map_aligned(slab_size);
    if (data == nullptr) return nullptr;
    slabs_.push_back({data, slab_size, 0});
  }
  Slab& slab = slabs_.back();
  std::byte* result = slab.data + slab.used;
  slab.used += size;
  bytes_ += bytes;
  return result;
}

}  // namespace segue::ops
