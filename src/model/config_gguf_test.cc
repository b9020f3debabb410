// SPDX-License-Identifier: Apache-2.0
// The metadata of GGUF files: what is read, what has a default, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "format/gguf/writer.h"
#include "model/assistant_config.h"
#include "model/config.h"

namespace segue::model {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using U32 = std::uint32_t;
using Spoil = std::function<void(gguf::Writer&)>;

/// What every architecture has: 3 layers, 256 wide, 4 query heads, 8 tokens.
gguf::Writer file_of(const std::string& architecture) {
  gguf::Writer writer;
  const auto set = [&](const char* key, auto value) {
    writer.set(architecture + "." + key, value);
  };
  writer.set("general.architecture", architecture);
  set("block_count", U32{3});
  set("embedding_length", U32{256});
  set("feed_forward_length", U32{96});
  set("attention.head_count", U32{4});
  set("context_length", U32{128});
  if (architecture != "llama") {
    set("attention.head_count_kv", U32{2});
    set("attention.sliding_window", U32{32});
  }
  if (architecture.starts_with("gemma4"))
    set("attention.sliding_window_pattern", std::vector<bool>{true, true, false});
  writer.tensor("token_embd.weight", {256, 8}, std::vector<float>(2048));
  return writer;
}

gguf::Writer assistant_file() {
  gguf::Writer writer = file_of("gemma4-assistant");
  writer.set("gemma4-assistant.embedding_length_out", U32{32});
  writer.set("gemma4-assistant.use_ordered_embeddings", true);
  writer.set("gemma4-assistant.n_centroids", U32{4});
  writer.set("gemma4-assistant.centroid_top_k", U32{2});
  return writer;
}

Result<Config> read(const gguf::Writer& writer) {
  const std::vector<std::byte> bytes = writer.bytes();
  return config_from_gguf(gguf::File::parse(bytes, "file").value());
}

std::string refusal(gguf::Writer writer, const Spoil& spoil) {
  spoil(writer);
  const Result<Config> config = read(writer);
  return config.ok() ? "accepted" : config.error().message;
}

std::string assistant_refusal(const Spoil& spoil) {
  gguf::Writer writer = assistant_file();
  spoil(writer);
  const std::vector<std::byte> bytes = writer.bytes();
  const Result<AssistantConfig> config =
      assistant_from_gguf(gguf::File::parse(bytes, "file").value());
  return config.ok() ? "accepted" : config.error().message;
}

template <class T>
Spoil with(std::string key, T value) {
  return [key, value](gguf::Writer& writer) { writer.set(key, value); };
}

TEST(GgufConfig, KeysThatAreLeftOutHaveTheDefaultsOfTheirArchitecture) {
  const Config llama = read(file_of("llama")).value();
  ASSERT_EQ(llama.kinds.size(), 1u);
  EXPECT_EQ(llama.kinds[0].kv_heads, 4);
  EXPECT_EQ(llama.kinds[0].head_dim, 64);
  EXPECT_EQ(llama.kinds[0].rope_factor, 1.0);
  EXPECT_EQ(llama.name, "llama");
  EXPECT_EQ(llama.vocab, 8);
  EXPECT_TRUE(llama.tied);
  gguf::Writer writer = file_of("gemma3");
  writer.set("gemma3.block_count", U32{7});
  const Config gemma3 = read(writer).value();
  EXPECT_EQ(gemma3.kinds[0].window, 32);
  EXPECT_EQ(gemma3.kinds[1].rope_theta, 1e6);
  for (int layer = 0; layer < 7; ++layer)
    EXPECT_EQ(gemma3.layers[static_cast<std::size_t>(layer)].kind, layer == 5 ? 1 : 0) << layer;
}

TEST(GgufConfig, OneValueOrOneForEachLayer) {
  gguf::Writer writer = file_of("llama");
  writer.set("llama.feed_forward_length", std::vector<U32>{96, 128, 160});
  const Config config = read(writer).value();
  std::vector<std::int64_t> widths;
  for (const Layer& layer : config.layers) widths.push_back(layer.intermediate);
  EXPECT_THAT(widths, ElementsAre(96, 128, 160));
}

TEST(GgufConfig, WhatIsImpossibleIsRefusedWithTheKeyAndWhatIsAllowed) {
  struct Case {
    const char* architecture;
    Spoil spoil;
    const char *first, *second;
  };
  const Case cases[] = {
      {"llama", with("general.architecture", "mamba"), "mamba", "gemma3, gemma4, llama"},
      {"llama", with("llama.block_count", U32{0}), "block_count is 0", "1 to 4096"},
      {"llama", with("llama.block_count", "three"), "block_count", "string"},
      {"llama", with("llama.feed_forward_length", std::vector<U32>{96, 96}), "has 2 values",
       "3 layers"},
      {"llama", with("llama.feed_forward_length", U32{0}), "feed_forward_length is 0", "1 to"},
      {"llama", with("llama.attention.layer_norm_rms_epsilon", 2.0f), "epsilon is 2", "0 to 1"},
      {"llama", with("llama.attention.layer_norm_rms_epsilon", "small"), "epsilon", "string"},
      {"llama", with("llama.vocab_size", U32{9}), "vocab_size is 9", "8 rows"},
      {"llama", with("llama.rope.scaling.type", "yarn"), "'yarn'", "none, linear"},
      {"llama", with("llama.rope.scaling.type", U32{1}), "rope.scaling.type", "u32"},
      {"llama", with("llama.rope.dimension_count", U32{15}), "dimension_count is 15", "even"},
      {"llama", with("llama.rope.dimension_count", U32{66}), "dimension_count is 66", "2 to 64"},
      {"llama", with("llama.expert_count", U32{8}), "expert", ""},
      {"llama", with("llama.attention.head_count_kv", U32{3}), "4 query heads", "3 kv heads"},
      {"gemma3", with("gemma3.attention.sliding_window", U32{0}), "sliding_window is 0", "1 to"},
      {"gemma3", with("gemma3.rope.freq_base", 0.5f), "rope.freq_base is 0.5", "1 to"},
      {"gemma3", with("gemma3.rope.scaling.type", "yarn"), "'yarn'", "none, linear"},
      {"gemma3", with("gemma3.attn_logit_softcapping", 50.0f), "softcapping is 50", "supported: 0"},
      {"llama", with("split.count", std::uint16_t{3}), "one of 3 files", "one file with all"},
      {"gemma4", with("gemma4.attention.sliding_window_pattern", std::vector<bool>{true}),
       "has 1 values", "3 layers"},
      {"gemma4", with("gemma4.attention.sliding_window_pattern", "all"), "sliding_window_pattern",
       "string"},
      {"gemma4", with("gemma4.attention.head_count_kv", std::vector<U32>{2, 1, 1}),
       "gives layer 1 1 kv heads", "earlier layers of its kind 2"},
      {"gemma4", with("gemma4.attention.shared_kv_layers", U32{3}), "shared_kv_layers is 3",
       "0 to 2"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(refusal(file_of(c.architecture), c.spoil),
                AllOf(HasSubstr("'file'"), HasSubstr(c.first), HasSubstr(c.second)));
  }
  gguf::Writer empty;
  empty.set("general.architecture", "llama");
  EXPECT_THAT(refusal(empty, [](gguf::Writer&) {}), HasSubstr("llama.block_count"));
}

TEST(GgufConfig, LinearRopeScalingIsReadUnderBothNamesUnlessTheTypeIsNone) {
  for (const std::string architecture : {"llama", "gemma3", "gemma4"}) {
    const auto factor = [&](const std::vector<Spoil>& changes) {
      gguf::Writer writer = file_of(architecture);
      if (architecture == "gemma3") writer.set("gemma3.block_count", U32{6});
      for (const Spoil& change : changes) change(writer);
      const Config config = read(writer).value();
      EXPECT_EQ(config.kinds.front().rope_factor,
                architecture == "llama" ? config.kinds.back().rope_factor : 1.0);
      return config.kinds.back().rope_factor;
    };
    const Spoil old = with(architecture + ".rope.scale_linear", 2.0f);
    const Spoil four = with(architecture + ".rope.scaling.factor", 4.0f);
    EXPECT_EQ(factor({}), 1.0);
    EXPECT_EQ(factor({old}), 2.0);
    EXPECT_EQ(factor({four}), 4.0);
    EXPECT_EQ(factor({old, four, with(architecture + ".rope.scaling.type", "linear")}), 4.0);
    EXPECT_EQ(factor({old, four, with(architecture + ".rope.scaling.type", "none")}), 1.0);
  }
}

/// Of a model that was made for another architecture's forward pass; 0.3 and 3 are never neutral.
TEST(GgufConfig, KeysThatWouldChangeTheOutputAreRefusedByNameAndPassWithTheirNeutralValues) {
  struct Key {
    const char* name;
    std::vector<double> neutral;
  };
  for (const std::string architecture : {"llama", "gemma3", "gemma4"}) {
    const bool llama = architecture == "llama";
    const Config config = read(file_of(architecture)).value();
    const double dim = config.kinds.back().head_dim;
    std::vector<Key> keys{{"attention.causal", {1}},
                          {"attention.clamp_kqv", {0}},
                          {"attention.max_alibi_bias", {0}},
                          {"attention.output_scale", {0, 1}},
                          {"attention.scale", {0, config.attention_scale}},
                          {"attention.temperature_length", {0}},
                          {"attention.temperature_scale", {0}},
                          {"attention.value_length", {dim}},
                          {"attn_logit_softcapping", {0}},
                          {"embedding_scale", {0, llama ? 1.0 : 16.0}},
                          {"expert_gating_func", {0, 1}},
                          {"expert_group_count", {0, 1}},
                          {"expert_shared_count", {0}},
                          {"expert_weights_scale", {0, 1}},
                          {"logit_scale", {0, 1}},
                          {"residual_scale", {0, 1}},
                          {"rope.dimension_sections", {0}},
                          {"rope.scaling.alpha", {0, 1}},
                          {"rope.scaling.attn_factor", {1}},
                          {"router_logit_softcapping", {0}},
                          {"swin_norm", {0}},
                          {"use_parallel_residual", {0}}};
    if (llama) keys.push_back({"attention.sliding_window", {0, 128, 4096}});
    if (!llama) keys.push_back({"attention.value_length_swa", {256}});
    if (!llama) keys.push_back({"rope.dimension_count_swa", {256}});
    if (!llama) keys.push_back({"rope.local.freq_base", {1e4}});
    if (architecture == "gemma4") {
      keys.push_back({"rope.dimension_count", {512}});
      keys.push_back({"rope.global.freq_base", {1e6}});
    } else {
      keys.push_back({"attention.shared_kv_layers", {0}});
      keys.push_back({"expert_count", {0}});
    }
    for (const Key& key : keys) {
      const std::string name = architecture + "." + key.name;
      for (const double value : key.neutral) {
        const bool whole = value == std::floor(value);
        const Spoil set =
            whole ? with(name, static_cast<U32>(value)) : with(name, static_cast<float>(value));
        EXPECT_EQ(refusal(file_of(architecture), set), "accepted") << name << " " << value;
      }
      EXPECT_THAT(refusal(file_of(architecture), with(name, U32{3})),
                  AllOf(HasSubstr("'file': " + name + " is 3"), HasSubstr("supported: ")));
      EXPECT_THAT(refusal(file_of(architecture), with(name, "some")), HasSubstr("string"));
      if (std::string_view(key.name) == "attention.sliding_window") continue;
      EXPECT_THAT(refusal(file_of(architecture), with(name, 0.3f)), HasSubstr(name + " is 0.3"));
      EXPECT_THAT(refusal(file_of(architecture), with(name, std::vector<U32>{3, 3, 3})),
                  HasSubstr(name + " is 3"));
    }
  }
  EXPECT_THAT(refusal(file_of("llama"), with("llama.attention.causal", false)),
              HasSubstr("llama.attention.causal is 0"));
  EXPECT_EQ(refusal(file_of("llama"), with("llama.attention.causal", true)), "accepted");
  EXPECT_EQ(refusal(file_of("llama"), with("llama.pooling_type", U32{2})), "accepted");
  EXPECT_EQ(refusal(file_of("llama"), with("llama.tensor_data_layout", "any")), "accepted");
  gguf::Writer capped = file_of("llama");
  capped.set("llama.final_logit_softcapping", 30.0f);
  EXPECT_EQ(read(capped)->final_softcap, 30.0f);
}

TEST(GgufConfig, TheScoresOfGemma3AreScaledByTheHeadDimButForTheSizeOf62Layers) {
  const auto scale = [](U32 layers, U32 head_dim) {
    gguf::Writer writer = file_of("gemma3");
    writer.set("gemma3.block_count", layers);
    writer.set("gemma3.embedding_length", U32{5376});
    writer.set("gemma3.attention.head_count", U32{32});
    writer.set("gemma3.attention.key_length", head_dim);
    return read(writer).value().attention_scale;
  };
  for (const U32 layers : {18u, 26u, 34u, 48u}) {
    EXPECT_EQ(scale(layers, 256), 1.0f / 16) << layers;
  }
  EXPECT_EQ(scale(62, 128), 1.0f / std::sqrt(168.0f));
}

TEST(GgufConfig, Gemma3ReadsTheScalingAndTheCapThatAFileStates) {
  gguf::Writer writer = file_of("gemma3");
  writer.set("gemma3.block_count", U32{6});
  writer.set("gemma3.rope.scaling.factor", 8.0f);
  EXPECT_EQ(read(writer)->kinds[0].rope_factor, 1.0);
  EXPECT_EQ(read(writer)->kinds[1].rope_factor, 8.0);
  EXPECT_EQ(read(writer)->final_softcap, 0.0f);
  writer.set("gemma3.rope.scaling.type", "linear");
  EXPECT_EQ(read(writer)->kinds[1].rope_factor, 8.0);
  writer.set("gemma3.rope.scaling.type", "none");
  writer.set("gemma3.final_logit_softcapping", 30.0f);
  EXPECT_EQ(read(writer)->kinds[1].rope_factor, 1.0);
  EXPECT_EQ(read(writer)->final_softcap, 30.0f);
}

TEST(GgufConfig, AnAssistantHasNoKeysOfItsOwnAndAHeadThatDividesTheVocabulary) {
  const std::vector<std::byte> bytes = assistant_file().bytes();
  const AssistantConfig config =
      assistant_from_gguf(gguf::File::parse(bytes, "file").value()).value();
  EXPECT_EQ(config.backbone, 32);
  EXPECT_EQ(config.centroids, 4);
  EXPECT_EQ(config.centroid_top, 2);
  for (const Layer& layer : config.text.layers) EXPECT_FALSE(layer.owns_kv);
  const auto key = [](const char* name) { return std::string("gemma4-assistant.") + name; };
  EXPECT_THAT(assistant_refusal(with(key("embedding_length_out"), U32{0})),
              AllOf(HasSubstr("embedding_length_out is 0"), HasSubstr("1 to 1048576")));
  EXPECT_THAT(assistant_refusal(with(key("use_ordered_embeddings"), U32{1})), HasSubstr("u32"));
  EXPECT_THAT(assistant_refusal(with(key("n_centroids"), U32{3})), HasSubstr("8 tokens in 3"));
  EXPECT_THAT(assistant_refusal(with(key("centroid_top_k"), U32{5})), HasSubstr("5 of 4"));
  EXPECT_THAT(assistant_refusal(with(key("embedding_length_per_layer_input"), U32{16})),
              HasSubstr("per-layer embeddings"));
  EXPECT_THAT(assistant_refusal(with(key("final_logit_softcapping"), 30.0f)),
              HasSubstr("final_logit_softcapping is 30"));
  gguf::Writer model = file_of("gemma4");
  const std::vector<std::byte> model_bytes = model.bytes();
  const Result<AssistantConfig> no_assistant =
      assistant_from_gguf(gguf::File::parse(model_bytes, "file").value());
  ASSERT_FALSE(no_assistant.ok());
  EXPECT_THAT(no_assistant.error().message, HasSubstr("gemma4"));
}

}  // namespace
}  // namespace segue::model
