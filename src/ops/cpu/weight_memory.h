// SPDX-License-Identifier: Apache-2.0
// Memory for prepared weights: a few large anonymous maps that ask for huge pages, filled from the
// front. One model owns one; a matrix of a few hundred kilobytes then shares huge pages with its
// neighbours instead of wasting most of one. Nothing is freed before the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace segue::ops {

class WeightMemory {
 public:
  WeightMemory() = default;
  WeightMemory(WeightMemory&& other) noexcept;
  WeightMemory& operator=(WeightMemory&& other) noexcept;
  ~WeightMemory();

  /// `bytes` of zeroed memory, aligned to 64, valid as long as this object (or the one it is moved
  /// to) lives; null when the system has none. Not safe to call from several threads at once.
  std::byte* allocate(std::int64_t bytes);

  /// Sum of the sizes handed out.
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Slab {
    std::byte* data;
    std::int64_t size;
    std::int64_t used;
  };
  void release();

  std::vector<Slab> slabs_;
  std::int64_t bytes_ = 0;
};

}  // namespace segue::ops
