// SPDX-License-Identifier: Apache-2.0
// The GPU's operators against double, and a row's bits against the same row among others.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/tolerance.h"
#include "kv/sizing.h"
#include "kv/storage.h"
#include "kv/write.h"
#include "ops/cuda/gpu_fixture.h"
#include "ops/cuda/rows.h"

namespace segue::ops::cuda {

/// `w` has the weights of `matrix`: some outputs of some rows against double, and every row's bits
/// among others and with every width of a block.
void CudaOps::check_product(const Matrix& matrix, const std::vector<float>& w,
                            const std::string& what) {
  constexpr std::int64_t kRows = 300;
  const std::int64_t inputs = matrix.inputs(), outputs = matrix.outputs();
  const std::string shape = fmt::format("{} {} -> {}", what, inputs, outputs);
  const std::vector<std::uint16_t> x = bf16_of(normals(inputs * kRows, 2));
  const auto row_of = [&](std::int64_t row, std::int64_t count) {
    return std::vector<std::uint16_t>(x.begin() + row * inputs, x.begin() + (row + count) * inputs);
  };
  const std::vector<float> all = multiply(matrix, x, kRows);
  std::vector<double> expected, bounds;
  std::vector<float> found;
  for (const std::int64_t row : {0, 7, 131, 299}) {
    for (std::int64_t output = 0; output<outputs; output += outputs> 4000 ? 37 : 1) {
      double sum = 0, absolute = 0;
      for (std::int64_t i = 0; i < inputs; ++i) {
        const double term =
            static_cast<double>(w[static_cast<std::size_t>(output * inputs + i)]) *
            static_cast<double>(from_bf16(x[static_cast<std::size_t>(row * inputs + i)]));
        sum += term;
        absolute += std::fabs(term);
      }
      expected.push_back(sum);
      bounds.push_back(core::summation_bound(inputs, absolute));
      found.push_back(all[static_cast<std::size_t>(row * outputs + output)]);
    }
  }
  const core::Verdict verdict = core::within_bounds(found, expected, bounds);
  EXPECT_TRUE(verdict.ok) << shape << ": " << verdict.message;
  for (const std::int64_t count : {1, 2, 5, 8, 9, 16, 17, 32, 33, 64, 65, 129}) {
    const std::int64_t first = 150 - count / 2;
    const std::vector<float> same(all.begin() + first * outputs,
                                  all.begin() + (first + count) * outputs);
    const std::array dims{count, outputs};
    for (const int width : {0, 1, 2, 4}) {
      if (width == 4 && count > 16) continue;
      const core::Verdict equal =
          core::exact(multiply(matrix, row_of(first, count), count, width), same, dims);
      EXPECT_TRUE(equal.ok) << shape << ", " << count << " rows, width " << width << ": "
                            << equal.message;
    }
  }
}

namespace {

/// One tile and less than one, runs without blocks, all block widths of a machine of 132
/// multiprocessors, several parts.
struct ProductCase {
  std::int64_t inputs;
  std::vector<std::int64_t> outputs;
};

TEST_F(CudaOps, ProductsAreWithinRoundingOfDoubleAndARowHasItsBitsAmongAnyOthers) {
  for (const ProductCase& c :
       {ProductCase{32, {16}}, ProductCase{64, {7}}, ProductCase{640, {1024, 256, 256}},
        ProductCase{2048, {641}}, ProductCase{576, {1536, 1536}}, ProductCase{96, {5000}},
        ProductCase{160, {17003}}}) {
    std::int64_t outputs = 0;
    for (const std::int64_t count : c.outputs) outputs += count;
    const std::vector<std::uint16_t> w = bf16_of(normals(c.inputs * outputs, 1));
    const Matrix matrix = upload(w, c.inputs, c.outputs);
    std::vector<float> weights;
    for (const std::uint16_t bits : w) weights.push_back(from_bf16(bits));
    check_product(matrix, weights, "bf16");
  }
}

TEST_F(CudaOps, ProductsOfFourBitWeightsAreToo) {
  for (const core::DType dtype : {core::DType::kQ4_0, core::DType::kW4_BF16}) {
    for (const ProductCase& c :
         {ProductCase{64, {16}}, ProductCase{128, {7}}, ProductCase{640, {1024, 256, 256}},
          ProductCase{2048, {641}}, ProductCase{576, {1536, 1536}}, ProductCase{192, {5000}},
          ProductCase{64, {17003}}}) {
      const Levels levels = upload_levels(dtype, c.inputs, c.outputs);
      check_product(levels.matrix, levels.weights, std::string(core::dtype_info(dtype).name));
    }
  }
}

/// Inputs that are no whole block: zeros stand behind them.
TEST_F(CudaOps, InputsBehindTheLastHaveNoWeight) {
  constexpr std::int64_t kInputs = 16, kOutputs = 48, kRows = 3;
  const std::vector<std::uint16_t> w = bf16_of(normals(kInputs * kOutputs, 1));
  const Matrix matrix = upload(w, kInputs, {kOutputs});
  ASSERT_EQ(matrix.inputs(), kInputBlock);
  const std::vector<std::uint16_t> x = bf16_of(normals(kInputBlock * kRows, 2));
  const std::vector<float> found = multiply(matrix, x, kRows);
  std::vector<double> expected, bounds;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t output = 0; output < kOutputs; ++output) {
      double sum = 0, absolute = 0;
      for (std::int64_t i = 0; i < kInputs; ++i) {
        const double term =
            static_cast<double>(from_bf16(w[static_cast<std::size_t>(output * kInputs + i)])) *
            static_cast<double>(from_bf16(x[static_cast<std::size_t>(row * kInputBlock + i)]));
        sum += term;
        absolute += std::fabs(term);
      }
      expected.push_back(sum);
      bounds.push_back(core::summation_bound(kInputBlock, absolute));
    }
  }
  const core::Verdict verdict = core::within_bounds(found, expected, bounds);
  EXPECT_TRUE(verdict.ok) << verdict.message;
}

/// The norm of one row in double.
std::vector<double> norm_of(const std::vector<double>& row, const float* weight, double eps) {
  double squares = 0;
  for (const double value : row) squares += value * value;
  std::vector<double> out;
  for (std::size_t i = 0; i < row.size(); ++i) {
    out.push_back(row[i] / std::sqrt(squares / static_cast<double>(row.size()) + eps) *
                  (weight != nullptr ? static_cast<double>(weight[i]) : 1.0));
  }
  return out;
}

/// The error of a result that `operations` roundings led to and that is stored in bf16.
double bf16_bound(int operations, double reference) {
  return core::unit_roundoff(KvType::kBF16) * std::fabs(reference) +
         core::unit_underflow(KvType::kBF16) + core::function_bound(operations, 1, reference);
}

std::vector<float> floats_of(const std::vector<std::uint16_t>& values) {
  std::vector<float> out;
  for (const std::uint16_t bits : values) out.push_back(from_bf16(bits));
  return out;
}

TEST_F(CudaOps, ResidualsAndNormsAreWithinRoundingOfDouble) {
  for (const std::int64_t width : {64, 640, 5376, 16384}) {
    constexpr std::int64_t kRows = 3;
    constexpr float kScale = 0.7f;
    constexpr double kEps = 1e-6f;
    const std::vector<float> x = normals(kRows * width, 3), branch = normals(kRows * width, 4);
    const std::vector<float> post = normals(width, 5), norm = normals(width, 6);
    for (const bool with_post : {false, true}) {
      AddNorm args;
      float* const device_x = poisoned<float>(kRows * width);
      device::copy_to_device(device_x, x.data(), x.size() * sizeof(float), stream());
      args.x = device_x;
      args.branch = send(branch);
      args.post_norm = with_post ? send(post) : nullptr;
      args.scale = kScale;
      args.norm = send(norm);
      args.out = poisoned<std::uint16_t>(kRows * width);
      args.rows = kRows;
      args.width = width;
      add_norm(args, stream());
      const std::vector<float> sums = fetch(device_x, kRows * width);
      const std::vector<float> outs = floats_of(fetch(args.out, kRows * width));
      std::vector<double> sum_expected, sum_bounds, out_expected, out_bounds;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const std::vector<double> part(branch.begin() + row * width,
                                       branch.begin() + (row + 1) * width);
        const std::vector<double> added = with_post ? norm_of(part, post.data(), kEps) : part;
        std::vector<double> total;
        for (std::int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const double before = static_cast<double>(x[static_cast<std::size_t>(row * width + i)]);
          total.push_back((before + added[at]) * static_cast<double>(kScale));
          sum_bounds.push_back(core::summation_bound(with_post ? width / 2 : 2,
                                                     std::fabs(before) + std::fabs(added[at])));
        }
        // The norm starts from the sums that were stored.
        const std::vector<double> stored(sums.begin() + row * width,
                                         sums.begin() + (row + 1) * width);
        for (const double value : norm_of(stored, norm.data(), kEps)) {
          out_expected.push_back(value);
          out_bounds.push_back(bf16_bound(static_cast<int>(width) / 2 + 8, value));
        }
        sum_expected.insert(sum_expected.end(), total.begin(), total.end());
      }
      const core::Verdict sum = core::within_bounds(sums, sum_expected, sum_bounds);
      EXPECT_TRUE(sum.ok) << width << ": " << sum.message;
      const core::Verdict out = core::within_bounds(outs, out_expected, out_bounds);
      EXPECT_TRUE(out.ok) << width << ": " << out.message;
      buffers_.clear();
    }
  }
}

TEST_F(CudaOps, WithoutANormARowIsRoundedAsItIs) {
  constexpr std::int64_t kRows = 3, kWidth = 96;
  const std::vector<float> x = normals(kRows * kWidth, 3);
  AddNorm args;
  args.x = send(x);
  args.out = poisoned<std::uint16_t>(kRows * kWidth);
  args.rows = kRows;
  args.width = kWidth;
  add_norm(args, stream());
  const core::Verdict verdict = core::exact(fetch(args.out, kRows * kWidth), bf16_of(x));
  EXPECT_TRUE(verdict.ok) << verdict.message;
}

TEST_F(CudaOps, WhatLayersAddIsWithinRoundingOfDoubleAndARowHasItsBits) {
  constexpr std::int64_t kRows = 5;
  constexpr double kEps = 1e-6f;
  for (const auto& [layers, width] : {std::pair{5, 16}, {1, 33}, {35, 256}}) {
    const std::int64_t total = std::int64_t{layers} * width;
    const std::vector<float> projected = normals(kRows * total, 3, 7.0f), norm = normals(width, 4);
    const std::vector<std::uint16_t> tokens = bf16_of(normals(kRows * total, 5));
    const auto run = [&, layers = layers, width = width](std::int64_t first, std::int64_t rows) {
      PerLayer args;
      args.tokens = send(tokens) + first * total;
      float* const x = poisoned<float>(rows * total);
      device::copy_to_device(x, projected.data() + first * total,
                             static_cast<std::size_t>(rows * total) * sizeof(float), stream());
      args.projected = x;
      args.norm = send(norm);
      args.token_scale = 16.0f;
      args.projected_scale = 0.03f;
      args.rows = rows;
      args.layers = layers;
      args.width = width;
      per_layer(args, stream());
      return fetch(x, rows * total);
    };
    const std::vector<float> found = run(0, kRows);
    std::vector<double> expected, bounds;
    for (std::int64_t part = 0; part < kRows * layers; ++part) {
      std::vector<double> row;
      for (std::int64_t i = 0; i < width; ++i) {
        row.push_back(static_cast<double>(0.03f) *
                      static_cast<double>(projected[static_cast<std::size_t>(part * width + i)]));
      }
      const std::vector<double> normed = norm_of(row, norm.data(), kEps);
      for (std::int64_t i = 0; i < width; ++i) {
        const double token =
            16.0 *
            static_cast<double>(from_bf16(tokens[static_cast<std::size_t>(part * width + i)]));
        const double one = normed[static_cast<std::size_t>(i)];
        expected.push_back((token + one) * std::sqrt(0.5));
        bounds.push_back(core::summation_bound(width / 2 + 8, std::fabs(token) + std::fabs(one)));
      }
    }
    const core::Verdict verdict = core::within_bounds(found, expected, bounds);
    EXPECT_TRUE(verdict.ok) << layers << " layers of " << width << ": " << verdict.message;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const core::Verdict alone = core::exact(
          run(row, 1),
          std::vector<float>(found.begin() + row * total, found.begin() + (row + 1) * total));
      EXPECT_TRUE(alone.ok) << row << ": " << alone.message;
    }
    buffers_.clear();
  }
}

TEST_F(CudaOps, HeadsGetTheirNormsAndAnglesAndGoWhereTheirPageIs) {
  struct Case {
    int q_heads, kv_heads, head_dim, rotary, distance;
    RopePairs pairs;
    bool qk_norm, v_norm, v_from_k;
    kv::Layout layout;
  };
  const auto split = RopePairs::kSplitHalf;
  for (const Case& c :
       {Case{4, 1, 256, 256, 128, split, true, false, false, kv::Layout::kSwizzled8},
        Case{9, 3, 64, 64, 32, RopePairs::kAdjacent, false, false, false, kv::Layout::kSwizzled8},
        Case{8, 2, 512, 128, 256, split, true, true, true, kv::Layout::kSwizzled8},
        Case{4, 2, 96, 96, 48, split, true, false, false, kv::Layout::kHeadMajor}}) {
    constexpr std::int64_t kRows = 5;
    constexpr int kPage = 16;
    constexpr float kEps = 1e-6f;
    const int half = c.rotary / 2;
    const int heads_stored = c.q_heads + (c.v_from_k ? 1 : 2) * c.kv_heads;
    const std::vector<float> qkv = normals(kRows * heads_stored * c.head_dim, 7);
    const std::vector<float> q_norm = normals(c.head_dim, 8), k_norm = normals(c.head_dim, 9);
    std::vector<float> frequencies;
    for (int i = 0; i < half; ++i)
      frequencies.push_back(static_cast<float>(std::pow(1e6, -2.0 * i / c.head_dim)));
    const std::vector<std::int32_t> positions{0, 1, 47, 4095, 131071};
    const std::vector<std::int64_t> slots{3 * kPage, 3 * kPage + 1, 2 * kPage + 15, kPage, 7};
    kv::PoolSpec spec{.name = "test",
                      .layers = 1,
                      .kv_heads = c.kv_heads,
                      .head_dim = c.head_dim,
                      .layout = c.layout,
                      .page_size = kPage,
                      .stream = &*stream_,
                      .pages = 4};
    const kv::Storage storage = kv::Storage::create(spec).value();
    for (int page = 0; page < spec.pages; ++page) storage.poison_page(page);
    float* const cos_sin = poisoned<float>(kRows * 2 * half);
    angles({send(positions), send(frequencies), cos_sin, kRows, half}, stream());
    Heads args;
    args.qkv = send(qkv);
    args.q_norm = c.qk_norm ? send(q_norm) : nullptr;
    args.k_norm = c.qk_norm ? send(k_norm) : nullptr;
    args.v_norm = c.v_norm;
    args.v_from_k = c.v_from_k;
    args.eps = kEps;
    args.cos_sin = cos_sin;
    args.slots = send(slots);
    args.rope = {c.q_heads, c.head_dim, c.rotary, c.distance, c.pairs};
    args.q_heads = c.q_heads;
    args.kv = storage.view(0);
    args.q = poisoned<std::uint16_t>(kRows * c.q_heads * c.head_dim);
    args.rows = kRows;
    heads(args, stream());
    const std::vector<float> q = floats_of(fetch(args.q, kRows * c.q_heads * c.head_dim));
    // The pool as it is, behind a host's view of it.
    std::vector<std::byte> copy(static_cast<std::size_t>(storage.bytes()));
    kv::View view = storage.view(0);
    device::copy_to_host(copy.data(), view.k, copy.size(), stream());
    stream().synchronize();
    const std::int64_t v_distance = view.v - view.k;
    view.k = copy.data();
    view.v = copy.data() + v_distance;
    const std::vector<std::int32_t> pages{0, 1, 2, 3};
    const kv::PageTable table{pages.data(), 4};

    std::vector<float> found;
    std::vector<double> expected, bounds;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (int head = 0; head < c.q_heads + 2 * c.kv_heads; ++head) {
        const bool query = head < c.q_heads, value = head >= c.q_heads + c.kv_heads;
        const int source = value && c.v_from_k ? head - c.kv_heads : head;
        const auto from = qkv.begin() + (row * heads_stored + source) * c.head_dim;
        std::vector<double> x(from, from + c.head_dim);
        if (value ? c.v_norm : c.qk_norm) {
          x = norm_of(x, value ? nullptr : query ? q_norm.data() : k_norm.data(), kEps);
        }
        std::vector<double> size;
        for (const double element : x) size.push_back(std::fabs(element));
        for (int i = 0; i < half && !value; ++i) {
          const bool adjacent = c.pairs == RopePairs::kAdjacent;
          const auto a = static_cast<std::size_t>(adjacent ? 2 * i : i);
          const auto b = adjacent ? a + 1 : a + static_cast<std::size_t>(c.distance);
          const double angle = static_cast<double>(positions[static_cast<std::size_t>(row)]) *
                               static_cast<double>(frequencies[static_cast<std::size_t>(i)]);
          const double p = x[a], r = x[b];
          x[a] = p * std::cos(angle) - r * std::sin(angle);
          x[b] = r * std::cos(angle) + p * std::sin(angle);
          size[a] = size[b] = std::fabs(p) + std::fabs(r);
        }
        for (int d = 0; d < c.head_dim; ++d) {
          const auto at = static_cast<std::size_t>(d);
          const std::int64_t slot = slots[static_cast<std::size_t>(row)];
          const int kv_head = (head - c.q_heads) % c.kv_heads;
          found.push_back(
              query   ? q[static_cast<std::size_t>((row * c.q_heads + head) * c.head_dim + d)]
              : value ? kv::read_v(view, table, slot, kv_head, d)
                      : kv::read_k(view, table, slot, kv_head, d));
          expected.push_back(x[at]);
          bounds.push_back(bf16_bound(1, x[at]) + core::summation_bound(c.head_dim / 2, size[at]));
        }
      }
    }
    const core::Verdict verdict = core::within_bounds(found, expected, bounds);
    EXPECT_TRUE(verdict.ok) << c.head_dim << ": " << verdict.message;
    EXPECT_TRUE(std::isnan(kv::read_k(view, table, 8, 0, 0))) << "a token that nobody wrote";
    buffers_.clear();
  }
}

TEST_F(CudaOps, GatesAndSoftcapAreWithinRoundingOfDouble) {
  constexpr std::int64_t kRows = 3, kWidth = 96;
  const std::vector<float> both = normals(kRows * 2 * kWidth, 10, 4.0f);
  for (const bool gelu : {false, true}) {
    std::uint16_t* const out = poisoned<std::uint16_t>(kRows * kWidth);
    const float* const rows = send(both);
    gate({rows, 2 * kWidth, rows + kWidth, 2 * kWidth, gelu, out, kRows, kWidth}, stream());
    const std::vector<float> found = floats_of(fetch(out, kRows * kWidth));
    std::vector<double> expected, bounds;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kWidth; ++i) {
        const double x = static_cast<double>(both[static_cast<std::size_t>(row * 2 * kWidth + i)]);
        const double up =
            static_cast<double>(both[static_cast<std::size_t>((row * 2 + 1) * kWidth + i)]);
        const double z = gelu ? 2 * 0.7978845608028654 * (x + 0.044715 * x * x * x) : x;
        const double value = x / (1 + std::exp(-z)) * up;
        expected.push_back(value);
        // An error of z is one of the exponential, relative to it.
        bounds.push_back(bf16_bound(8, value) + core::function_bound(8, std::fabs(z), value));
      }
    }
    const core::Verdict verdict = core::within_bounds(found, expected, bounds);
    EXPECT_TRUE(verdict.ok) << gelu << ": " << verdict.message;
  }
  constexpr float kCap = 30.0f;
  const std::vector<float> x = normals(1000, 11, 40.0f);
  float* const capped = poisoned<float>(1000);
  device::copy_to_device(capped, x.data(), x.size() * sizeof(float), stream());
  softcap(capped, kCap, 1000, stream());
  std::vector<double> expected, bounds;
  for (const float value : x) {
    expected.push_back(static_cast<double>(kCap) *
                       std::tanh(static_cast<double>(value) / static_cast<double>(kCap)));
    bounds.push_back(core::function_bound(8, 1, expected.back()));
  }
  const core::Verdict verdict = core::within_bounds(fetch(capped, 1000), expected, bounds);
  EXPECT_TRUE(verdict.ok) << verdict.message;
}

TEST_F(CudaOps, TheLargestOfABlockOfLogitsSkipsNaNAndIsFinite) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t vocab : {1, 63, 64, 65, 1000}) {
    constexpr std::int64_t kRows = 3;
    std::vector<float> logits = normals(kRows * vocab, 12, 4.0f);
    for (std::size_t i = 0; i < logits.size(); i += 7) logits[i] = kNaN;
    if (vocab == 1000) {
      std::fill_n(logits.begin() + 64, 64, kNaN);
      logits[130] = kInfinity;
      logits[200] = -kInfinity;
    }
    const std::int64_t blocks = (vocab + kMaximaBlock - 1) / kMaximaBlock;
    std::vector<float> expected;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t first = 0; first < vocab; first += kMaximaBlock) {
        float largest = -kInfinity;
        for (std::int64_t i = first; i < std::min<std::int64_t>(first + kMaximaBlock, vocab); ++i) {
          const float logit = logits[static_cast<std::size_t>(row * vocab + i)];
          if (logit > largest) largest = logit;
        }
        expected.push_back(std::min(largest, std::numeric_limits<float>::max()));
      }
    }
    float* const out = poisoned<float>(kRows * blocks);
    block_maxima({send(logits), out, kRows, vocab}, stream());
    const core::Verdict verdict = core::exact(fetch(out, kRows * blocks), expected);
    EXPECT_TRUE(verdict.ok) << vocab << ": " << verdict.message;
  }
}

TEST_F(CudaOps, EmbeddingsAreTheRowsOfTheTable) {
  constexpr std::int64_t kHidden = 96, kVocab = 37;
  const std::vector<std::uint16_t> table = bf16_of(normals(kHidden * kVocab, 12));
  const Matrix matrix = upload(table, kHidden, {kVocab});
  const std::vector<std::int32_t> tokens{36, 0, 17, 16, 15};
  float* const x = poisoned<float>(5 * kHidden);
  embed({&matrix, send(tokens), 2.0f, x, 5}, stream());
  std::vector<float> expected;
  for (const std::int32_t token : tokens) {
    for (std::int64_t i = 0; i < kHidden; ++i)
      expected.push_back(2.0f * from_bf16(table[static_cast<std::size_t>(token * kHidden + i)]));
  }
  const core::Verdict verdict = core::exact(fetch(x, 5 * kHidden), expected);
  EXPECT_TRUE(verdict.ok) << verdict.message;
}

/// A width of no whole block has zeros behind it; gate and up from apart.
TEST_F(CudaOps, AGateFillsItsLastBlockWithZeros) {
  constexpr std::int64_t kRows = 3, kWidth = 16, kUpStride = 80;
  const std::vector<float> gates = normals(kRows * kWidth, 10),
                           ups = normals(kRows * kUpStride, 11);
  std::uint16_t* const out = poisoned<std::uint16_t>(kRows * kInputBlock);
  gate({send(gates), kWidth, send(ups) + kWidth, kUpStride, true, out, kRows, kWidth}, stream());
  const std::vector<float> found = floats_of(fetch(out, kRows * kInputBlock));
  std::vector<double> expected, bounds;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < kInputBlock; ++i) {
      if (i >= kWidth) {
        expected.push_back(0);
        bounds.push_back(0);
        continue;
      }
      const double x = static_cast<double>(gates[static_cast<std::size_t>(row * kWidth + i)]);
      const double up =
          static_cast<double>(ups[static_cast<std::size_t>(row * kUpStride + kWidth + i)]);
      const double z = 2 * 0.7978845608028654 * (x + 0.044715 * x * x * x);
      const double value = x / (1 + std::exp(-z)) * up;
      expected.push_back(value);
      bounds.push_back(bf16_bound(8, value) + core::function_bound(8, std::fabs(z), value));
    }
  }
  const core::Verdict verdict = core::within_bounds(found, expected, bounds);
  EXPECT_TRUE(verdict.ok) << verdict.message;
}

}  // namespace
}  // namespace segue::ops::cuda
