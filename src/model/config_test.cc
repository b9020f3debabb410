// SPDX-License-Identifier: Apache-2.0
// config.json of Gemma 4: the published sizes, sparse files, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "model/config.h"

namespace segue::model {
namespace {

using core::Json;
using testing::HasSubstr;

Config published(const std::string& name) {
  const Result<Config> config = read_config(std::string(SEGUE_CASES_DIR) + "/" + name + ".json");
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? *config : Config{};
}

/// Bytes of K and V of one token in one layer, bf16.
std::int64_t key_bytes(const LayerKind& kind) {
  return std::int64_t{2} * 2 * kind.kv_heads * kind.head_dim;
}

struct Size {
  const char* name;
  int layers, sliding_owners, global_owners, window;
  std::int64_t sliding_bytes, global_bytes, last_intermediate;
};

TEST(Config, PublishedSizesHaveTheirShapes) {
  constexpr Size kSizes[] = {
      {"gemma-4-e2b", 35, 12, 3, 512, 1024, 2048, 12288},
      {"gemma-4-e4b", 42, 20, 4, 512, 2048, 4096, 10240},
      {"gemma-4-12b", 48, 40, 8, 1024, 8192, 2048, 15360},
      {"gemma-4-26b-a4b", 30, 25, 5, 1024, 8192, 4096, 2112},
      {"gemma-4-31b", 60, 50, 10, 1024, 16384, 8192, 21504},
  };
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.name);
    const Config config = published(size.name);
    ASSERT_EQ(config.kinds.size(), 2u);
    const LayerKind& sliding = config.kinds[0];
    const LayerKind& global = config.kinds[1];
    EXPECT_EQ(config.layer_count(), size.layers);
    EXPECT_EQ(config.kv_layers(0), size.sliding_owners);
    EXPECT_EQ(config.kv_layers(1), size.global_owners);
    EXPECT_EQ(sliding.window, size.window);
    EXPECT_EQ(global.window, 0);
    EXPECT_EQ(key_bytes(sliding), size.sliding_bytes);
    EXPECT_EQ(key_bytes(global), size.global_bytes);
    EXPECT_EQ(config.layers.back().intermediate, size.last_intermediate);
    EXPECT_EQ(config.layers.back().kind, 1);
    EXPECT_EQ(sliding.rotary, 256);
    EXPECT_EQ(global.rotary, 128);
    EXPECT_EQ(global.rotary_span, 512);
    EXPECT_EQ(config.attention_scale, 1.0f);
    EXPECT_EQ(config.final_softcap, 30.0f);
  }
  EXPECT_EQ(published("gemma-4-26b-a4b").experts.used, 8);
  EXPECT_EQ(published("gemma-4-e2b").per_layer_input, 256);
}

TEST(Config, SharedLayersReadTheLastOwnerOfTheirKind) {
  const Config config = published("gemma-4-e2b");
  // Layer 13 is the last sliding one with keys of its own, 14 the last global one.
  EXPECT_TRUE(config.layers[13].owns_kv && config.layers[14].owns_kv);
  for (std::size_t layer = 15; layer < config.layers.size(); ++layer) {
    const Layer& shared = config.layers[layer];
    EXPECT_FALSE(shared.owns_kv);
    EXPECT_EQ(shared.kv_layer, config.layers[shared.kind == 0 ? 13 : 14].kv_layer) << layer;
  }
}

Result<Config> parse(const Json& json) { return config_from_json(json, "config.json"); }

Json object(std::initializer_list<std::pair<const char*, Json>> members) {
  Json json = Json::object();
  for (const auto& [name, value] : members) json.set(name, value);
  return json;
}

TEST(Config, KeysThatAreLeftOutHaveThePublishedDefaults) {
  const Result<Config> config = parse(object({{"model_type", "gemma4_text"}}));
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->hidden, 2304);
  EXPECT_EQ(config->layer_count(), 30);
  EXPECT_EQ(config->kinds[0].window, 512);
  EXPECT_EQ(config->kinds[1].head_dim, 512);
  EXPECT_EQ(config->per_layer_input, 256);
  EXPECT_EQ(config->final_softcap, 0.0f);
  EXPECT_EQ(config->embedding_scale, 48.0f);
  EXPECT_EQ(config->layers[5].kind, 1);
  EXPECT_EQ(config->layers[6].kind, 0);
}

TEST(Config, NewerFilesNameTheLayersThatDiffer) {
  Json overrides = Json::object();
  for (int layer = 5; layer < 30; layer += 6) {
    overrides.set(std::to_string(layer), object({{"head_dim", 128}, {"num_key_value_heads", 1}}));
  }
  const Json text = object({{"model_type", "gemma4_text"},
                            {"head_dim", 64},
                            {"attention_k_eq_v", true},
                            {"per_layer_config", overrides}});
  const Result<Config> config = parse(text);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->kinds[0].head_dim, 64);
  EXPECT_EQ(config->kinds[0].kv_heads, 4);
  EXPECT_EQ(config->kinds[1].head_dim, 128);
  EXPECT_EQ(config->kinds[1].kv_heads, 1);
  EXPECT_TRUE(config->kinds[1].v_from_k);
}

TEST(Config, WhatTheForwardPassDoesNotDoIsRefusedByName) {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"model_type", "gemma3_text", "model_type is \"gemma3_text\""},
      {"model_type", "gemma4_assistant", "drafts for a model"},
      {"hidden_size", -1, "hidden_size is -1; supported: integers from 1"},
      {"hidden_size", "wide", "hidden_size is \"wide\""},
      {"hidden_activation", "silu", "hidden_activation is \"silu\""},
      {"attention_bias", true, "attention_bias is true; supported: false"},
      {"use_bidirectional_attention", "all", "use_bidirectional_attention is \"all\""},
      {"layer_types", Json::array(), "layer_types has 0 entries; num_hidden_layers is 30"},
      {"head_dim", 60, "head_dim 60; supported: 64"},
      {"num_attention_heads", 6, "6 query heads on 4 kv heads"},
      {"num_kv_shared_layers", 27, "shares the keys of an earlier layer"},
      {"enable_moe_block", true, "must be there"},
      {"rope_parameters",
       object({{"full_attention", object({{"rope_type", "yarn"}, {"rope_theta", 1e6}})}}),
       "rope_parameters.full_attention.rope_type is \"yarn\""},
      {"rope_parameters", "default", "rope_parameters is \"default\"; supported: an object"},
      {"rope_parameters", object({{"full_attention", 1e6}}),
       "rope_parameters.full_attention is 1000000.0; supported: an object"},
      {"rope_parameters", object({{"rope_theta", 1e6}}),
       "rope_parameters.rope_theta is 1000000.0; supported in rope_parameters: sliding_attention"},
      {"rope_scaling", object({{"rope_type", "yarn"}, {"factor", 4}}),
       "rope_scaling is {\"rope_type\":\"yarn\",\"factor\":4}; supported: null"},
      {"vocab_size_per_layer_input", 100,
       "vocab_size_per_layer_input is 100; vocab_size is 262144"},
      {"quantization_config", object({{"quant_method", "gptq"}}), "gptq"},
      {"per_layer_config", object({{"5", object({{"head_dim", 128}})}}), "earlier layers"},
  };
  for (const Case& c : cases) {
    const Json text = object({{"model_type", "gemma4_text"}}).set(c.key, c.value);
    const Result<Config> config = parse(text);
    ASSERT_FALSE(config.ok()) << c.key << " " << c.value.dump();
    EXPECT_THAT(config.error().message, HasSubstr(c.message));
    EXPECT_THAT(config.error().message, HasSubstr("config.json"));
  }
  EXPECT_FALSE(parse(Json::array()).ok());
}

}  // namespace
}  // namespace segue::model
