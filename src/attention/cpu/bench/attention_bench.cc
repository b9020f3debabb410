// SPDX-License-Identifier: Apache-2.0
// Attention of one layer timed against its floor: the larger of bytes over the read bandwidth and
// operations over the multiply-add rate, both measured here on the same threads. Minima over many
// short launches, because other programs share the machine. Cold: every launch reads another copy
// of K and V, 600 MB apart in all.
//   attention_cpu_bench [--benchmark_filter=...] ; THREADS, SHAPE etc. are in the benchmark names.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/kernel.h"
#include "core/clock.h"
#include "kv/storage.h"

namespace segue::attention {
namespace {

struct Case {
  Shape shape;
  std::int64_t keys = 0;
  int rows = 1;
  Policy policy = Policy::kSegue;
  bool cold = false;
  int threads = 2;
};

struct Roof {
  double gigabytes_per_s = 0;
  double gigaflops = 0;
};

#if defined(__x86_64__)
#define SEGUE_BENCH_AVX512 __attribute__((target("avx512f")))
#else
#define SEGUE_BENCH_AVX512
#endif

using Sixteen __attribute__((vector_size(64))) = float;

SEGUE_BENCH_AVX512 float read_all(const float* p, std::size_t count) {
  Sixteen sum[8]{};
  for (std::size_t i = 0; i < count; i += 128) {
    for (int j = 0; j < 8; ++j) sum[j] += *reinterpret_cast<const Sixteen*>(p + i + 16 * j);
  }
  Sixteen total = sum[0];
  for (int j = 1; j < 8; ++j) total += sum[j];
  return total[0];
}

/// 12 independent chains of multiply-adds; the empty statement keeps the compiler from seeing that
/// they are equal.
SEGUE_BENCH_AVX512 float multiply_adds(std::int64_t repeats) {
  Sixteen a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};
  const Sixteen half = Sixteen{} + 0.5f;
  for (std::int64_t n = 0; n < repeats; ++n) {
    a = a * half + half, b = b * half + half, c = c * half + half, d = d * half + half;
    e = e * half + half, f = f * half + half, g = g * half + half, h = h * half + half;
    i = i * half + half, j = j * half + half, k = k * half + half, l = l * half + half;
#if defined(__x86_64__)
    asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f));
    asm volatile("" : "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l));
#endif
  }
  const Sixteen sum = a + b + c + d + e + f + g + h + i + j + k + l;
  return sum[0];
}

template <class F>
double fastest_us(int repeats, F f) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = core::now_us();
    f();
    best = std::min(best, core::now_us() - start);
  }
  return best;
}

Roof measure_roof(core::ThreadPool& pool, const std::byte* memory, std::int64_t bytes) {
  Roof roof;
  const int threads = pool.threads();
  std::vector<float> sums(static_cast<std::size_t>(threads) * 16);
  const std::size_t count = static_cast<std::size_t>(bytes / threads / 512) * 128;
  const double read = fastest_us(8, [&] {
    pool.run([&](int worker) {
      const auto* p =
          reinterpret_cast<const float*>(memory) + count * static_cast<std::size_t>(worker);
      sums[static_cast<std::size_t>(worker) * 16] = read_all(p, count);
    });
  });
  roof.gigabytes_per_s = static_cast<double>(count) * 4 * threads / read / 1e3;
  constexpr std::int64_t kRepeats = 20000;
  const double add = fastest_us(30, [&] {
    pool.run(
        [&](int worker) { sums[static_cast<std::size_t>(worker) * 16] = multiply_adds(kRepeats); });
  });
  roof.gigaflops = static_cast<double>(kRepeats) * 12 * 32 * threads / add / 1e3;
  benchmark::DoNotOptimize(sums.data());
  return roof;
}

void run_case(benchmark::State& state, const Case& c) {
  core::ThreadPool pool(c.threads);
  Stream stream{&pool};
  const int pages_per_copy = static_cast<int>((c.keys + c.shape.page_size - 1) / c.shape.page_size);
  kv::PoolSpec spec{.name = "bench",
                    .layers = 1,
                    .kv_heads = c.shape.kv_heads,
                    .head_dim = c.shape.head_dim,
                    .window = c.shape.window,
                    .type = c.shape.kv,
                    .layout = c.shape.layout,
                    .page_size = c.shape.page_size,
                    .pages = pages_per_copy};
  if (c.cold) spec.layers = static_cast<int>(600'000'000 / kv::pool_bytes(spec)) + 2;
  auto storage = kv::Storage::create(spec);
  if (!storage) return state.SkipWithError(storage.error().message.c_str());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  // Numbers of magnitude 1/2 to 1 in any of the types, with random signs and low bits.
  const kv::View first = storage->view(0);
  const std::uint32_t base = c.shape.kv == KvType::kF32    ? 0x3f000000u
                             : c.shape.kv == KvType::kBF16 ? 0x3f003f00u
                                                           : 0x38003800u;
  auto* words = reinterpret_cast<std::uint32_t*>(first.k);
  for (std::int64_t i = 0; i < storage->bytes() / 4; ++i) {
    const std::uint64_t mixed = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15ull;
    words[i] = base ^ (static_cast<std::uint32_t>(mixed >> 32) & 0x807f807fu);
  }
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages_per_copy));
  for (int i = 0; i < pages_per_copy; ++i) table[static_cast<std::size_t>(i)] = i;
  std::shuffle(table.begin(), table.end(), random);
  const kv::PageTable pages{table.data(), pages_per_copy};

  const SequenceRows sequence{.depth = c.keys - c.rows, .rows = c.rows};
  Plan step;
  const PlanInput input{.shape = c.shape, .sequences = {&sequence, 1}, .policy = c.policy};
  if (Status status = plan(input, cpu_device(c.threads), step); !status) {
    return state.SkipWithError(status.error().message.c_str());
  }
  const auto values = static_cast<std::size_t>(c.rows) *
                      static_cast<std::size_t>(c.shape.q_heads * c.shape.head_dim);
  std::vector<float> q(values), out(values);
  for (float& x : q) x = normal(random);
  std::vector<float> m(static_cast<std::size_t>(step.partials)), l(m.size());
  std::vector<float> o(m.size() * static_cast<std::size_t>(c.shape.head_dim));
  Params params{.plan = &step,
                .q = q.data(),
                .out = out.data(),
                .kv = first,
                .tables = &pages,
                .scale = 0.0625f,
                .partial_m = m.data(),
                .partial_l = l.data(),
                .partial_o = o.data()};

  const std::int64_t read = kv::pool_bytes(spec) / spec.layers;
  const Roof roof = measure_roof(pool, first.k, c.cold ? storage->bytes() : read);
  std::vector<double> times;
  int layer = 0;
  for (auto _ : state) {
    params.kv = storage->view(layer);
    layer = (layer + 1) % spec.layers;
    const double start = core::now_us();
    step.kernel->launch(params, stream);
    times.push_back(core::now_us() - start);
    state.SetIterationTime(times.back() * 1e-6);
  }
  std::sort(times.begin(), times.end());
  const double bytes_us = static_cast<double>(step.kv_bytes) / roof.gigabytes_per_s / 1e3;
  const double operations_us = static_cast<double>(step.operations) / roof.gigaflops / 1e3;
  state.counters["min_us"] = times.front();
  state.counters["med_us"] = times[times.size() / 2];
  state.counters["read_us"] = bytes_us;
  state.counters["ops_us"] = operations_us;
  state.counters["min/floor"] = times.front() / std::max(bytes_us, operations_us);
  state.counters["items"] = step.workgroups();
}

void add_case(const std::string& shape_name, const Case& c) {
  const std::string name =
      fmt::format("{}/{}/{}k/r{}/{}/{}/t{}", shape_name, kv_type_name(c.shape.kv), c.keys / 1024,
                  c.rows, policy_name(c.policy), c.cold ? "cold" : "warm", c.threads);
  benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run_case(state, c); })
      ->UseManualTime()
      ->MinTime(0.03)
      ->Unit(benchmark::kMicrosecond);
}

void add_all() {
  struct Named {
    const char* name;
    int q_heads, kv_heads, head_dim, window;
  };
  for (const Named& named :
       {Named{"gemma-3-270m", 4, 1, 256, 0}, Named{"gemma-3-270m-sliding", 4, 1, 256, 512},
        Named{"gemma-4-31b-global", 32, 4, 512, 0}, Named{"s-direct", 16, 8, 256, 0},
        Named{"gemma-4-31b-sliding", 32, 16, 256, 1024}, Named{"llama-70b", 64, 8, 128, 0}}) {
    for (bool cold : {false, true}) {
      for (std::int64_t keys : {1024, 2048, 8192, 16384}) {
        for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
          for (KvType type : {KvType::kBF16, KvType::kF16, KvType::kF32}) {
            for (Policy policy : {Policy::kSegue, Policy::kStock}) {
              for (int threads : {1, 2}) {
                const Shape shape{.q_heads = named.q_heads,
                                  .kv_heads = named.kv_heads,
                                  .head_dim = named.head_dim,
                                  .window = named.window,
                                  .kv = type,
                                  .page_size = kv::kDefaultPageSize};
                add_case(named.name, {.shape = shape,
                                      .keys = keys,
                                      .rows = rows,
                                      .policy = policy,
                                      .cold = cold,
                                      .threads = threads});
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace segue::attention

int main(int argc, char** argv) {
  segue::attention::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
