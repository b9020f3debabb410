// SPDX-License-Identifier: Apache-2.0
// The second promise on a GPU: tokens and logits hashes do not depend on speculation, on the
// requests beside one, on the prefill chunk, the page size or the policy; nor on whether a prompt
// continues a cache.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "core/file.h"
#include "core/json.h"
#include "device/device.h"
#include "e2e/tiny_model.h"
#include "segue/engine.h"

namespace segue::e2e {
namespace {

struct Output {
  std::vector<std::int32_t> tokens;
  std::uint64_t hash = 0;
  friend bool operator==(const Output&, const Output&) = default;
};

struct Setting {
  SpecMode mode;
  int k;
};

/// Those with an assistant where there is one.
std::vector<Setting> settings(bool assistant) {
  std::vector<Setting> all{{SpecMode::kOff, 0},   {SpecMode::kNgram, 1}, {SpecMode::kNgram, 2},
                           {SpecMode::kNgram, 4}, {SpecMode::kNgram, 8}, {SpecMode::kDraft, 3},
                           {SpecMode::kAuto, 8}};
  if (!assistant) return all;
  for (const int k : {1, 2, 4, 8}) all.push_back({SpecMode::kMtp, k});
  return all;
}

class GpuEngine : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto gpu = device::gpu_facts(); !gpu.ok()) GTEST_SKIP() << gpu.error().message;
  }
  /// The demonstration target, its shape with random 4-bit weights, a tiny random Gemma 4 E2B or
  /// E4B, or a small random model of that architecture.
  static bool pair() { return GetParam() == "pair"; }
  static bool per_layer() { return GetParam() == "e2b" || GetParam() == "e4b"; }
  static bool four_bit() { return pair() || GetParam() == "fourbit" || per_layer(); }
  static bool has_assistant() { return four_bit() && GetParam() != "e4b"; }
  static std::string pair_folder() { return std::string(SEGUE_MODELS_DIR) + "/segue-pair/"; }
  static std::string model() {
    if (pair()) return pair_folder() + "target";
    if (GetParam() == "fourbit") return "random:3:" + pair_folder() + "target/config.json";
    if (per_layer()) return "random:3:" + tiny_gemma4(GetParam());
    TinyModel tiny;
    tiny.architecture = GetParam();
    return write_tiny(tiny);
  }
  static std::string assistant() {
    if (pair()) return pair_folder() + "assistant";
    if (GetParam() == "e2b") return tiny_gemma4_assistant(GetParam());
    return has_assistant() ? pair_folder() + "assistant/config.json" : "";
  }
  /// Around the window, pages, the chunk.
  static std::vector<std::vector<std::int32_t>> prompts() {
    std::vector<std::vector<std::int32_t>> out;
    if (!pair()) {
      for (const std::int64_t length : {1, 17, 65, 200})
        out.push_back(repetitive_tokens(length, 100 + static_cast<std::uint64_t>(length)));
      return out;
    }
    const Result<std::string> text =
        core::read_file(std::string(SEGUE_GOLDEN_DIR) + "/segue-pair.json");
    EXPECT_TRUE(text.ok());
    const core::Json json = core::Json::parse(*text).value();
    std::vector<std::int32_t> all;
    for (const core::Json& token : *json.find("prompt")->as_array())
      all.push_back(static_cast<std::int32_t>(*token.as_int()));
    for (const auto& [begin, end] : {std::pair{0, 40}, std::pair{30, 287}, std::pair{10, 600}})
      out.emplace_back(all.begin() + begin, all.begin() + end);
    return out;
  }
  static Request request(const std::vector<std::int32_t>& prompt, float temperature,
                         const Setting& setting) {
    Request out;
    out.prompt_tokens = prompt;
    out.max_tokens = 40;
    out.sampling.temperature = temperature;
    out.sampling.seed = 11;
    out.spec = setting.mode;
    out.draft_tokens = setting.k;
    out.ignore_eos = true;
    out.logits_hash = true;
    return out;
  }
  static Output output_of(const Result<Completion>& completion) {
    EXPECT_TRUE(completion.ok()) << (completion.ok() ? "" : completion.error().message);
    if (!completion.ok()) return {};
    return {completion->tokens, completion->logits_hash};
  }
};

TEST_P(GpuEngine, TokensAndLogitsDependOnTheRequestAlone) {
  const std::string path = model();
  std::map<std::pair<float, std::size_t>, Output> expected;
  std::int64_t drafted = 0, accepted = 0;
  std::int64_t first_drafts = 0, first_accepted = 0;  // of the assistant's
  struct Engines {
    int chunk, parallel, page;
    const char* policy;
  };
  for (const Engines& e :
       {Engines{512, 1, 0, "segue"}, Engines{64, 3, 16, "segue"}, Engines{512, 4, 24, "stock"}}) {
    EngineOptions options;
    options.device = Device::kCuda;
    options.model = path;
    options.assistant = assistant();
    options.draft_model = path;
    options.prefill_chunk = e.chunk;
    options.max_sequences = e.parallel;
    options.page_size = e.page;
    options.policy = e.policy;
    options.context = 1000;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const std::string line = (*engine)->start_line(std::vector<Request>(1));
    const std::string weights =
        fmt::format("weights {}{}", four_bit() ? "4 bit and bf16" : "bf16",
                    per_layer() ? ", per-layer embeddings on the host" : "");
    for (const std::string& part : {(*engine)->device_name(), std::string("cuda."), weights})
      EXPECT_NE(line.find(part), std::string::npos) << line;
    for (const float temperature : {0.0f, 0.8f}) {
      for (const Setting& setting : settings(has_assistant())) {
        std::vector<Request> batch;
        for (const std::vector<std::int32_t>& prompt : prompts())
          batch.push_back(request(prompt, temperature, setting));
        const std::vector<Result<Completion>> completions = (*engine)->generate_batch(batch);
        for (std::size_t i = 0; i < completions.size(); ++i) {
          const Output found = output_of(completions[i]);
          EXPECT_EQ(found, expected.try_emplace({temperature, i}, found).first->second)
              << fmt::format("prompt {}, T {}, {} k {}, chunk {}, {} in flight, page {}, {}", i,
                             temperature, spec_mode_name(setting.mode), setting.k, e.chunk,
                             e.parallel, e.page, e.policy);
          if (!completions[i].ok()) continue;
          drafted += completions[i]->stats.drafted;
          accepted += completions[i]->stats.accepted;
          if (setting.mode != SpecMode::kMtp) continue;
          first_drafts += completions[i]->stats.drafted_per_position.at(0);
          const auto& per_position = completions[i]->stats.accepted_per_position;
          first_accepted += per_position.empty() ? 0 : per_position[0];
        }
      }
    }
  }
  // The matrix proves something only if drafts were both accepted and rejected.
  EXPECT_GT(accepted, 100);
  EXPECT_GT(drafted - accepted, 100);
  EXPECT_EQ(first_drafts > 0, has_assistant());
  EXPECT_TRUE(!pair() || first_accepted >= first_drafts / 2);  // that one is trained
}

TEST_P(GpuEngine, APromptThatContinuesTheLastHasTheTokensOfAFreshOne) {
  EngineOptions options;
  options.device = Device::kCuda;
  options.model = model();
  options.assistant = assistant();
  options.context = 1000;
  const Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const std::vector<std::int32_t> first = prompts().back();
  const Result<Completion> reply = (*engine)->generate(request(first, 0.8f, {SpecMode::kAuto, 8}));
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  std::vector<std::int32_t> second = first;
  second.insert(second.end(), reply->tokens.begin(), reply->tokens.end());
  const Request next = request(second, 0.8f, {SpecMode::kAuto, 8});
  const Output continued = output_of((*engine)->generate(next));
  EXPECT_EQ(continued, output_of((*engine)->generate_batch(std::span(&next, 1))[0]));
}

INSTANTIATE_TEST_SUITE_P(Models, GpuEngine,
                         testing::Values("gemma3", "llama", "pair", "fourbit", "e2b", "e4b"),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace segue::e2e
