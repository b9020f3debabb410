// SPDX-License-Identifier: Apache-2.0
// The sampler's order of filters. Every filter becomes a cut, a pair (logit, token): tokens above
// it stay, ties at the cut up to the token. Blocks of 64 tokens whose largest logit is below the
// cut are never looked at again, which is what keeps a vocabulary of 262144 cheap: nothing is
// sorted but the few tokens around a cut.
#include "speculate/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "core/check.h"
#include "speculate/sampler_kernels.h"

namespace segue::speculate {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLargestFloat = std::numeric_limits<float>::max();
constexpr std::int32_t kEveryToken = std::numeric_limits<std::int32_t>::max();

const SamplerKernels& kernels_of(core::IsaLevel level) {
#if defined(__x86_64__)
  if (level == core::IsaLevel::kAvx512) return avx512::kSamplerKernels;
  if (level == core::IsaLevel::kAvx2) return avx2::kSamplerKernels;
#elif defined(__aarch64__)
  if (level == core::IsaLevel::kNeon) return neon::kSamplerKernels;
#endif
  return portable::kSamplerKernels;
}

/// Larger logit first, then lower id.
bool before(const ScoredToken& a, const ScoredToken& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

/// The tokens of one row that may still win.
class Row {
 public:
  /// `maxima`: of these logits, or empty.
  Row(const SamplerKernels& kernels, std::span<const float> logits, std::span<const float> maxima,
      SampleScratch& scratch)
      : kernels_(kernels), logits_(logits), scratch_(scratch) {
    const std::size_t blocks = (logits.size() + kSampleBlock - 1) / kSampleBlock;
    if (maxima.empty()) {
      scratch_.block_maxima.resize(blocks);
      kernels_.block_maxima(logits.data(), static_cast<std::int64_t>(logits.size()),
                            scratch_.block_maxima.data());
    } else {
      CHECK(maxima.size() == blocks);
      scratch_.block_maxima.assign(maxima.begin(), maxima.end());
    }
    largest_block_ = static_cast<std::size_t>(
        std::max_element(scratch_.block_maxima.begin(), scratch_.block_maxima.end()) -
        scratch_.block_maxima.begin());
    rule_.largest = scratch_.block_maxima[largest_block_];
    rule_.cut = -kLargestFloat;
    rule_.cut_token = kEveryToken;
  }

  bool hopeless() const { return rule_.largest == kMinusInfinity; }

  /// Lowest id of the largest logit.
  std::int32_t largest() const {
    const std::size_t first = largest_block_ * kSampleBlock;
    std::size_t i = first;
    while (!(std::min(logits_[i], kLargestFloat) == rule_.largest)) ++i;
    return static_cast<std::int32_t>(i);
  }

  void set_temperature(float temperature) {
    rule_.inverse_temperature = std::min(1.0f / temperature, kLargestFloat);
  }

  void keep_top_k(int k) {
    const auto count = static_cast<std::size_t>(k);
    if (count >= logits_.size()) return;
    // At least k tokens reach the k-th largest block maximum, so nothing below it can be among the
    // k.
    float least = -kLargestFloat;
    if (count <= scratch_.block_maxima.size()) {
      auto& maxima = scratch_.selected_maxima = scratch_.block_maxima;
      const auto kth = maxima.begin() + static_cast<std::ptrdiff_t>(count) - 1;
      std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<>());
      least = std::max(least, *kth);
    }
    gather(least, std::numeric_limits<float>::infinity());
    auto& candidates = scratch_.candidates;
    if (candidates.size() < count) return;
    const auto kth = candidates.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(candidates.begin(), kth, candidates.end(), before);
    cut_at(*kth);
  }

  void keep_top_p(float p) {
    const double total = static_cast<double>(mass_above_cut());
    const auto wanted = static_cast<std::int64_t>(std::ceil(static_cast<double>(p) * total));
    // Collect from the top, in slices of growing width, until the wanted mass is in the last slice.
    std::int64_t above = 0;
    float upper = std::numeric_limits<float>::infinity();
    for (float width = 4.0f;; width *= 2.0f) {
      float lower = rule_.largest - width / rule_.inverse_temperature;
      const bool last = width > -kLeastMassScore || !(lower > rule_.cut);
      if (last) lower = rule_.cut;
      gather(lower, upper);
      const std::int64_t mass = mass_of(scratch_.candidates);
      if (above + mass >= wanted) {
        cut_where_mass_reaches(wanted - above);
        return;
      }
      if (last) return;
      above += mass;
      upper = lower;
    }
  }

  void keep_min_p(float p) {
    const double log_p =
        p < 1.0f ? static_cast<double>(kernels_.natural_log(std::max(p, 0x1p-126f))) : 0.0;
    const double cut =
        static_cast<double>(rule_.largest) + log_p / static_cast<double>(rule_.inverse_temperature);
    const auto least = static_cast<float>(std::max(cut, -static_cast<double>(kLargestFloat)));
    if (least > rule_.cut) cut_at({least, kEveryToken});
  }

  std::int32_t noisiest(const NoiseKey& key) const {
    BestToken best{kMinusInfinity, 0};
    visit(largest_block_, key, best);
    for (std::size_t block = 0; block < scratch_.block_maxima.size(); ++block) {
      const float maximum = scratch_.block_maxima[block];
      if (maximum < rule_.cut || block == largest_block_) continue;
      if ((maximum - rule_.largest) * rule_.inverse_temperature + kLargestNoise < best.score)
        continue;
      visit(block, key, best);
    }
    return best.token;
  }

 private:
  int block_size(std::size_t block) const {
    return static_cast<int>(
        std::min<std::size_t>(kSampleBlock, logits_.size() - block * kSampleBlock));
  }

  void visit(std::size_t block, const NoiseKey& key, BestToken& best) const {
    const std::size_t first = block * kSampleBlock;
    kernels_.best_of_block(rule_, key, logits_.data() + first, block_size(block),
                           static_cast<std::int32_t>(first), &best);
  }

  void cut_at(const ScoredToken& last) {
    rule_.cut = last.score;
    rule_.cut_token = last.token;
  }

  /// candidates = tokens above the cut with logits in [lower, upper). Without branches on single
  /// tokens: whether one passes is often a coin toss.
  void gather(float lower, float upper) {
    auto& out = scratch_.candidates;
    std::size_t count = 0;
    for (std::size_t block = 0; block < scratch_.block_maxima.size(); ++block) {
      if (scratch_.block_maxima[block] < lower) continue;
      const std::size_t first = block * kSampleBlock;
      if (out.size() < count + kSampleBlock) out.resize(2 * count + kSampleBlock);
      for (std::size_t i = first; i < first + static_cast<std::size_t>(block_size(block)); ++i) {
        const float score = std::min(logits_[i], kLargestFloat);
        const auto token = static_cast<std::int32_t>(i);
        const bool above =
            (score > rule_.cut) | ((score == rule_.cut) & (token <= rule_.cut_token));
        out[count] = {score, token};
        count += static_cast<std::size_t>((score >= lower) & (score < upper) & above);
      }
    }
    out.resize(count);
  }

  template <class F>
  void for_each_mass(std::span<const ScoredToken> tokens, F&& f) const {
    std::array<float, kSampleBlock> logits;
    std::array<std::int32_t, kSampleBlock> masses;
    for (std::size_t first = 0; first < tokens.size(); first += kSampleBlock) {
      const std::size_t count = std::min<std::size_t>(kSampleBlock, tokens.size() - first);
      for (std::size_t i = 0; i < count; ++i) logits[i] = tokens[first + i].score;
      kernels_.masses(rule_, logits.data(), static_cast<int>(count), masses.data());
      for (std::size_t i = 0; i < count; ++i) f(tokens[first + i], masses[i]);
    }
  }

  std::int64_t mass_of(std::span<const ScoredToken> tokens) const {
    std::int64_t sum = 0;
    for_each_mass(tokens, [&](const ScoredToken&, std::int32_t mass) { sum += mass; });
    return sum;
  }

  std::int64_t mass_above_cut() {
    if (rule_.cut > -kLargestFloat) {  // after top-k: the tokens above are its first candidates
      gather(rule_.cut, std::numeric_limits<float>::infinity());
      return mass_of(scratch_.candidates);
    }
    std::int64_t sum = 0;
    std::array<std::int32_t, kSampleBlock> masses;
    for (std::size_t block = 0; block < scratch_.block_maxima.size(); ++block) {
      const float score =
          (scratch_.block_maxima[block] - rule_.largest) * rule_.inverse_temperature;
      if (!(score > kLeastMassScore)) continue;
      sum += kernels_.masses(rule_, logits_.data() + block * kSampleBlock, block_size(block),
                             masses.data());
    }
    return sum;
  }

  static constexpr std::size_t kBuckets = 1024;

  /// Of many candidates keeps those of one bucket of logits, the one in which the mass from the top
  /// reaches `wanted`. Returns what is still wanted within it.
  std::int64_t keep_bucket_that_reaches(std::int64_t wanted) {
    auto& candidates = scratch_.candidates;
    const auto [least, most] = std::minmax_element(
        candidates.begin(), candidates.end(),
        [](const ScoredToken& a, const ScoredToken& b) { return a.score < b.score; });
    const float top = most->score;
    const float range = top - least->score;
    if (!(range > 0 && range <= kLargestFloat)) return wanted;
    const float scale = static_cast<float>(kBuckets) / range;
    const auto bucket_of = [&](const ScoredToken& token) {
      return std::min(kBuckets - 1, static_cast<std::size_t>((top - token.score) * scale));
    };
    std::array<std::int64_t, kBuckets> sums{};
    for_each_mass(candidates, [&](const ScoredToken& token, std::int32_t mass) {
      sums[bucket_of(token)] += mass;
    });
    std::size_t bucket = 0;
    while (sums[bucket] < wanted && bucket + 1 < kBuckets) wanted -= sums[bucket++];
    std::erase_if(candidates, [&](const ScoredToken& token) { return bucket_of(token) != bucket; });
    return wanted;
  }

  /// The cut becomes the first candidate, in the order of `before`, with which the mass reaches
  /// `wanted`, which the candidates hold. Halving by selection: each half is weighed once.
  void cut_where_mass_reaches(std::int64_t wanted) {
    auto& candidates = scratch_.candidates;
    if (candidates.size() > 16 * kBuckets) wanted = keep_bucket_that_reaches(wanted);
    std::size_t first = 0;
    std::size_t last = candidates.size();
    if (last == 0) return;
    while (last - first > 1) {
      const std::size_t middle = first + (last - first) / 2;
      const auto begin = candidates.begin();
      std::nth_element(begin + static_cast<std::ptrdiff_t>(first),
                       begin + static_cast<std::ptrdiff_t>(middle),
                       begin + static_cast<std::ptrdiff_t>(last), before);
      const std::int64_t mass = mass_of(std::span(candidates).subspan(first, middle - first));
      if (mass >= wanted) {
        last = middle;
      } else {
        wanted -= mass;
        first = middle;
      }
    }
    cut_at(candidates[first]);
  }

  const SamplerKernels& kernels_;
  std::span<const float> logits_;
  SampleScratch& scratch_;
  ScoreRule rule_;
  std::size_t largest_block_ = 0;
};

/// The logits with the repetition penalty and without the suppressed: the row's own, or a copy in
/// `scratch`.
std::span<const float> penalise(const Sampling& sampling, const SampleRow& row,
                                SampleScratch& scratch) {
  const bool penalty = sampling.repeat_penalty != 1.0f && sampling.repeat_last_n != 0;
  if (!penalty && row.suppressed.empty()) return row.logits;
  scratch.penalised.assign(row.logits.begin(), row.logits.end());
  const auto suppress = [&] {
    for (const std::int32_t token : row.suppressed) {
      const auto index = static_cast<std::size_t>(token);
      if (token >= 0 && index < scratch.penalised.size()) scratch.penalised[index] = kMinusInfinity;
    }
    return std::span<const float>(scratch.penalised);
  };
  if (!penalty) return suppress();
  const auto penalise_last = [&](std::span<const std::int32_t> tokens, std::size_t limit) {
    const std::size_t count = std::min(tokens.size(), limit);
    for (const std::int32_t token : tokens.last(count)) {
      const auto index = static_cast<std::size_t>(token);
      if (token < 0 || index >= row.logits.size()) continue;
      const float logit = row.logits[index];
      scratch.penalised[index] =
          logit > 0 ? logit / sampling.repeat_penalty : logit * sampling.repeat_penalty;
    }
    return limit - count;
  };
  const std::size_t window = sampling.repeat_last_n < 0
                                 ? std::numeric_limits<std::size_t>::max()
                                 : static_cast<std::size_t>(sampling.repeat_last_n);
  penalise_last(row.committed, penalise_last(row.drafts_before, window));
  return suppress();
}

Error out_of_range(const char* field, double value, const char* allowed) {
  return {ErrorCode::kUsage, fmt::format("{} is {}: allowed are {}", field, value, allowed)};
}

}  // namespace

Status validate(const Sampling& s) {
  // Comparisons are written so that NaN fails them.
  if (!(s.temperature >= 0.0f && s.temperature <= kLargestFloat)) {
    return out_of_range("temperature", s.temperature, "finite values from 0");
  }
  if (s.top_k < 0) return out_of_range("top_k", s.top_k, "values from 0 (0: off)");
  if (!(s.top_p > 0.0f && s.top_p <= 1.0f))
    return out_of_range("top_p", s.top_p, "values above 0 up to 1 (1: off)");
  if (!(s.min_p >= 0.0f && s.min_p <= 1.0f))
    return out_of_range("min_p", s.min_p, "values from 0 (off) to 1");
  if (!(s.repeat_penalty > 0.0f && s.repeat_penalty <= kLargestFloat)) {
    return out_of_range("repeat_penalty", s.repeat_penalty, "finite values above 0 (1: off)");
  }
  if (s.repeat_last_n < -1) {
    return out_of_range("repeat_last_n", s.repeat_last_n,
                        "values from -1 (-1: all history, 0: none)");
  }
  return {};
}

std::int32_t sample_at(core::IsaLevel level, const Sampling& sampling, const SampleRow& row,
                       SampleScratch& scratch) {
  CHECK(!row.logits.empty());
  const std::span<const float> logits = penalise(sampling, row, scratch);
  const bool raw = logits.data() == row.logits.data();
  Row tokens(kernels_of(level), logits, raw ? row.block_maxima : std::span<const float>(), scratch);
  if (tokens.hopeless()) return 0;
  if (sampling.temperature == 0.0f || sampling.top_k == 1) return tokens.largest();
  tokens.set_temperature(sampling.temperature);
  if (sampling.top_k > 0) tokens.keep_top_k(sampling.top_k);
  if (sampling.top_p < 1.0f) tokens.keep_top_p(sampling.top_p);
  if (sampling.min_p > 0.0f) tokens.keep_min_p(sampling.min_p);
  return tokens.noisiest({sampling.seed, static_cast<std::uint64_t>(row.position)});
}

std::int32_t sample(const Sampling& sampling, const SampleRow& row, SampleScratch& scratch) {
  static const core::IsaLevel level = core::best_isa();
  return sample_at(level, sampling, row, scratch);
}

}  // namespace segue::speculate
