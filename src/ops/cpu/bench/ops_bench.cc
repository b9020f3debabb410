// SPDX-License-Identifier: Apache-2.0
// Products at the best level: decode (1 to 9 rows over a matrix larger than the second-level
// caches, GB/s of weights, beside a plain read of as many bytes) and prefill (512 rows, GOP/s, two
// operations per weight). `--threads N` first, then the flags of Google Benchmark.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

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

/// A matrix of random quants; scales are random halves too, small enough to stay finite.
struct Weights {
  ops::WeightMemory memory;
  ops::Matrix matrix;

  Weights(core::DType dtype, std::int64_t inputs, std::int64_t outputs, Setup& setup) {
    const core::DTypeInfo info = core::dtype_info(dtype);
    std::vector<std::uint64_t> words(static_cast<std::size_t>(
        inputs / info.block_elements * info.block_bytes * outputs / 8 + 1));
    std::mt19937_64 random(1);
    for (auto& word : words) word = random() & 0x3f3f3f3f3f3f3f3full;
    core::TensorView view;
    view.dtype = dtype;
    view.shape = {inputs, outputs, 1, 1};
    view.data = reinterpret_cast<const std::byte*>(words.data());
    view.bytes = inputs / info.block_elements * info.block_bytes * outputs;
    matrix = ops::Matrix::prepare(view, setup.isa, memory, *setup.pool).value();
  }
};

std::vector<float> activations(std::int64_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

void read_bench(benchmark::State& state, Setup& setup) {
  constexpr std::int64_t kBytes = std::int64_t{192} << 20;
  ops::WeightMemory memory;
  auto* data = reinterpret_cast<std::uint64_t*>(memory.allocate(kBytes));
  std::memset(data, 1, kBytes);
  const std::int64_t words = kBytes / 8 / setup.pool->threads();
  for (auto _ : state) {
    setup.pool->run([&](int worker) {
      std::uint64_t sum = 0;
      for (std::int64_t i = words * worker; i < words * (worker + 1); ++i) sum += data[i];
      benchmark::DoNotOptimize(sum);
    });
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * kBytes);
}

void decode_bench(benchmark::State& state, Setup& setup, core::DType dtype, std::int64_t inputs,
                  std::int64_t rows) {
  constexpr std::int64_t kBytes = std::int64_t{192} << 20;
  const core::DTypeInfo info = core::dtype_info(dtype);
  const std::int64_t outputs = kBytes / (inputs / info.block_elements * info.block_bytes);
  const Weights w(dtype, inputs, outputs, setup);
  const std::vector<float> x = activations(rows * inputs);
  std::vector<float> y(static_cast<std::size_t>(rows * outputs));
  ops::Rows panel(setup.isa);
  for (auto _ : state) {
    panel.assign(x.data(), rows, inputs);
    ops::matmul(panel, {&w.matrix, y.data(), outputs}, *setup.pool);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * w.matrix.bytes());
}

void prefill_bench(benchmark::State& state, Setup& setup, core::DType dtype, std::int64_t inputs,
                   std::int64_t outputs) {
  constexpr std::int64_t kRows = 512;
  const Weights w(dtype, inputs, outputs, setup);
  const std::vector<float> x = activations(kRows * inputs);
  std::vector<float> y(static_cast<std::size_t>(kRows * outputs));
  ops::Rows panel(setup.isa);
  for (auto _ : state) {
    panel.assign(x.data(), kRows, inputs);
    ops::matmul(panel, {&w.matrix, y.data(), outputs}, *setup.pool);
  }
  state.counters["GOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(kRows * inputs * outputs),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

/// One layer stack with the shapes and formats of Gemma 3 270M in its Q4_K_M file.
struct Stack {
  struct Layer {
    Weights q, k, v, o, gate, up, down;
  };
  std::vector<std::unique_ptr<Layer>> layers;
  Weights head;

  explicit Stack(Setup& s) : head(core::DType::kQ8_0, 640, 262144, s) {
    using enum core::DType;
    for (int i = 0; i < 18; ++i) {
      layers.push_back(std::unique_ptr<Layer>(new Layer{{kQ5_0, 640, 1024, s},
                                                        {kQ5_0, 640, 256, s},
                                                        {kQ8_0, 640, 256, s},
                                                        {kQ4_K, 1024, 640, s},
                                                        {kQ5_0, 640, 2048, s},
                                                        {kQ5_0, 640, 2048, s},
                                                        {kQ6_K, 2048, 640, s}}));
    }
  }
  std::int64_t bytes() const {
    std::int64_t sum = head.matrix.bytes();
    for (const auto& l : layers) {
      for (const Weights* w : {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down})
        sum += w->matrix.bytes();
    }
    return sum;
  }
};

void stack_bench(benchmark::State& state, Setup& setup, std::int64_t rows, bool head) {
  Stack stack(setup);
  const std::vector<float> x = activations(rows * 2048);
  std::vector<float> a(static_cast<std::size_t>(rows * 2048)), b(a), c(a),
      logits(262144 * static_cast<std::size_t>(rows));
  ops::Rows panel(setup.isa);
  const auto product = [&](std::int64_t inputs, std::span<const ops::Product> products) {
    panel.assign(x.data(), rows, inputs);
    ops::matmul(panel, products, *setup.pool);
  };
  for (auto _ : state) {
    for (const auto& l : stack.layers) {
      const ops::Product qkv[] = {{&l->q.matrix, a.data(), 1024},
                                  {&l->k.matrix, b.data(), 256},
                                  {&l->v.matrix, c.data(), 256}};
      product(640, qkv);
      const ops::Product o[] = {{&l->o.matrix, a.data(), 640}};
      product(1024, o);
      const ops::Product gate_up[] = {{&l->gate.matrix, a.data(), 2048},
                                      {&l->up.matrix, b.data(), 2048}};
      product(640, gate_up);
      const ops::Product down[] = {{&l->down.matrix, a.data(), 640}};
      product(2048, down);
    }
    const ops::Product logit[] = {{&stack.head.matrix, logits.data(), 262144}};
    if (head) product(640, logit);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          (stack.bytes() - (head ? 0 : stack.head.matrix.bytes())));
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  int threads = core::cpu_facts().logical_cpus;
  if (argc > 2 && std::string_view(argv[1]) == "--threads") {
    threads = std::stoi(argv[2]);
    argv[2] = argv[0];
    argv += 2;
    argc -= 2;
  }
  if (argc > 2 && std::string_view(argv[1]) == "--isa") {
    for (core::IsaLevel isa : {core::IsaLevel::kPortable, core::IsaLevel::kAvx2,
                               core::IsaLevel::kNeon, core::IsaLevel::kAvx512}) {
      if (core::isa_name(isa) == argv[2] && core::isa_available(isa)) setup.isa = isa;
    }
    argv[2] = argv[0];
    argv += 2;
    argc -= 2;
  }
  setup.pool = std::make_unique<core::ThreadPool>(threads);
  const auto add = [](const std::string& name, auto fn) {
    benchmark::RegisterBenchmark(name.c_str(), fn)->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  add("read", [&](benchmark::State& s) { read_bench(s, setup); });
  for (core::DType dtype :
       {core::DType::kQ8_0, core::DType::kQ6_K, core::DType::kQ5_K, core::DType::kQ5_1,
        core::DType::kQ5_0, core::DType::kQ4_K, core::DType::kQ4_1, core::DType::kQ4_0,
        core::DType::kF16, core::DType::kBF16, core::DType::kF32}) {
    const std::string name(core::dtype_info(dtype).name);
    for (std::int64_t rows : {1, 2, 5, 9}) {
      add("decode/" + name + "/2048/rows" + std::to_string(rows),
          [&, dtype, rows](benchmark::State& s) { decode_bench(s, setup, dtype, 2048, rows); });
    }
    add("prefill/" + name + "/2048x640",
        [&, dtype](benchmark::State& s) { prefill_bench(s, setup, dtype, 2048, 640); });
    add("prefill/" + name + "/512x2048",
        [&, dtype](benchmark::State& s) { prefill_bench(s, setup, dtype, 512, 2048); });
  }
  for (std::int64_t rows : {1, 2, 3, 5, 9}) {
    add("gemma/rows" + std::to_string(rows),
        [&, rows](benchmark::State& s) { stack_bench(s, setup, rows, true); });
  }
  add("gemma/prefill512", [&](benchmark::State& s) { stack_bench(s, setup, 512, false); });
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
