// SPDX-License-Identifier: Apache-2.0
#include "attention/cuda/harness/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "attention/cuda/harness/kernels.h"
#include "attention/gpu.h"
#include "attention/kernel.h"
#include "attention/plan_check.h"
#include "core/check.h"

namespace segue::attention::cuda {
namespace {

constexpr int kAbsurdEntries = 3;  // past the end of every table
constexpr std::int32_t kAbsurdPage = 0x7ffffff0;
constexpr std::int64_t kCold = 400'000'000;

float as_float(std::uint16_t value, KvType type) {
  if (type == KvType::kBF16) return std::bit_cast<float>(std::uint32_t{value} << 16);
  const int exponent = value >> 10 & 31;
  const int fraction = value & 1023;
  const float sign = (value & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                               : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25));
}

DeviceFacts facts_of(const Shape& shape, const Kernel* forced = nullptr) {
  const Result<device::GpuFacts> gpu = device::gpu_facts();
  CHECK(gpu.ok());
  return gpu_device(*gpu, shape, forced);
}

double median_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace

World::World(const Shape& shape, std::span<const std::int64_t> lengths, const WorldOptions& options)
    : shape_(shape),
      options_(options),
      facts_(facts_of(shape)),
      lengths_(lengths.begin(), lengths.end()) {
  first_entry_.push_back(0);
  for (const std::int64_t length : lengths_) {
    const std::int64_t pages = (length + shape.page_size - 1) / shape.page_size;
    pool_pages_ += pages;
    first_entry_.push_back(first_entry_.back() + static_cast<std::int32_t>(pages) + kAbsurdEntries);
  }
  pool_pages_ += 2;  // pages of nobody, NaN
  std::vector<std::int32_t> order(static_cast<std::size_t>(pool_pages_));
  std::iota(order.begin(), order.end(), 0);
  if (options.scattered) std::shuffle(order.begin(), order.end(), std::mt19937_64(options.seed));
  pages_.assign(static_cast<std::size_t>(first_entry_.back()), kAbsurdPage);
  std::size_t next = 0;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    for (std::int32_t e = first_entry_[i]; e < first_entry_[i + 1] - kAbsurdEntries; ++e) {
      pages_[static_cast<std::size_t>(e)] = order[next++];
    }
  }
  pool_bytes_ = pool_pages_ * shape.page_size * shape.key_bytes() / 2;
  pool_ = device::Buffer(static_cast<std::size_t>(2 * pool_bytes_ * options.copies));
  device::fill_bytes(pool_.as<>(), 0xff, pool_.bytes(), stream_);
  for (int copy = 0; copy < options.copies; ++copy) fill_pool(copy);
  if (options.sinks) {
    std::vector<float> sinks(static_cast<std::size_t>(shape.q_heads));
    for (std::size_t i = 0; i < sinks.size(); ++i) sinks[i] = static_cast<float>(i % 7) - 2.0f;
    sinks_ = device::Buffer(sinks.size() * sizeof(float));
    device::copy_to_device(sinks_.as<>(), sinks.data(), sinks_.bytes(), stream_);
    stream_.synchronize();
  }
}

kv::View World::pool_view(int copy) const {
  kv::View view;
  view.k = pool_.as<>() + 2 * pool_bytes_ * copy;
  view.v = view.k + pool_bytes_;
  view.page_stride = std::int64_t{shape_.page_size} * shape_.key_bytes() / 2;
  const std::int64_t row_bytes = std::int64_t{shape_.head_dim} * 2;
  const bool token_major = shape_.layout == kv::Layout::kTokenMajor;
  view.head_stride = token_major ? row_bytes : row_bytes * shape_.page_size;
  view.token_stride = token_major ? row_bytes * shape_.kv_heads : row_bytes;
  view.type = shape_.kv;
  view.layout = shape_.layout;
  view.kv_heads = shape_.kv_heads;
  view.head_dim = shape_.head_dim;
  view.page_size = shape_.page_size;
  view.pages = static_cast<int>(pool_pages_);
  return view;
}

void World::fill_pool(int copy) {
  device::Buffer table(pages_.size() * sizeof(std::int32_t));
  device::copy_to_device(table.as<>(), pages_.data(), table.bytes(), stream_);
  const kv::View view = pool_view(copy);
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    fill_sequence(view, table.as<std::int32_t>() + first_entry_[i], lengths_[i],
                  static_cast<int>(i), options_.seed + static_cast<std::uint64_t>(copy), stream_);
  }
  stream_.synchronize();
}

Plan World::plan_of(std::span<const SequenceRows> rows, const RunOptions& options) const {
  PlanInput input;
  input.shape = shape_;
  input.sequences = rows;
  input.policy = options.policy;
  input.kernel = options.kernel;
  input.force_segments = options.force_segments;
  Plan result;
  const bool other = options.kernel != nullptr && options.kernel->family != facts_.family;
  const DeviceFacts facts = other ? facts_of(shape_, options.kernel) : facts_;
  const Status status = plan(input, facts, result);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.error().message);
  CHECK(status.ok());
  const std::string wrong = check_plan(result, rows, facts);
  if (!wrong.empty()) fmt::print(stderr, "{}\n", wrong);
  CHECK(wrong.empty());
  return result;
}

std::vector<kv::PageTable> World::tables_for(std::span<const SequenceRows> rows) {
  CHECK(rows.size() <= lengths_.size());
  run_pages_.assign(pages_.size(), kAbsurdPage);
  std::vector<kv::PageTable> tables;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i].kv_len() <= lengths_[i]);
    const std::int64_t begin = shape_.first_key(rows[i].depth) / shape_.page_size;
    const std::int64_t end = (rows[i].kv_len() + shape_.page_size - 1) / shape_.page_size;
    for (std::int64_t page = begin; page < end && rows[i].rows > 0; ++page) {
      const auto entry = static_cast<std::size_t>(first_entry_[i] + page);
      run_pages_[entry] = pages_[entry];
    }
    tables.push_back({run_pages_.data() + first_entry_[i], first_entry_[i + 1] - first_entry_[i]});
  }
  return tables;
}

void World::make_queries(std::span<const SequenceRows> rows) {
  std::int64_t total = 0;
  for (const SequenceRows& sequence : rows) total += sequence.rows;
  if (total > row_capacity_) {
    row_capacity_ = total;
    const auto elements = static_cast<std::size_t>(total * shape_.q_heads * shape_.head_dim);
    queries_ = device::Buffer(elements * 2);
    output_ = device::Buffer(elements * 2);
    lse_ = device::Buffer(static_cast<std::size_t>(total * shape_.q_heads) * sizeof(float));
  }
  std::int64_t token = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    fill_queries(queries_.as<std::uint16_t>() + token * shape_.q_heads * shape_.head_dim, shape_.kv,
                 rows[i].rows, shape_.q_heads, shape_.head_dim, rows[i].depth, static_cast<int>(i),
                 options_.score_spread, options_.seed, stream_);
    token += rows[i].rows;
  }
}

DeviceParams World::params(const DevicePlan& plan, const RunOptions& options) {
  DeviceParams params;
  params.plan = &plan;
  params.q = queries_.as<>();
  params.out = output_.as<>();
  params.lse = options.lse ? lse_.as<float>() : nullptr;
  params.sinks = options_.sinks ? sinks_.as<float>() : nullptr;
  params.shape = shape_;
  params.multiprocessors = facts_.multiprocessors;
  params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  params.softcap = options_.softcap;
  params.kv = pool_view(options.copy);
  return params;
}

void World::launch(const Plan& plan, const DeviceParams& params) {
  plan.kernel->launch_on_gpu(params, stream_);
}

void World::poison_output() {
  device::fill_bytes(output_.as<>(), 0xff, output_.bytes(), stream_);
  device::fill_bytes(lse_.as<>(), 0xff, lse_.bytes(), stream_);
}

Output World::read_output(std::int64_t rows, bool lse) {
  Output output;
  output.out.resize(static_cast<std::size_t>(rows * shape_.q_heads * shape_.head_dim));
  device::copy_to_host(output.out.data(), output_.as<>(), output.out.size() * 2, stream_);
  if (lse) {
    output.lse.resize(static_cast<std::size_t>(rows * shape_.q_heads));
    device::copy_to_host(output.lse.data(), lse_.as<>(), output.lse.size() * sizeof(float),
                         stream_);
  }
  stream_.synchronize();
  return output;
}

Output World::run(std::span<const SequenceRows> rows, const RunOptions& options) {
  const Plan plan = plan_of(rows, options);
  const std::vector<kv::PageTable> tables = tables_for(rows);
  DevicePlan device_plan(capacity_of(plan, tables), shape_.head_dim);
  const Status status = device_plan.upload(plan, tables, stream_);
  CHECK(status.ok());
  make_queries(rows);
  poison_output();
  launch(plan, params(device_plan, options));
  return read_output(plan.rows, options.lse);
}

core::Verdict World::check(std::span<const SequenceRows> rows, const Output& output, int copy) {
  const auto width = static_cast<std::size_t>(shape_.head_dim);
  core::Verdict worst;
  error_square_ = reference_square_ = 0;
  std::size_t token = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].rows == 0) continue;
    ReferenceTask task;
    task.type = shape_.kv;
    task.rows = rows[i].rows;
    task.q_heads = shape_.q_heads;
    task.group = shape_.group();
    task.head_dim = shape_.head_dim;
    task.window = shape_.window;
    task.sequence = static_cast<int>(i);
    task.depth = rows[i].depth;
    task.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    task.softcap = options_.softcap;
    task.spread = options_.score_spread;
    task.seed = options_.seed + static_cast<std::uint64_t>(copy);
    task.sinks = options_.sinks ? sinks_.as<float>() : nullptr;
    CHECK(copy == 0);  // queries are drawn with the seed of copy 0
    const auto heads = static_cast<std::size_t>(rows[i].rows * shape_.q_heads);
    device::Buffer out(heads * width * 8), absolute(heads * width * 8), lse(heads * 8),
        sums(heads * 8);
    device::Buffer scores(2 * heads * static_cast<std::size_t>(rows[i].kv_len()) * 8);
    reference(task, out.as<double>(), absolute.as<double>(), lse.as<double>(), sums.as<double>(),
              scores.as<double>(), stream_);
    std::vector<double> expected(heads * width), magnitude(heads * width), expected_lse(heads),
        score_sum(heads);
    device::copy_to_host(expected.data(), out.as<>(), out.bytes(), stream_);
    device::copy_to_host(magnitude.data(), absolute.as<>(), absolute.bytes(), stream_);
    device::copy_to_host(expected_lse.data(), lse.as<>(), lse.bytes(), stream_);
    device::copy_to_host(score_sum.data(), sums.as<>(), sums.bytes(), stream_);
    stream_.synchronize();

    const double roundoff = core::unit_roundoff(shape_.kv);
    std::vector<float> found(heads * width);
    std::vector<double> bounds(heads * width);
    for (std::size_t j = 0; j < found.size(); ++j) {
      found[j] = as_float(output.out[token * width * static_cast<std::size_t>(shape_.q_heads) + j],
                          shape_.kv);
      // Scores are sums in float; p enters the second product in the KV's type.
      bounds[j] = core::derived_bound({expected[j], magnitude[j], 0}, roundoff, roundoff) +
                  core::derived_bound({0, magnitude[j], score_sum[j / width]}, 0, 0x1p-24) +
                  core::unit_underflow(shape_.kv);
    }
    const std::int64_t coordinates[] = {rows[i].rows, shape_.q_heads, shape_.head_dim};
    core::Verdict verdict = core::within_bounds(found, expected, bounds, coordinates);
    if (verdict.ok && !output.lse.empty()) {
      std::vector<double> lse_bounds(heads);
      for (std::size_t j = 0; j < heads; ++j) {
        lse_bounds[j] = core::derived_bound({expected_lse[j], 1.0, score_sum[j]}, 0x1p-24, 0x1p-24);
      }
      const auto first = output.lse.begin() + static_cast<std::ptrdiff_t>(token) * shape_.q_heads;
      const std::vector<float> found_lse(first, first + static_cast<std::ptrdiff_t>(heads));
      core::Verdict of_lse = core::within_bounds(found_lse, expected_lse, lse_bounds);
      if (!of_lse.ok) {
        of_lse.message = "log-sum-exp: " + of_lse.message;
        verdict = of_lse;
      }
    }
    for (std::size_t j = 0; j < found.size(); ++j) {
      error_square_ += (found[j] - expected[j]) * (found[j] - expected[j]);
      reference_square_ += expected[j] * expected[j];
    }
    verdict.message = fmt::format("sequence {}: {}", i, verdict.message);
    if (worst.message.empty() || !verdict.ok ||
        (worst.ok && verdict.worst_ratio > worst.worst_ratio)) {
      const bool failed = !worst.ok;
      if (!failed) worst = verdict;
    }
    token += static_cast<std::size_t>(rows[i].rows);
  }
  return worst;
}

double read_ceiling(device::Stream& stream, std::int64_t bytes) {
  device::Buffer data(static_cast<std::size_t>(bytes));
  device::fill_bytes(data.as<>(), 0x5a, data.bytes(), stream);
  const std::vector<double> samples =
      time_calls(stream, 2, 9, [&](int) { read_bytes(data.as<>(), bytes, stream); });
  return static_cast<double>(bytes) / median_of(samples) / 1e3;
}

double read_floor(device::Stream& stream, std::int64_t bytes) {
  const auto calls = static_cast<int>(std::max<std::int64_t>(kCold / bytes + 1, 4));
  device::Buffer data(static_cast<std::size_t>(bytes * calls));
  device::fill_bytes(data.as<>(), 0x5a, data.bytes(), stream);
  return median_of(time_calls(stream, calls, 9,
                              [&](int i) { read_bytes(data.as<>() + bytes * i, bytes, stream); }));
}

}  // namespace segue::attention::cuda
