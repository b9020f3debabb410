// SPDX-License-Identifier: Apache-2.0
// For tests of parsers: bytes in front of an unreadable page, so that a read past the end stops the
// program, and damaged copies of a good input.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <vector>

#include "core/check.h"

namespace segue::core {

/// A copy of `bytes` that ends where an unreadable page begins.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::span<const std::byte> bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t room = (bytes.size() + page - 1) / page * page;
    mapped_ = room + page;
    void* address =
        ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(address != MAP_FAILED);
    base_ = static_cast<std::byte*>(address);
    CHECK(::mprotect(base_ + room, page, PROT_NONE) == 0);
    if (!bytes.empty()) std::memcpy(base_ + room - bytes.size(), bytes.data(), bytes.size());
    view_ = {base_ + room - bytes.size(), bytes.size()};
  }
  ~GuardedBytes() { ::munmap(base_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::span<const std::byte> view() const { return view_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t mapped_ = 0;
  std::span<const std::byte> view_;
};

/// Calls `read(std::span<const std::byte>)` with `count` guarded, deterministic mutants of
/// `original`, damaged within its first `region` bytes.
template <class Read>
void for_each_mutant(std::span<const std::byte> original, std::size_t region, int count,
                     const Read& read) {
  std::mt19937_64 random(20);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  const std::uint64_t extremes[] = {0,          1,     0x7f,       0xff,       0xffffffff,
                                    1ull << 31, ~0ull, 1ull << 63, ~0ull >> 1, (1ull << 61) + 1,
                                    1ull << 32};
  for (int i = 0; i < count; ++i) {
    std::vector<std::byte> mutant(original.begin(), original.end());
    switch (i % 4) {
      case 0:  // one bit
        mutant[below(region)] ^= static_cast<std::byte>(1u << below(8));
        break;
      case 1:  // up to 8 bytes anywhere
        for (std::size_t n = 1 + below(8); n > 0; --n)
          mutant[below(region)] = static_cast<std::byte>(random());
        break;
      case 2: {  // a number at its limit
        const std::size_t bytes = std::size_t{1} << below(4);
        const std::uint64_t value = extremes[below(std::size(extremes))];
        std::memcpy(mutant.data() + below(region - bytes), &value, bytes);
        break;
      }
      default:  // one bit and a cut
        mutant[below(region)] ^= static_cast<std::byte>(1u << below(8));
        mutant.resize(below(mutant.size()));
    }
    read(GuardedBytes(mutant).view());
  }
}

}  // namespace segue::core
