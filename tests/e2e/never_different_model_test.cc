// SPDX-License-Identifier: Apache-2.0
// The second promise on real weights: a part of the matrix that bench/results holds in full.
// tools/never_different.py records the rest.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "e2e/tiny_model.h"
#include "segue/engine.h"

namespace segue::e2e {
namespace {

constexpr std::int64_t kTokens = 20;

/// Prompts that prompt lookup finds something in, short and longer than the window of 512.
std::vector<std::string> prompts() {
  std::string list = "Shopping, again and again.\n";
  for (int i = 1; i <= 40; ++i)
    list += fmt::format("Item {}: two apples and a loaf of bread.\n", i);
  return {"The capital of France is", list,
          "for (int i = 0; i < n; ++i) a[i] = b[i];\nfor (int i = 0; i < n; ++i) c[i] ="};
}

std::vector<Request> requests(SpecMode mode, int k, bool sampled) {
  std::vector<Request> out;
  for (const std::string& prompt : prompts()) {
    Request request;
    request.prompt = prompt;
    request.max_tokens = kTokens;
    request.spec = mode;
    request.draft_tokens = k;
    request.ignore_eos = true;
    request.logits_hash = true;
    if (sampled) {
      request.sampling.temperature = 0.8f;
      request.sampling.top_p = 0.95f;
      request.sampling.repeat_penalty = 1.1f;
      request.sampling.seed = 5;
    }
    out.push_back(std::move(request));
  }
  return out;
}

class RealModel : public testing::TestWithParam<const char*> {};

TEST_P(RealModel, SaysTheSameHoweverItIsComputed) {
  const std::string path = real_model(GetParam());
  if (path.empty()) GTEST_SKIP() << GetParam() << " is not in ~/.cache/segue/models";
  using Output = std::pair<std::vector<std::int32_t>, std::uint64_t>;
  std::map<bool, std::vector<Output>> expected;
  std::int64_t accepted = 0;
  struct Setup {
    int threads, chunk, parallel;
    SpecMode mode;
    int k;
  };
  for (const Setup& setup :
       {Setup{2, 512, 3, SpecMode::kOff, 0}, Setup{2, 64, 1, SpecMode::kNgram, 1},
        Setup{1, 512, 2, SpecMode::kNgram, 4}, Setup{2, 512, 3, SpecMode::kNgram, 8},
        Setup{2, 64, 2, SpecMode::kAuto, 8}}) {
    EngineOptions options;
    options.model = path;
    options.threads = setup.threads;
    options.prefill_chunk = setup.chunk;
    options.max_sequences = setup.parallel;
    options.context = 2048;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    for (bool sampled : {false, true}) {
      std::vector<Output> outputs;
      for (const Result<Completion>& completion :
           (*engine)->generate_batch(requests(setup.mode, setup.k, sampled))) {
        ASSERT_TRUE(completion.ok()) << completion.error().message;
        outputs.emplace_back(completion->tokens, completion->logits_hash);
        accepted += completion->stats.accepted;
      }
      const auto [place, first] = expected.try_emplace(sampled, outputs);
      if (!first) {
        EXPECT_EQ(place->second, outputs) << fmt::format(
            "{} k {}, {} threads, chunk {}, {} in flight, sampled {}", spec_mode_name(setup.mode),
            setup.k, setup.threads, setup.chunk, setup.parallel, sampled);
      }
    }
  }
  EXPECT_GT(accepted, 10) << "speculation accepted nothing, so this showed nothing";
}

INSTANTIATE_TEST_SUITE_P(Files, RealModel,
                         testing::Values("gemma-3-270m-q4_k_m.gguf",
                                         "SmolLM2-135M-Instruct.Q4_1.gguf"),
                         [](const auto& param) { return param.index == 0 ? "Gemma3" : "SmolLm2"; });

}  // namespace
}  // namespace segue::e2e
