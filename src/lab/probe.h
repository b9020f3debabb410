// SPDX-License-Identifier: Apache-2.0
// What this machine can do right now with these threads: plain reading of memory and plain
// multiply-adds. The sweep sets every cell against both, measured in the same run.
#pragma once

#include <cstddef>

#include "core/thread_pool.h"

namespace segue::lab {

/// Median over `passes` passes of all threads reading `data`, one slice each; GB/s. With a buffer
/// larger than the last-level cache this is memory, with a small one it is the cache that holds it
/// (the first pass is not counted).
double read_gbps(core::ThreadPool& pool, const std::byte* data, std::size_t bytes, int passes);

/// f32 multiply-adds in registers at the best instruction level, all threads at once; an add and a
/// multiply are two operations. Median of `runs` runs of about a millisecond: what the machine
/// gives now, not what it gave at its best.
double peak_gflops(core::ThreadPool& pool, int runs);

}  // namespace segue::lab
