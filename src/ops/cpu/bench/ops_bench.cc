// SPDX-License-Identifier: Apache-2.0
// Products: decode (1 to 9 rows over a matrix larger than the second-level
// caches, GB/s of weights, beside a plain read of as many bytes) and prefill (512 rows, GOP/s, two
// operations per weight). `--threads N` first, then the flags of Google Benchmark.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/thread_pool.h"
#include "ops/cpu/matrix.h"

namespace {

using namespace segue;

struct Setup {
  std::unique_ptr<core::ThreadPool> pool;
  core::IsaLevel isa = core::best_isa();
};

/// Random quants; scales are random halves too, small enough to stay finite, and floats are never
/// subnormal.
ops::Matrix random_matrix(core::DType dtype, std::int64_t inputs, std::int64_t outputs,
                          ops::WeightMemory& memory, Setup& setup) {
  const core::DTypeInfo info = core::dtype_info(dtype);
  const std::int64_t bytes = inputs / info.block_elements * info.block_bytes * outputs;
  std::vector<std::uint64_t> words(static_cast<std::size_t>(bytes / 8 + 1));
  std::mt19937_64 random(1);
  for (auto& word : words) word = (random() & 0x1f1f1f1f1f1f1f1full) | 0x2020202020202020ull;
  core::TensorView view;
  view.dtype = dtype;
  view.shape = {inputs, outputs, 1, 1};
  view.data = reinterpret_cast<const std::byte*>(words.data());
  view.bytes = bytes;
  return ops::Matrix::prepare(view, setup.isa, memory, *setup.pool).value();
}

std::vector<float> activations(std::int64_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

/// Times of one piece of work, which is short beside the time slices of a busy machine: the tenth
/// percentile is the machine to itself, the median what it gave on the whole.
class Samples {
 public:
  template <class Fn>
  void time(Fn fn) {
    const double start = core::now_us();
    fn();
    us_.push_back(core::now_us() - start);
  }
  double percentile(double share) {
    std::sort(us_.begin(), us_.end());
    return us_[static_cast<std::size_t>(share * static_cast<double>(us_.size() - 1))];
  }
  void report(benchmark::State& state, const std::string& unit, double amount_per_us) {
    state.counters[unit] = amount_per_us / percentile(0.1);
    state.counters[unit + " median"] = amount_per_us / percentile(0.5);
  }

 private:
  std::vector<double> us_;
};

constexpr int kPieces = 48;  // of 4 MiB: together far beyond the second-level caches
constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

void read_bench(benchmark::State& state, Setup& setup) {
  ops::WeightMemory memory;
  auto* data = reinterpret_cast<std::uint64_t*>(memory.allocate(kPieces * kPieceBytes));
  std::memset(data, 1, kPieces * kPieceBytes);
  const std::int64_t words = kPieceBytes / 8, share = words / setup.pool->threads();
  Samples samples;
  for (auto _ : state) {
    for (int piece = 0; piece < kPieces; ++piece) {
      samples.time([&] {
        setup.pool->run([&](int worker) {
          std::uint64_t sum = 0;
          const std::uint64_t* from = data + piece * words + worker * share;
          for (std::int64_t i = 0; i < share; ++i) sum += from[i];
          benchmark::DoNotOptimize(sum);
        });
      });
    }
  }
  samples.report(state, "GB/s", static_cast<double>(kPieceBytes) / 1e3);
}

void decode_bench(benchmark::State& state, Setup& setup, core::DType dtype, std::int64_t rows) {
  constexpr std::int64_t kInputs = 2048;
  const core::DTypeInfo info = core::dtype_info(dtype);
  const std::int64_t outputs = kPieceBytes / (kInputs / info.block_elements * info.block_bytes);
  ops::WeightMemory memory;
  std::vector<ops::Matrix> pieces;
  for (int piece = 0; piece < kPieces; ++piece) {
    pieces.push_back(random_matrix(dtype, kInputs, outputs, memory, setup));
  }
  const std::vector<float> x = activations(rows * kInputs);
  std::vector<float> y(static_cast<std::size_t>(rows * outputs));
  ops::Rows panel(setup.isa);
  Samples samples;
  for (auto _ : state) {
    for (const ops::Matrix& w : pieces) {
      samples.time([&] {
        panel.assign(x.data(), rows, kInputs);
        ops::matmul(panel, {&w, y.data(), outputs}, *setup.pool);
      });
    }
  }
  samples.report(state, "GB/s", static_cast<double>(pieces[0].bytes()) / 1e3);
}

void prefill_bench(benchmark::State& state, Setup& setup, core::DType dtype, std::int64_t inputs,
                   std::int64_t outputs) {
  constexpr std::int64_t kRows = 512;
  ops::WeightMemory memory;
  const ops::Matrix w = random_matrix(dtype, inputs, outputs, memory, setup);
  const std::vector<float> x = activations(kRows * inputs);
  std::vector<float> y(static_cast<std::size_t>(kRows * outputs));
  ops::Rows panel(setup.isa);
  Samples samples;
  for (auto _ : state) {
    samples.time([&] {
      panel.assign(x.data(), kRows, inputs);
      ops::matmul(panel, {&w, y.data(), outputs}, *setup.pool);
    });
  }
  samples.report(state, "GOP/s", 2e-3 * static_cast<double>(kRows * inputs * outputs));
}

/// The products of one step with the shapes and formats of Gemma 3 270M in its Q4_K_M file. Each
/// call is timed by itself and the times of a step are added up, so that a disturbed call does not
/// spoil the step.
void gemma_bench(benchmark::State& state, Setup& setup, std::int64_t rows, bool with_head) {
  constexpr int kLayers = 18;
  using enum core::DType;
  struct Call {
    std::int64_t inputs;
    std::vector<ops::Matrix> matrices;
    Samples samples;
  };
  ops::WeightMemory memory;
  std::vector<Call> calls;
  const auto matrix = [&](core::DType dtype, std::int64_t inputs, std::int64_t outputs) {
    return random_matrix(dtype, inputs, outputs, memory, setup);
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    calls.push_back(
        {640, {matrix(kQ5_0, 640, 1024), matrix(kQ5_0, 640, 256), matrix(kQ8_0, 640, 256)}, {}});
    calls.push_back({1024, {matrix(kQ4_K, 1024, 640)}, {}});
    calls.push_back({640, {matrix(kQ5_0, 640, 2048), matrix(kQ5_0, 640, 2048)}, {}});
    calls.push_back({2048, {matrix(kQ6_K, 2048, 640)}, {}});
  }
  if (with_head) calls.push_back({640, {matrix(kQ8_0, 640, 262144)}, {}});
  const std::vector<float> x = activations(rows * 2048);
  std::vector<float> y(static_cast<std::size_t>(rows * (with_head ? 262144 : 4096)));
  ops::Rows panel(setup.isa);
  for (auto _ : state) {
    for (Call& call : calls) {
      std::vector<ops::Product> products;
      float* out = y.data();
      for (const ops::Matrix& w : call.matrices) {
        products.push_back({&w, out, w.outputs()});
        out += rows * w.outputs();
      }
      call.samples.time([&] {
        panel.assign(x.data(), rows, call.inputs);
        ops::matmul(panel, products, *setup.pool);
      });
    }
  }
  double us = 0, median_us = 0;
  for (Call& call : calls) {
    us += call.samples.percentile(0.1);
    median_us += call.samples.percentile(0.5);
  }
  state.counters["ms per step"] = us / 1e3;
  state.counters["ms per step median"] = median_us / 1e3;
  state.counters["GB/s"] = static_cast<double>(memory.bytes()) / us / 1e3;
}

/// Takes `--name VALUE` off the front of the arguments.
std::string take_flag(int& argc, char**& argv, std::string_view name, std::string fallback) {
  if (argc < 3 || argv[1] != name) return fallback;
  std::string value = argv[2];
  argv[2] = argv[0];
  argv += 2;
  argc -= 2;
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  using enum core::DType;
  Setup setup;
  const std::string threads =
      take_flag(argc, argv, "--threads", std::to_string(core::cpu_facts().logical_cpus));
  const std::string level = take_flag(argc, argv, "--isa", std::string(core::isa_name(setup.isa)));
  for (core::IsaLevel isa : {core::IsaLevel::kPortable, core::IsaLevel::kAvx2,
                             core::IsaLevel::kNeon, core::IsaLevel::kAvx512}) {
    if (core::isa_name(isa) == level && core::isa_available(isa)) setup.isa = isa;
  }
  setup.pool = std::make_unique<core::ThreadPool>(std::stoi(threads));
  const auto add = [](const std::string& name, auto fn) {
    benchmark::RegisterBenchmark(name.c_str(), fn)->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  add("read", [&](benchmark::State& s) { read_bench(s, setup); });
  for (core::DType dtype : {kQ8_0, kQ6_K, kQ5_K, kQ5_1, kQ5_0, kQ4_K, kQ4_1, kQ4_0, kW4_BF16,
                            kW4_F32, kF16, kBF16, kF32}) {
    const std::string name(core::dtype_info(dtype).name);
    for (std::int64_t rows : {1, 2, 5, 9}) {
      add("decode/" + name + "/rows" + std::to_string(rows),
          [&, dtype, rows](benchmark::State& s) { decode_bench(s, setup, dtype, rows); });
    }
    add("prefill/" + name + "/2048x640",
        [&, dtype](benchmark::State& s) { prefill_bench(s, setup, dtype, 2048, 640); });
    add("prefill/" + name + "/512x2048",
        [&, dtype](benchmark::State& s) { prefill_bench(s, setup, dtype, 512, 2048); });
  }
  for (std::int64_t rows : {1, 2, 3, 5, 9}) {
    add("gemma/rows" + std::to_string(rows),
        [&, rows](benchmark::State& s) { gemma_bench(s, setup, rows, true); });
  }
  add("gemma/prefill512", [&](benchmark::State& s) { gemma_bench(s, setup, 512, false); });
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
