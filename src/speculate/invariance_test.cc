// SPDX-License-Identifier: Apache-2.0
// Properties of drafting, sampling and acceptance together, on a synthetic model whose logits are a
// hash of the context: whatever drafts are proposed, the tokens are those without speculation.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "speculate/accept.h"
#include "speculate/controller.h"
#include "speculate/ngram_drafter.h"
#include "speculate/oracle_drafter.h"
#include "speculate/sampler.h"
#include "speculate/statistics.h"

namespace segue::speculate {
namespace {

constexpr std::int32_t kVocabulary = 48;
constexpr std::int64_t kSequence = 3;

/// Logits of the token after `context`: of its last three tokens, so that texts repeat and n-grams
/// match.
std::vector<float> logits_after(std::span<const std::int32_t> context) {
  std::uint64_t state = 17;
  for (const std::int32_t token : context.last(std::min<std::size_t>(3, context.size()))) {
    state = (state ^ static_cast<std::uint64_t>(token + 1)) * 0x9e3779b97f4a7c15ull;
  }
  std::vector<float> logits(kVocabulary);
  for (float& x : logits) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    x = static_cast<float>(state >> 40) * 0x1p-24f * 8.0f;
  }
  return logits;
}

std::int32_t token_after(const Sampling& sampling, std::span<const std::int32_t> committed,
                         std::span<const std::int32_t> drafts, SampleScratch& scratch) {
  std::vector<std::int32_t> context(committed.begin(), committed.end());
  context.insert(context.end(), drafts.begin(), drafts.end());
  const auto position = static_cast<std::int64_t>(context.size());
  return sample(sampling, {logits_after(context), committed, drafts, position}, scratch);
}

std::vector<std::int32_t> generate(const Sampling& sampling, std::vector<std::int32_t> tokens,
                                   std::size_t length) {
  SampleScratch scratch;
  while (tokens.size() < length) tokens.push_back(token_after(sampling, tokens, {}, scratch));
  return tokens;
}

/// Drafts anything at all, sometimes nothing.
class WildDrafter final : public Drafter {
 public:
  explicit WildDrafter(std::uint64_t seed) : state_(seed) {}
  std::string_view name() const override { return "wild"; }
  void draft(std::span<DraftJob> jobs) override {
    for (DraftJob& job : jobs) {
      job.draft = {};
      for (std::int32_t& token : job.out) {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        if (state_ >> 61 == 0) break;
        token = static_cast<std::int32_t>((state_ >> 33) % kVocabulary);
        ++job.draft.tokens;
      }
    }
  }

 private:
  std::uint64_t state_;
};

std::vector<std::int32_t> generate_with(Drafter& drafter, int k, const Sampling& sampling,
                                        std::vector<std::int32_t> tokens, std::size_t length,
                                        Statistics& statistics) {
  SampleScratch scratch;
  std::vector<std::int32_t> drafts(static_cast<std::size_t>(k));
  while (tokens.size() < length) {
    const std::size_t most = std::min(drafts.size(), length - tokens.size() - 1);
    DraftJob job{.sequence = kSequence, .context = tokens, .out = std::span(drafts).first(most)};
    drafter.draft({&job, 1});
    const Draft draft = job.draft;
    const auto proposed =
        std::span<const std::int32_t>(drafts).first(static_cast<std::size_t>(draft.tokens));
    std::vector<std::int32_t>
        sampled;  // as a verify step would: every row, the later ones after wrong drafts too
    for (std::size_t row = 0; row <= proposed.size(); ++row) {
      sampled.push_back(token_after(sampling, tokens, proposed.first(row), scratch));
    }
    const Accepted accepted = accept(proposed, sampled);
    statistics.record({.depth = static_cast<std::int64_t>(tokens.size()),
                       .drafted = draft.tokens,
                       .accepted = accepted.drafts});
    tokens.insert(tokens.end(), proposed.begin(), proposed.begin() + accepted.drafts);
    tokens.push_back(accepted.next);
  }
  return tokens;
}

Sampling any_sampling() {
  Sampling s;
  s.seed = *rc::gen::arbitrary<std::uint64_t>();
  s.temperature = *rc::gen::element(0.0f, 0.8f, 1.5f);
  s.top_p = *rc::gen::element(1.0f, 0.95f, 0.5f);
  s.top_k = *rc::gen::element(0, 5);
  s.min_p = *rc::gen::element(0.0f, 0.1f);
  s.repeat_penalty = *rc::gen::element(1.0f, 1.2f, 3.0f);
  s.repeat_last_n = *rc::gen::element(64, 0, 2, -1);
  return s;
}

std::vector<std::int32_t> any_prompt() {
  return *rc::gen::resize(12, rc::gen::nonEmpty(rc::gen::container<std::vector<std::int32_t>>(
                                  rc::gen::inRange<std::int32_t>(0, kVocabulary))));
}

RC_GTEST_PROP(Speculation, NeverChangesTheTokensWhateverTheDrafter, ()) {
  const Sampling sampling = any_sampling();
  const std::vector<std::int32_t> prompt = any_prompt();
  const std::size_t length = prompt.size() + 60;
  const auto expected = generate(sampling, prompt, length);
  const int k = *rc::gen::inRange(1, 9);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  WildDrafter wild(seed);
  NgramDrafter ngram({.longest = 3, .shortest = 1});
  OracleDrafter oracle(fixed_acceptance({0.9, 0.7, 0.5}), kVocabulary);
  oracle.record(kSequence, expected, seed);
  for (Drafter* drafter : {static_cast<Drafter*>(&wild), static_cast<Drafter*>(&ngram),
                           static_cast<Drafter*>(&oracle)}) {
    Statistics statistics;
    RC_ASSERT(generate_with(*drafter, k, sampling, prompt, length, statistics) == expected);
    // Every step emits what it accepted and one token more.
    RC_ASSERT(statistics.accepted() + statistics.steps() == 60);
  }
}

RC_GTEST_PROP(Speculation, APerfectDrafterIsAlwaysAccepted, ()) {
  const Sampling sampling = any_sampling();
  const std::vector<std::int32_t> prompt = any_prompt();
  const std::size_t length = prompt.size() + 45;
  const auto expected = generate(sampling, prompt, length);
  OracleDrafter oracle(fixed_acceptance({1.0}), kVocabulary);
  oracle.record(kSequence, expected, 1);
  Statistics statistics;
  RC_ASSERT(generate_with(oracle, 4, sampling, prompt, length, statistics) == expected);
  RC_ASSERT(statistics.accepted() == statistics.drafted());
  RC_ASSERT(statistics.steps() == 9);
}

RC_GTEST_PROP(Accept, IsTheLongestCommonPrefix, ()) {
  const auto tokens = rc::gen::inRange<std::int32_t>(0, 3);
  const auto drafts = *rc::gen::resize(8, rc::gen::container<std::vector<std::int32_t>>(tokens));
  const auto sampled = *rc::gen::container<std::vector<std::int32_t>>(drafts.size() + 1, tokens);
  const Accepted accepted = accept(drafts, sampled);
  const auto mismatch = std::mismatch(drafts.begin(), drafts.end(), sampled.begin());
  RC_ASSERT(accepted.drafts == mismatch.first - drafts.begin());
  RC_ASSERT(accepted.next == *mismatch.second);
}

RC_GTEST_PROP(Controller, StaysWithinItsLimitsForAnyMeasurements, ()) {
  Controller controller({.max_draft = *rc::gen::inRange(0, kMaxDraft + 1)});
  const int steps = *rc::gen::inRange(1, 60);
  for (int step = 0; step < steps; ++step) {
    std::vector<DraftOffer> offers;
    std::int64_t sequence = 0;
    const int batch = *rc::gen::inRange(1, 6);
    for (int i = 0; i < batch; ++i) {
      sequence += *rc::gen::inRange<std::int64_t>(1, 4);
      const std::int64_t depth = *rc::gen::inRange<std::int64_t>(0, 200000);
      const int kinds = *rc::gen::inRange(1, kDraftKinds + 1);
      for (int kind = 0; kind < kinds; ++kind) {
        offers.push_back({.sequence = sequence,
                          .depth = depth,
                          .available = *rc::gen::inRange(0, kMaxDraft + 1),
                          .grade = *rc::gen::inRange(0, kDraftGrades),
                          .ready = *rc::gen::arbitrary<bool>(),
                          .kind = kind,
                          .behind = *rc::gen::inRange(0, 500)});
      }
    }
    std::vector<Decision> decisions(offers.size());
    controller.decide(offers, decisions);
    std::vector<StepRows> rows;
    for (std::size_t i = 0; i < offers.size(); ++i) {
      RC_ASSERT(decisions[i].draft >= 0);
      RC_ASSERT(decisions[i].draft <= offers[i].available);
      const auto drafts = *rc::gen::container<std::vector<std::int32_t>>(
          static_cast<std::size_t>(offers[i].available), rc::gen::inRange<std::int32_t>(0, 2));
      controller.observe_draft(offers[i].sequence, offers[i].source(), drafts);
      if (decisions[i].draft > 0 && !offers[i].ready) {
        controller.observe_draft_time(
            {offers[i].kind, decisions[i].draft, offers[i].depth, offers[i].behind},
            *rc::gen::inRange(1, 100000));
      }
      if (offers[i].kind == 0) {
        rows.push_back({offers[i].depth, 1 + decisions[i].draft});
        const std::vector<std::int32_t> committed(1 + drafts.size() / 2, 1);
        controller.observe_tokens(offers[i].sequence, committed);
      } else if (decisions[i].draft > 0) {
        RC_ASSERT(rows.back().rows == 1);  // one drafter per sequence
        rows.back().rows += decisions[i].draft;
      }
    }
    controller.observe_step(rows, *rc::gen::inRange(1, 1000000));
    const auto even = controller.break_even_acceptance(1 + step % 8, 4096);
    RC_ASSERT(!even.has_value() || (*even >= 0 && *even <= 1));
  }
  RC_ASSERT(!controller.explain().dump().empty());
}

}  // namespace
}  // namespace segue::speculate
