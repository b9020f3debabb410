// SPDX-License-Identifier: Apache-2.0
// The ends of a draft on a GPU against double and against themselves.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/tolerance.h"
#include "ops/cuda/draft.h"
#include "ops/cuda/gpu_fixture.h"

namespace segue::ops::cuda {
namespace {

TEST_F(CudaOps, ADraftTakesTheEmbeddingOfThePickedTokenBesideTheHiddenRow) {
  constexpr std::int64_t kHidden = 96, kVocab = 37;
  const std::vector<std::uint16_t> table = bf16_of(normals(kHidden * kVocab, 12));
  const Matrix matrix = upload(table, kHidden, {kVocab});
  const std::vector<std::int32_t> tokens{36, 0, 17};
  // As largest() leaves them, as the host makes them, and where there was no logit: token 0.
  const std::vector<Pick> picks{pick_of(36) | Pick{0xc1234567} << 32, 0, pick_of(17)};
  const std::vector<float> hidden = normals(3 * kHidden, 13);
  std::uint16_t* const out = poisoned<std::uint16_t>(3 * 2 * kHidden);
  draft_input({&matrix, send(picks), 3.0f, send(hidden), out, 3}, stream());
  std::vector<std::uint16_t> expected;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    for (std::int64_t i = 0; i < kHidden; ++i) {
      const float weight = from_bf16(table[static_cast<std::size_t>(tokens[row] * kHidden + i)]);
      expected.push_back(core::f32_to_bf16(3.0f * weight));
    }
    for (std::size_t i = 0; i < kHidden; ++i)
      expected.push_back(core::f32_to_bf16(hidden[row * kHidden + i]));
  }
  EXPECT_EQ(fetch(out, 3 * 2 * kHidden), expected);
}

TEST_F(CudaOps, TheLargestLogitThatIsNotSuppressedIsPickedAndOfEqualsTheLowestId) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t vocab : {1, 31, 4096, 4097, 50001, 262144}) {
    std::vector<std::vector<float>> rows;
    for (std::uint64_t row = 0; row < 4; ++row) rows.push_back(normals(vocab, 40 + row));
    for (std::int64_t i = 1; i < vocab; i += 3) rows[1][static_cast<std::size_t>(i)] = kNan;
    rows[2].assign(static_cast<std::size_t>(vocab), -kInfinity);
    for (float& logit : rows[3]) logit = logit > 0 ? 0.0f : -0.0f;  // equal, all of them
    rows.push_back(rows[0]);
    for (float& logit : rows[4]) logit = logit < 1 ? logit - 50.0f : 4.0f;  // many equal ones
    rows.push_back(std::vector<float>(static_cast<std::size_t>(vocab), kNan));
    const auto count = std::ssize(rows);
    std::vector<float> logits;
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    // The tokens that win without them, and two others.
    std::vector<std::int32_t> suppressed;
    for (const bool suppresses : {false, true}) {
      float* const on_device = send(logits);
      const int ids = suppresses ? static_cast<int>(suppressed.size()) : 0;
      suppress({on_device, suppresses ? send(suppressed) : nullptr, ids, count, vocab}, stream());
      Pick* const picks = poisoned<Pick>(count);
      device::fill_bytes(picks, 0, static_cast<std::size_t>(count) * sizeof(Pick), stream());
      largest({on_device, picks, count, vocab}, stream());
      const std::vector<Pick> found = fetch(picks, count);
      for (std::int64_t row = 0; row < count; ++row) {
        std::int32_t expected = 0;
        float best = -kInfinity;
        for (std::int32_t id = 0; id < vocab; ++id) {
          const bool out = suppresses && std::ranges::find(suppressed, id) != suppressed.end();
          const float logit = rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(id)];
          if (out || !(logit > best)) continue;
          best = logit;
          expected = id;
        }
        EXPECT_EQ(token_of(found[static_cast<std::size_t>(row)]), expected)
            << vocab << " tokens, row " << row << (suppresses ? ", suppressed" : "");
        if (!suppresses) suppressed.push_back(expected);
      }
      buffers_.clear();
    }
  }
}

/// Ties, NaN and -infinity among the scores; more centroids than a block has threads, and fewer
/// than a warp.
TEST_F(CudaOps, ACentroidHeadLooksAtTheTokensOfTheBestAndARowHasItsBits) {
  struct Case {
    int centroids, top;
    std::int64_t each, hidden;
  };
  for (const Case& c : {Case{16, 3, 10, 32}, Case{513, 32, 4, 96}, Case{5, 5, 7, 64}}) {
    constexpr std::int64_t kRows = 4;
    const std::int64_t vocab = c.centroids * c.each;
    const std::vector<std::uint16_t> w = bf16_of(normals(vocab * c.hidden, 1));
    const std::vector<std::uint16_t> x = bf16_of(normals(kRows * c.hidden, 2));
    std::vector<float> scores = normals(kRows * c.centroids, 3);
    for (std::size_t i = 0; i < scores.size(); i += 3) scores[i] = std::round(scores[i]);  // ties
    for (int i = 0; i < c.centroids; ++i)
      scores[static_cast<std::size_t>(c.centroids + i)] = 1.0f;  // all of the second row
    scores[static_cast<std::size_t>(2 * c.centroids)] = std::numeric_limits<float>::quiet_NaN();
    scores[static_cast<std::size_t>(2 * c.centroids + 1)] = -std::numeric_limits<float>::infinity();
    std::vector<std::int32_t> ordering(static_cast<std::size_t>(vocab));
    std::iota(ordering.begin(), ordering.end(), 0);
    std::shuffle(ordering.begin(), ordering.end(), std::mt19937_64(7));
    const Matrix head = upload(w, c.hidden, {vocab});
    const auto run = [&](std::int64_t first, std::int64_t rows) {
      CentroidHead args;
      args.head = &head;
      args.x = send(x) + first * c.hidden;
      args.scores = send(scores) + first * c.centroids;
      args.ordering = send(ordering);
      args.chosen = poisoned<std::int32_t>(rows * c.top);
      args.logits = poisoned<float>(rows * vocab);
      args.rows = rows;
      args.vocab = vocab;
      args.centroids = c.centroids;
      args.top = c.top;
      centroid_head(args, stream());
      fetch(args.chosen, rows * c.top);  // its guard
      return fetch(args.logits, rows * vocab);
    };
    const std::vector<float> found = run(0, kRows);
    std::vector<double> expected(found.size(), -HUGE_VAL), bounds(found.size(), 0.0);
    for (std::int64_t row = 0; row < kRows; ++row) {
      std::vector<std::int64_t> best(static_cast<std::size_t>(c.centroids));
      std::iota(best.begin(), best.end(), 0);
      const auto score = [&](std::int64_t i) {
        const float value = scores[static_cast<std::size_t>(row * c.centroids + i)];
        return std::isnan(value) ? -std::numeric_limits<float>::infinity() : value;
      };
      std::ranges::stable_sort(best, [&](auto a, auto b) { return score(a) > score(b); });
      for (int i = 0; i < c.top; ++i) {
        for (std::int64_t j = 0; j < c.each; ++j) {
          const std::int64_t token =
              ordering[static_cast<std::size_t>(best[static_cast<std::size_t>(i)] * c.each + j)];
          double sum = 0, absolute = 0;
          for (std::int64_t d = 0; d < c.hidden; ++d) {
            const double term =
                static_cast<double>(from_bf16(w[static_cast<std::size_t>(token * c.hidden + d)])) *
                static_cast<double>(from_bf16(x[static_cast<std::size_t>(row * c.hidden + d)]));
            sum += term;
            absolute += std::fabs(term);
          }
          expected[static_cast<std::size_t>(row * vocab + token)] = sum;
          bounds[static_cast<std::size_t>(row * vocab + token)] =
              core::summation_bound(c.hidden, absolute);
        }
      }
    }
    const core::Verdict verdict = core::within_bounds(found, expected, bounds);
    EXPECT_TRUE(verdict.ok) << c.centroids << " centroids: " << verdict.message;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const core::Verdict alone = core::exact(
          run(row, 1),
          std::vector<float>(found.begin() + row * vocab, found.begin() + (row + 1) * vocab));
      EXPECT_TRUE(alone.ok) << row << ": " << alone.message;
    }
    buffers_.clear();
  }
}

}  // namespace
}  // namespace segue::ops::cuda
