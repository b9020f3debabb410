// SPDX-License-Identifier: Apache-2.0
// Products at the shapes of published models, weights cold: JSON on standard output, which
// bench/results/cuda-products-*.json records. Every cell is the median of rounds of calls in a row;
// copies of a matrix take turns until more than any second-level cache has passed.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "attention/cuda/harness/kernels.h"
#include "core/build.h"
#include "core/json.h"
#include "ops/cuda/matrix.h"

namespace segue::ops::cuda {
namespace {

constexpr std::int64_t kColdBytes = std::int64_t{400} << 20;
constexpr int kRounds = 7;
constexpr int kCalls = 12;

struct Shape {
  const char* name;
  std::int64_t outputs, inputs;
  Form form = Form::kBf16;
};
constexpr Shape kShapes[] = {{"gemma-4-31b q, k, v (sliding)", 16384, 5376},
                             {"gemma-4-31b attention out", 5376, 8192},
                             {"gemma-4-31b gate, up", 43008, 5376},
                             {"gemma-4-31b down", 5376, 21504},
                             {"gemma-4-31b head", 262144, 5376},
                             {"gemma-3-270m gate, up", 4096, 640},
                             {"gemma-3-270m head", 262144, 640},
                             {"4 bit: q, k, v (sliding)", 16384, 5376, Form::kFourBit},
                             {"4 bit: attention out", 5376, 8192, Form::kFourBit},
                             {"4 bit: gate, up", 43008, 5376, Form::kFourBit},
                             {"4 bit: down", 5376, 21504, Form::kFourBit}};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Microseconds of one call of `fn(i)`.
template <class Function>
double time_us(const device::Stream& stream, int calls, Function&& fn) {
  device::Event start, end;
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    start.record(stream);
    for (int i = 0; i < calls; ++i) fn(i);
    end.record(stream);
    end.synchronize();
    if (round > 0) rounds.push_back(end.us_since(start) / calls);
  }
  return median(std::move(rounds));
}

/// Q4_0: a scale of 2^-7, then 32 levels.
std::vector<std::uint16_t> random_blocks(const Shape& shape) {
  constexpr std::size_t kWords = 9;
  std::vector<std::uint16_t> blocks(
      static_cast<std::size_t>(shape.outputs * shape.inputs / kInputBlock) * kWords);
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    blocks[i] = i % kWords == 0 ? 0x2000 : static_cast<std::uint16_t>(state >> 48);
  }
  return blocks;
}

std::vector<std::uint16_t> random_bf16(const Shape& shape) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(shape.outputs * shape.inputs));
  std::uint64_t state = 1;
  for (std::uint16_t& value : bits) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<std::uint16_t>(0x3c00u | (state >> 57) | (state >> 63 << 15));
  }
  return bits;
}

Matrix random_matrix(const Shape& shape, core::ThreadPool& pool, const device::Stream& stream) {
  const bool levels = shape.form == Form::kFourBit;
  const std::vector<std::uint16_t> bits = levels ? random_blocks(shape) : random_bf16(shape);
  core::TensorView view;
  view.dtype = levels ? core::DType::kQ4_0 : core::DType::kBF16;
  view.dims = 2;
  view.shape = {shape.inputs, shape.outputs, 1, 1};
  view.data = reinterpret_cast<const std::byte*>(bits.data());
  view.bytes = std::ssize(bits) * 2;
  WeightMemory memory;
  const ops::Matrix host = ops::Matrix::prepare(view, core::best_isa(), memory, pool).value();
  const ops::Matrix* const part = &host;
  return Matrix::upload(std::span(&part, 1), shape.form, pool, stream);
}

core::Json measure(const Shape& shape, const std::vector<Matrix>& copies, std::int64_t rows,
                   int width, const device::GpuFacts& gpu, const device::Stream& stream,
                   double read_gbps) {
  const device::Buffer x(static_cast<std::size_t>(rows * shape.inputs) * 2);
  const device::Buffer y(static_cast<std::size_t>(rows * shape.outputs) * 4);
  device::fill_bytes(x.as<>(), 0x3c, x.bytes(), stream);
  const double us = time_us(stream, kCalls, [&](int i) {
    product({&copies[static_cast<std::size_t>(i) % copies.size()], x.as<std::uint16_t>(),
             y.as<float>(), rows, true, width},
            gpu.multiprocessors, stream);
  });
  const double bytes = static_cast<double>(copies.front().bytes());
  const double operations = 2.0 * static_cast<double>(rows * shape.outputs * shape.inputs);
  core::Json cell = core::Json::object();
  cell.set("shape", shape.name)
      .set("outputs", shape.outputs)
      .set("inputs", shape.inputs)
      .set("rows", rows)
      .set("width", width)
      .set("us", us)
      .set("floor_us", bytes / read_gbps / 1e3)
      .set("read_share", bytes / us / 1e3 / read_gbps)
      .set("tflops", operations / us / 1e6);
  return cell;
}

int run() {
  const Result<device::GpuFacts> gpu = device::gpu_facts();
  if (!gpu.ok()) return std::fprintf(stderr, "%s\n", gpu.error().message.c_str()), 1;
  core::ThreadPool pool(core::cpu_facts().logical_cpus);
  const device::Stream stream;
  constexpr std::int64_t kReadBytes = std::int64_t{8} << 30;
  const device::Buffer memory(static_cast<std::size_t>(kReadBytes));
  device::fill_bytes(memory.as<>(), 1, memory.bytes(), stream);
  const double read_gbps = static_cast<double>(kReadBytes) / 1e3 / time_us(stream, 2, [&](int) {
                             attention::cuda::read_bytes(memory.as<>(), kReadBytes, stream);
                           });
  core::Json cells = core::Json::array();
  for (const Shape& shape : kShapes) {
    std::vector<Matrix> copies;
    do {
      copies.push_back(random_matrix(shape, pool, stream));
    } while (std::ssize(copies) * copies.front().bytes() < kColdBytes);
    for (const std::int64_t rows : {1, 2, 5, 8, 9, 16, 32, 512}) {
      for (const int width : {0, 1, 2, 4}) {
        if (width > 0 && rows != 1 && rows != 9) continue;
        cells.push(measure(shape, copies, rows, width, *gpu, stream, read_gbps));
      }
    }
  }
  core::Json json = core::Json::object();
  json.set("cells", std::move(cells))
      .set("read_gbps", read_gbps)
      .set("gpu", gpu->name)
      .set("rounds", kRounds)
      .set("calls", kCalls)
      .set("machine", core::machine_json())
      .set("build", core::build_json());
  std::puts(json.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace segue::ops::cuda

int main() { return segue::ops::cuda::run(); }
