// SPDX-License-Identifier: Apache-2.0
// A 64-bit streaming hash of bytes (FNV-1a over 8-byte words with a final mix). For equality of
// results, not for security: two runs with equal hashes produced equal bytes for every practical
// purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace segue::core {

class Hash64 {
 public:
  /// One call is one run of bytes: splitting a run elsewhere than at multiples of 8 gives another
  /// hash.
  void update(const void* data, std::size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (; bytes >= 8; p += 8, bytes -= 8) {
      std::uint64_t word;
      std::memcpy(&word, p, 8);
      absorb(word);
    }
    if (bytes > 0) {
      std::uint64_t word = 0;
      std::memcpy(&word, p, bytes);
      absorb(word ^ (std::uint64_t{bytes} << 56));
    }
  }
  std::uint64_t digest() const {
    std::uint64_t h = state_;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
    return h;
  }

 private:
  void absorb(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x100000001b3ull;
    state_ ^= state_ >> 47;
  }
  std::uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace segue::core
