// SPDX-License-Identifier: Apache-2.0
#include "core/preemption.h"

#include <algorithm>
#include <array>
#include <charconv>

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif

namespace segue::core {
namespace {

// Beyond so many threads the reading would cost more than it tells.
constexpr int kMostThreads = 16;

/// The second number of "ran waited slices", nanoseconds; -1 when it cannot be read.
std::int64_t read_waited_ns([[maybe_unused]] int file) {
#if defined(__linux__)
  std::array<char, 96> text;
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  if (size <= 0) return -1;
  const char* const begin = text.data();
  const char* const end = begin + size;
  const char* const space = std::find(begin, end, ' ');
  std::int64_t waited = -1;
  if (space != end) std::from_chars(space + 1, end, waited);
  return waited;
#else
  return -1;
#endif
}

}  // namespace

Preemption::~Preemption() {
#if defined(__linux__)
  for (const Thread& thread : threads_) ::close(thread.file);
#endif
}

void Preemption::open([[maybe_unused]] ThreadPool& pool) {
  opened_ = true;
#if defined(__linux__)
  if (pool.threads() > kMostThreads) return;
  std::vector<int> files(static_cast<std::size_t>(pool.threads()), -1);
  pool.run([&](int worker) {
    files[static_cast<std::size_t>(worker)] =
        ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  });
  for (const int file : files) {
    if (file >= 0) threads_.push_back({file, std::max<std::int64_t>(0, read_waited_ns(file))});
  }
#endif
}

double Preemption::since_last_us(ThreadPool& pool) {
  if (!opened_) {
    open(pool);
    return 0;
  }
  std::int64_t longest = 0;
  for (Thread& thread : threads_) {
    const std::int64_t waited = read_waited_ns(thread.file);
    if (waited < 0) continue;
    longest = std::max(longest, waited - thread.waited_ns);
    thread.waited_ns = waited;
  }
  return static_cast<double>(longest) * 1e-3;
}

}  // namespace segue::core
