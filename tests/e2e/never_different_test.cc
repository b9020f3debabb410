// SPDX-License-Identifier: Apache-2.0
// The second promise on small random models: tokens and logits hashes do not depend on speculation,
// threads, prefill chunk, batch, page size or policy.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "e2e/tiny_model.h"
#include "segue/engine.h"

namespace segue::e2e {
namespace {

struct Output {
  std::vector<std::int32_t> tokens;
  std::uint64_t hash = 0;
  friend bool operator==(const Output&, const Output&) = default;
};

std::vector<Sampling> samplings() {
  Sampling greedy;
  Sampling warm;
  warm.temperature = 0.8f;
  warm.top_p = 0.95f;
  warm.seed = 11;
  Sampling penalised = warm;
  penalised.repeat_penalty = 1.3f;
  penalised.top_k = 40;
  return {greedy, warm, penalised};
}

struct Setting {
  SpecMode mode = SpecMode::kOff;
  int k = 0;
};
constexpr Setting kSettings[] = {
    {SpecMode::kOff, 0},   {SpecMode::kNgram, 1}, {SpecMode::kNgram, 2}, {SpecMode::kNgram, 4},
    {SpecMode::kNgram, 8}, {SpecMode::kMtp, 1},   {SpecMode::kMtp, 4},   {SpecMode::kMtp, 8},
    {SpecMode::kDraft, 1}, {SpecMode::kDraft, 5}, {SpecMode::kAuto, 8}};

std::vector<Request> requests(std::span<const std::int64_t> lengths, const Sampling& sampling,
                              const Setting& setting) {
  std::vector<Request> out;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    Request request;
    request.prompt_tokens = repetitive_tokens(lengths[i], 100 + i);
    request.max_tokens = 24;
    request.sampling = sampling;
    request.spec = setting.mode;
    request.draft_tokens = setting.k;
    request.ignore_eos = true;
    request.logits_hash = true;
    out.push_back(std::move(request));
  }
  return out;
}

Output output_of(const Result<Completion>& completion) {
  EXPECT_TRUE(completion.ok()) << (completion.ok() ? "" : completion.error().message);
  if (!completion.ok()) return {};
  EXPECT_EQ(completion->tokens.size(), 24u);
  return {completion->tokens, completion->logits_hash};
}

class NeverDifferent : public testing::TestWithParam<std::string> {};

TEST_P(NeverDifferent, TokensAndLogitsDependOnTheRequestAlone) {
  TinyModel model;
  model.architecture = GetParam();
  const std::string path = write_tiny(model);
  // All layers of the target but the last: its drafts are right and wrong often enough.
  TinyModel small = model;
  small.layers = 6;
  small.context = 150;  // the longest prompt gets no drafts from it
  const std::string draft = write_tiny(small, "draft");
  const std::string assistant = model.architecture == "gemma3" ? write_tiny_assistant(model) : "";
  // Around the window (32), pages (16), a unit class limit (64 * 32 + 64 lies beyond this context)
  // and the chunk (64).
  const std::vector<std::int64_t> lengths{1, 3, 15, 16, 17, 33, 64, 65, 200};
  std::map<std::size_t, std::vector<Output>> expected;  // [sampling][prompt]
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  struct Engines {
    int threads, chunk, parallel, page;
    const char* policy;
    bool models;  // drafters that run one take part; in half of the engines, for time's sake
  };
  for (const Engines& e :
       {Engines{1, 512, 1, 64, "segue", true}, Engines{2, 64, 1, 16, "segue", false},
        Engines{2, 7, 2, 24, "segue", true}, Engines{1, 512, 7, 64, "segue", false},
        Engines{2, 512, 9, 8, "stock", true}, Engines{2, 64, 3, 64, "whole", false},
        Engines{2, 64, 3, 64, "segmented", true}}) {
    EngineOptions options;
    options.model = path;
    options.draft_model = e.models ? draft : "";
    options.assistant = e.models ? assistant : "";
    options.threads = e.threads;
    options.prefill_chunk = e.chunk;
    options.max_sequences = e.parallel;
    options.page_size = e.page;
    options.policy = e.policy;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const std::vector<Sampling> all = samplings();
    for (std::size_t s = 0; s < all.size(); ++s) {
      for (const Setting& setting : kSettings) {
        const bool runs_a_model =
            setting.mode == SpecMode::kMtp || setting.mode == SpecMode::kDraft;
        if (setting.mode == SpecMode::kMtp && assistant.empty()) continue;
        if (runs_a_model && (s == 2 || !e.models)) continue;
        const std::vector<Request> batch = requests(lengths, all[s], setting);
        std::vector<Output> outputs;
        for (const Result<Completion>& completion : (*engine)->generate_batch(batch)) {
          outputs.push_back(output_of(completion));
          if (!completion.ok()) continue;
          drafted += completion->stats.drafted;
          accepted += completion->stats.accepted;
        }
        const auto [place, first] = expected.try_emplace(s, outputs);
        if (first) continue;
        for (std::size_t i = 0; i < lengths.size(); ++i) {
          EXPECT_EQ(outputs[i], place->second[i]) << fmt::format(
              "prompt of {} tokens, sampling {}, {} k {}, {} threads, chunk {}, {} in flight, page "
              "{}, {}",
              lengths[i], s, spec_mode_name(setting.mode), setting.k, e.threads, e.chunk,
              e.parallel, e.page, e.policy);
        }
      }
    }
  }
  // The matrix proves something only if drafts were both accepted and rejected.
  EXPECT_GT(accepted, 100);
  EXPECT_GT(drafted - accepted, 100);
}

INSTANTIATE_TEST_SUITE_P(Models, NeverDifferent, testing::Values("gemma3", "llama"),
                         [](const auto& name) { return name.param; });

TEST(NeverDifferentKv, HoldsForEveryStorageType) {
  const std::string path = write_tiny({});
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    EngineOptions options;
    options.model = path;
    options.kv = type;
    options.threads = 2;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
    ASSERT_TRUE(engine.ok());
    const std::vector<std::int64_t> lengths{150};
    const Output off =
        output_of((*engine)->generate_batch(requests(lengths, Sampling{}, kSettings[0]))[0]);
    const Output ngram =
        output_of((*engine)->generate_batch(requests(lengths, Sampling{}, kSettings[4]))[0]);
    EXPECT_EQ(off, ngram) << kv_type_name(type);
  }
}

}  // namespace
}  // namespace segue::e2e
