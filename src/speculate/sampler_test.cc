// SPDX-License-Identifier: Apache-2.0
#include "speculate/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/tolerance.h"
#include "speculate/sampler_kernels.h"

namespace segue::speculate {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::uint64_t next_random(std::uint64_t& state) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (state ^ (state >> 29)) * 0x9e3779b97f4a7c15ull >> 16;
}

double next_uniform(std::uint64_t& state) {
  return static_cast<double>(next_random(state) % (1u << 30)) * 0x1p-30;
}

/// Bell-shaped logits; `levels` > 0 rounds them so that ties are common.
std::vector<float> random_logits(std::size_t count, std::uint64_t seed, double scale,
                                 int levels = 0) {
  std::vector<float> logits(count);
  for (float& x : logits) {
    double sum = -3.0;
    for (int i = 0; i < 6; ++i) sum += next_uniform(seed);
    x = static_cast<float>(levels > 0 ? std::round(sum * levels) / levels * scale : sum * scale);
  }
  return logits;
}

std::int32_t sample_once(const Sampling& sampling, const std::vector<float>& logits,
                         std::int64_t position, std::vector<std::int32_t> committed = {},
                         std::vector<std::int32_t> drafts = {}) {
  SampleScratch scratch;
  return sample(sampling, {logits, committed, drafts, position}, scratch);
}

std::vector<core::IsaLevel> levels() {
  std::vector<core::IsaLevel> out;
  for (const auto level : {core::IsaLevel::kPortable, core::IsaLevel::kNeon, core::IsaLevel::kAvx2,
                           core::IsaLevel::kAvx512}) {
    if (core::isa_available(level)) out.push_back(level);
  }
  return out;
}

/// The contract of `sample`, written as plainly as possible: a full sort and one loop per filter.
std::int32_t reference(const Sampling& s, const std::vector<float>& raw, std::int64_t position,
                       const std::vector<std::int32_t>& history) {
  std::vector<float> x = raw;
  const std::size_t window =
      s.repeat_last_n < 0 ? history.size()
                          : std::min(history.size(), static_cast<std::size_t>(s.repeat_last_n));
  for (std::size_t i = history.size() - window; i < history.size(); ++i) {
    const auto t = static_cast<std::size_t>(history[i]);
    x[t] = raw[t] > 0 ? raw[t] / s.repeat_penalty : raw[t] * s.repeat_penalty;
  }
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::min(x[i], std::numeric_limits<float>::max());
    if (x[i] > -kInf) order.push_back(static_cast<std::int32_t>(i));
  }
  if (order.empty()) return 0;
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)];
  });
  if (s.temperature == 0) return order[0];
  const auto at = [&](std::int32_t token) { return x[static_cast<std::size_t>(token)]; };
  const ScoreRule rule{at(order[0]), 1.0f / s.temperature, 0, 0};
  if (s.top_k > 0 && static_cast<std::size_t>(s.top_k) < order.size())
    order.resize(static_cast<std::size_t>(s.top_k));
  const auto& kernels = portable::kSamplerKernels;
  if (s.top_p < 1) {
    std::vector<std::int64_t> masses;
    for (const std::int32_t token : order) {
      const float logit = at(token);
      std::int32_t mass;
      kernels.masses(rule, &logit, 1, &mass);
      masses.push_back(mass);
    }
    const auto total = std::accumulate(masses.begin(), masses.end(), std::int64_t{0});
    const double wanted = std::ceil(static_cast<double>(s.top_p) * static_cast<double>(total));
    std::int64_t sum = 0;
    std::size_t kept = 0;
    while (static_cast<double>(sum) < wanted) sum += masses[kept++];
    order.resize(kept);
  }
  if (s.min_p > 0) {
    const double log_p = s.min_p < 1 ? static_cast<double>(kernels.natural_log(s.min_p)) : 0;
    const auto least = static_cast<float>(static_cast<double>(rule.largest) +
                                          log_p / static_cast<double>(rule.inverse_temperature));
    std::erase_if(order, [&](std::int32_t token) { return at(token) < least; });
  }
  std::sort(order.begin(), order.end());
  std::int32_t best = -1;
  float best_score = -kInf;
  for (const std::int32_t token : order) {
    std::uint32_t bits[kSampleBlock];
    kernels.random_block({s.seed, static_cast<std::uint64_t>(position)},
                         static_cast<std::uint32_t>(token / kSampleBlock), bits);
    const float score = (at(token) - rule.largest) * rule.inverse_temperature +
                        kernels.gumbel(bits[token % kSampleBlock]);
    if (score > best_score) {
      best_score = score;
      best = token;
    }
  }
  return best;
}

TEST(SamplerNoise, FirstPhiloxBlockOfKeyZeroIsThePublishedOne) {
  std::uint32_t bits[kSampleBlock];
  portable::kSamplerKernels.random_block({0, 0}, 0, bits);
  EXPECT_EQ(bits[0], 0x6627e8d5u);
  EXPECT_EQ(bits[16], 0xe169c58du);
  EXPECT_EQ(bits[32], 0xbc57ac4cu);
  EXPECT_EQ(bits[48], 0x9b00dbd8u);
}

TEST(SamplerNoise, LogarithmAndGumbelNoiseFollowTheDoubleReference) {
  const auto& kernels = portable::kSamplerKernels;
  double worst = 0;
  for (std::uint64_t bits = 0x00800000u; bits < 0x7f800000u; bits += 9973) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const double exact = std::log(static_cast<double>(x));
    const double error = std::abs(static_cast<double>(kernels.natural_log(x)) - exact);
    if (exact != 0) worst = std::max(worst, error / std::abs(exact));
  }
  EXPECT_LT(worst, 2 * 0x1p-23);
  double worst_noise = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 65521) {
    const float noise = kernels.gumbel(static_cast<std::uint32_t>(bits));
    // v has 24 significant bits: the noise is exact for the v that is meant, coarse only where v is
    // close to 1.
    const float v =
        std::min(static_cast<float>(static_cast<std::int32_t>(bits >> 1)) * 0x1p-31f + 0x1p-32f,
                 1.0f - 0x1p-24f);
    const double exact = -std::log(-std::log1p(-static_cast<double>(v)));
    worst_noise =
        std::max(worst_noise, std::abs(static_cast<double>(noise) - exact) / (1 + std::abs(exact)));
    EXPECT_LT(noise, kLargestNoise);
  }
  EXPECT_LT(worst_noise, 1e-5);
  EXPECT_LT(kernels.gumbel(0), kLargestNoise);
  EXPECT_GT(kernels.gumbel(0), 21.0f);
  EXPECT_TRUE(std::isfinite(kernels.gumbel(0xffffffffu)));
}

std::vector<float> maxima_of(const std::vector<float>& logits) {
  std::vector<float> maxima;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (i % kSampleBlock == 0) maxima.push_back(-kInf);
    const float logit = std::min(logits[i], std::numeric_limits<float>::max());
    if (logit > maxima.back()) maxima.back() = logit;
  }
  return maxima;
}

TEST(Sampler, EveryInstructionLevelAndThePlainReferenceChooseTheSameToken) {
  SampleScratch scratch;
  std::uint64_t state = 7;
  int cases = 0;
  for (const std::size_t vocabulary : {1u, 2u, 63u, 64u, 65u, 1000u, 5000u}) {
    for (int round = 0; round < 120; ++round) {
      Sampling s;
      s.seed = next_random(state) * 0x100000001ull;
      const float temperatures[] = {0.0f, 0.3f, 0.8f, 1.0f, 3.0f};
      s.temperature = temperatures[next_random(state) % 5];
      const int top_ks[] = {0, 0, 1, 2, 40, 700, 100000};
      s.top_k = top_ks[next_random(state) % 7];
      const float top_ps[] = {1.0f, 0.95f, 0.5f, 1e-6f};
      s.top_p = top_ps[next_random(state) % 4];
      const float min_ps[] = {0.0f, 0.0f, 0.05f, 1.0f};
      s.min_p = min_ps[next_random(state) % 4];
      const float penalties[] = {1.0f, 1.1f, 0.5f};
      s.repeat_penalty = penalties[next_random(state) % 3];
      const int windows[] = {-1, 0, 3, 64};
      s.repeat_last_n = windows[next_random(state) % 4];
      const auto logits = random_logits(vocabulary, next_random(state), round % 3 == 0 ? 1.0 : 6.0,
                                        round % 2 ? 0 : 4);
      std::vector<std::int32_t> history(next_random(state) % 90);
      for (auto& token : history)
        token = static_cast<std::int32_t>(next_random(state) % vocabulary);
      const std::size_t drafts = std::min<std::size_t>(history.size(), next_random(state) % 9);
      const std::span<const std::int32_t> all(history);
      const auto position = static_cast<std::int64_t>(history.size());
      const SampleRow row{logits, all.first(all.size() - drafts), all.last(drafts), position};
      SampleRow known = row;
      const std::vector<float> maxima = maxima_of(logits);
      known.block_maxima = maxima;
      const std::int32_t expected = reference(s, logits, position, history);
      for (const auto level : levels()) {
        ASSERT_EQ(sample_at(level, s, row, scratch), expected)
            << core::isa_name(level) << " vocabulary " << vocabulary << " round " << round;
        ASSERT_EQ(sample_at(level, s, known, scratch), expected) << "maxima are known";
        ++cases;
      }
    }
  }
  EXPECT_GE(cases, 7 * 120);
}

TEST(Sampler, FlatDistributionsOverALargeVocabularyMatchTheReference) {
  for (const double scale : {0.0, 0.05, 0.5}) {
    const auto logits = random_logits(70001, 3, scale);
    Sampling s;
    s.temperature = 1.0f;
    s.top_p = 0.95f;
    for (int position = 0; position < 5; ++position) {
      EXPECT_EQ(sample_once(s, logits, position), reference(s, logits, position, {}));
    }
    s.top_k = 60000;
    EXPECT_EQ(sample_once(s, logits, 9), reference(s, logits, 9, {}));
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOfALargestLogit) {
  std::vector<float> logits(300, 1.0f);
  EXPECT_EQ(sample_once({}, logits, 0), 0);
  logits[299] = 2.0f;
  EXPECT_EQ(sample_once({}, logits, 0), 299);
  logits[70] = 2.0f;
  EXPECT_EQ(sample_once({}, logits, 0), 70);
}

TEST(Sampler, NaNAndInfiniteLogitsNeverCrashAndNaNNeverWins) {
  for (const float temperature : {0.0f, 1e-30f, 0.8f, 1e30f}) {
    for (const float top_p : {1.0f, 0.9f}) {
      for (const int top_k : {0, 3}) {
        Sampling s;
        s.temperature = temperature;
        s.top_p = top_p;
        s.top_k = top_k;
        s.min_p = 0.01f;
        std::vector<float> logits(130, kNaN);
        EXPECT_EQ(sample_once(s, logits, 5), 0);
        logits[129] = -kInf;
        EXPECT_EQ(sample_once(s, logits, 5), 0);
        logits[100] = -std::numeric_limits<float>::max();
        EXPECT_EQ(sample_once(s, logits, 5), 100);
        logits[101] = kInf;
        EXPECT_EQ(sample_once(s, logits, 5), 101);
        logits[0] = kInf;
        const std::int32_t token = sample_once(s, logits, 5);
        EXPECT_TRUE(token == 0 || token == 101);
      }
    }
  }
}

TEST(Sampler, PenaltyCountsEachTokenOnceAndOnlyInTheWindow) {
  std::vector<float> logits{4.0f, 3.9f, -1.0f};
  Sampling s;
  s.repeat_penalty = 1.5f;
  EXPECT_EQ(sample_once(s, logits, 3, {0, 0, 0}), 1);
  EXPECT_EQ(sample_once(s, logits, 3, {0, 0, 0}, {1}),
            0);  // 4 / 1.5 against 3.9 / 1.5, each divided once
  s.repeat_last_n = 1;
  EXPECT_EQ(sample_once(s, logits, 2, {0, 2}), 0);
  s.repeat_last_n = 0;
  EXPECT_EQ(sample_once(s, logits, 2, {0, 0}), 0);
  s.repeat_last_n = -1;
  EXPECT_EQ(sample_once(s, logits, 100, std::vector<std::int32_t>(100, 0)), 1);
}

TEST(Sampler, TokensOfTheHistoryOutsideTheVocabularyAreIgnored) {
  Sampling s;
  s.repeat_penalty = 2.0f;
  EXPECT_EQ(sample_once(s, {1.0f, 0.9f}, 2, {-1, 7}), 0);
}

/// Chi-square statistic of `counts` against `probabilities`; bins that expect under 5 are pooled.
double chi_square(const std::vector<int>& counts, const std::vector<double>& probabilities,
                  int draws, int& bins) {
  double sum = 0, pooled_expected = 0, pooled_count = 0;
  bins = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * draws;
    if (expected < 5) {
      pooled_expected += expected;
      pooled_count += counts[i];
      continue;
    }
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++bins;
  }
  if (pooled_expected > 0) {
    sum += (pooled_count - pooled_expected) * (pooled_count - pooled_expected) / pooled_expected;
    ++bins;
  }
  return sum;
}

TEST(Sampler, FrequenciesOverPositionsAndOverSeedsFollowTheSoftmax) {
  constexpr int kDraws = 200000;
  for (const bool over_seeds : {false, true}) {
    for (const int vocabulary : {5, 80}) {
      const auto logits = random_logits(static_cast<std::size_t>(vocabulary), 11, 3.0);
      Sampling s;
      s.temperature = 0.8f;
      std::vector<double> p;
      double total = 0;
      for (const float x : logits) total += p.emplace_back(std::exp(static_cast<double>(x) / 0.8));
      for (double& value : p) value /= total;
      std::vector<int> counts(logits.size());
      SampleScratch scratch;
      for (int i = 0; i < kDraws; ++i) {
        s.seed = over_seeds ? static_cast<std::uint64_t>(i) : 42;
        ++counts[static_cast<std::size_t>(
            sample(s, {logits, {}, {}, over_seeds ? 17 : i}, scratch))];
      }
      int bins = 0;
      const double statistic = chi_square(counts, p, kDraws, bins);
      // Mean bins - 1, standard deviation sqrt(2 (bins - 1)): five deviations, on fixed seeds.
      EXPECT_LT(statistic, bins - 1 + 5 * std::sqrt(2.0 * (bins - 1)))
          << vocabulary << " " << over_seeds;
    }
  }
}

TEST(Sampler, NoiseOfNeighbouringPositionsIsIndependent) {
  // Two tokens of equal logit: pairs of successive choices must fall into four equal cells.
  Sampling s;
  s.temperature = 1.0f;
  SampleScratch scratch;
  const std::vector<float> logits{0.0f, 0.0f};
  int cells[4] = {};
  constexpr int kPairs = 40000;
  for (int i = 0; i < kPairs; ++i) {
    const int a = sample(s, {logits, {}, {}, 2 * i}, scratch);
    const int b = sample(s, {logits, {}, {}, 2 * i + 1}, scratch);
    ++cells[2 * a + b];
  }
  for (const int cell : cells) EXPECT_NEAR(cell, kPairs / 4, 5 * std::sqrt(kPairs * 0.1875));
}

TEST(SamplingValidation, NamesTheFieldTheValueAndTheAllowedRange) {
  EXPECT_TRUE(validate({}).ok());
  const auto message = [](auto set) {
    Sampling s;
    set(s);
    const Status status = validate(s);
    return status.ok() ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(message([](Sampling& s) { s.temperature = -1; }),
            "temperature is -1: allowed are finite values from 0");
  EXPECT_NE(message([](Sampling& s) { s.temperature = kNaN; }).find("temperature is nan"),
            std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.temperature = kInf; }).find("temperature is inf"),
            std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.top_k = -1; }).find("top_k is -1"), std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.top_p = 0; }).find("top_p is 0"), std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.top_p = 1.5f; }).find("top_p is 1.5"), std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.min_p = -0.5f; }).find("min_p is -0.5"), std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.min_p = kNaN; }).find("min_p is nan"), std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.repeat_penalty = 0; }).find("repeat_penalty is 0"),
            std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.repeat_last_n = -2; }).find("repeat_last_n is -2"),
            std::string::npos);
}

TEST(Sampler, SuppressedTokensNeverResultAndTheOthersDoAsIfTheyWereNotThere) {
  std::vector<float> logits{1.0f, 9.0f, 5.0f, 8.0f};
  const std::int32_t suppressed[] = {1, 3};
  const std::int32_t history[] = {2};
  std::vector<float> without = logits;
  without[1] = without[3] = -std::numeric_limits<float>::infinity();
  SampleScratch scratch;
  for (const float temperature : {0.0f, 2.0f}) {
    for (const float penalty : {1.0f, 1.5f}) {
      Sampling sampling;
      sampling.temperature = temperature;
      sampling.repeat_penalty = penalty;
      for (std::int64_t position = 0; position < 50; ++position) {
        const SampleRow masked{logits, history, {}, position, suppressed};
        const SampleRow absent{without, history, {}, position};
        EXPECT_EQ(sample(sampling, masked, scratch), sample(sampling, absent, scratch));
      }
    }
  }
}

}  // namespace
}  // namespace segue::speculate
