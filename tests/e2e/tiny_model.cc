// SPDX-License-Identifier: Apache-2.0
// Random weights from a counter; F32 and Q8_0, so that both product paths run.
#include "e2e/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/json.h"
#include "core/temporary_folder.h"

namespace segue::e2e {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float symmetric() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f; }

 private:
  std::uint64_t state_;
};

void add_vector(gguf::Writer& writer, const std::string& name, int size, float offset,
                Random& random) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) value = offset + 0.1f * random.symmetric();
  writer.tensor(name, {size}, values);
}

void add_f32(gguf::Writer& writer, const std::string& name, int inputs, int outputs,
             Random& random) {
  std::vector<float> values(static_cast<std::size_t>(inputs) * static_cast<std::size_t>(outputs));
  const float scale = 1.7f / std::sqrt(static_cast<float>(inputs));
  for (float& value : values) value = scale * random.symmetric();
  writer.tensor(name, {inputs, outputs}, values);
}

void add_q8(gguf::Writer& writer, const std::string& name, int inputs, int outputs,
            Random& random) {
  CHECK(inputs % 32 == 0);
  std::vector<std::byte> blocks;
  const std::uint16_t scale =
      core::f32_to_f16(1.7f / std::sqrt(static_cast<float>(inputs)) / 127.0f);
  for (int block = 0; block < inputs / 32 * outputs; ++block) {
    std::array<std::byte, 34> bytes;
    std::memcpy(bytes.data(), &scale, 2);
    for (std::size_t i = 2; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(random.next() >> 56);
    blocks.insert(blocks.end(), bytes.begin(), bytes.end());
  }
  writer.tensor(name, core::DType::kQ8_0, {inputs, outputs}, blocks);
}

void add_vocabulary(gguf::Writer& writer, const TinyModel& model) {
  std::vector<std::string> tokens{"<pad>", "<eos>", "<bos>", "<unk>"};
  const auto size = static_cast<std::size_t>(model.vocab);
  std::vector<float> scores(size, 0.0f);
  std::vector<std::int32_t> types{3, 3, 3, 2};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(6);
  }
  tokens.resize(size);
  types.resize(size);
  std::ranges::copy(model.first_tokens, tokens.begin());
  if (!model.chat_template.empty()) writer.set("tokenizer.chat_template", model.chat_template);
  writer.set("tokenizer.ggml.model", "llama");
  writer.set("tokenizer.ggml.tokens", tokens);
  writer.set("tokenizer.ggml.scores", scores);
  writer.set("tokenizer.ggml.token_type", types);
  writer.set("tokenizer.ggml.bos_token_id", std::uint32_t{2});
  writer.set("tokenizer.ggml.eos_token_id", std::uint32_t{1});
  writer.set("tokenizer.ggml.unknown_token_id", std::uint32_t{3});
  writer.set("tokenizer.ggml.add_bos_token", true);
  writer.set("tokenizer.ggml.add_space_prefix", false);
}

}  // namespace

gguf::Writer tiny_writer(const TinyModel& model) {
  gguf::Writer writer;
  Random random(model.seed);
  const bool gemma = model.architecture == "gemma3";
  const auto key = [&](std::string_view name) {
    return fmt::format("{}.{}", model.architecture, name);
  };
  const auto number = [](int value) { return static_cast<std::uint32_t>(value); };
  writer.set("general.architecture", model.architecture);
  writer.set("general.name", "tiny " + model.architecture);
  writer.set(key("block_count"), number(model.layers));
  writer.set(key("context_length"), number(model.context));
  writer.set(key("embedding_length"), number(model.hidden));
  writer.set(key("feed_forward_length"), number(model.intermediate));
  writer.set(key("attention.head_count"), number(model.q_heads));
  writer.set(key("attention.head_count_kv"), number(model.kv_heads));
  writer.set(key("attention.key_length"), number(model.head_dim));
  writer.set(key("attention.value_length"), number(model.head_dim));
  writer.set(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  writer.set(key("rope.freq_base"), gemma ? 1e6f : 1e4f);
  if (gemma) writer.set(key("attention.sliding_window"), number(model.window));
  add_vocabulary(writer, model);
  const float norm = 1.0f;
  const int q_size = model.q_heads * model.head_dim;
  const int kv_size = model.kv_heads * model.head_dim;
  add_q8(writer, "token_embd.weight", model.hidden, model.vocab, random);
  if (!gemma) add_f32(writer, "output.weight", model.hidden, model.vocab, random);
  add_vector(writer, "output_norm.weight", model.hidden, 3.0f, random);
  for (int layer = 0; layer < model.layers; ++layer) {
    const auto name = [layer](std::string_view part) {
      return fmt::format("blk.{}.{}.weight", layer, part);
    };
    add_vector(writer, name("attn_norm"), model.hidden, norm, random);
    add_q8(writer, name("attn_q"), model.hidden, q_size, random);
    add_q8(writer, name("attn_k"), model.hidden, kv_size, random);
    add_f32(writer, name("attn_v"), model.hidden, kv_size, random);
    add_q8(writer, name("attn_output"), q_size, model.hidden, random);
    add_vector(writer, name("ffn_norm"), model.hidden, norm, random);
    add_q8(writer, name("ffn_gate"), model.hidden, model.intermediate, random);
    add_f32(writer, name("ffn_up"), model.hidden, model.intermediate, random);
    add_q8(writer, name("ffn_down"), model.intermediate, model.hidden, random);
    if (gemma) {
      add_vector(writer, name("attn_q_norm"), model.head_dim, norm, random);
      add_vector(writer, name("attn_k_norm"), model.head_dim, norm, random);
      add_vector(writer, name("post_attention_norm"), model.hidden, norm, random);
      add_vector(writer, name("post_ffw_norm"), model.hidden, norm, random);
    }
  }
  return writer;
}

gguf::Writer tiny_assistant_writer(const TinyModel& target) {
  gguf::Writer writer;
  Random random(target.seed + 77);
  const int hidden = 32;
  const int intermediate = 64;
  const auto key = [](std::string_view name) { return fmt::format("gemma4-assistant.{}", name); };
  const auto number = [](int value) { return static_cast<std::uint32_t>(value); };
  writer.set("general.architecture", "gemma4-assistant");
  writer.set(key("block_count"), number(3));
  writer.set(key("context_length"), number(target.context));
  writer.set(key("embedding_length"), number(hidden));
  writer.set(key("embedding_length_out"), number(target.hidden));
  writer.set(key("feed_forward_length"), number(intermediate));
  writer.set(key("attention.head_count"), number(target.q_heads));
  writer.set(key("attention.head_count_kv"), number(target.kv_heads));
  writer.set(key("attention.key_length"), number(target.head_dim));
  writer.set(key("attention.key_length_swa"), number(target.head_dim));
  writer.set(key("attention.sliding_window"), number(target.window));
  writer.set(key("attention.sliding_window_pattern"), std::vector<bool>{true, true, false});
  writer.set(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  add_f32(writer, "nextn.pre_projection.weight", 2 * target.hidden, hidden, random);
  add_f32(writer, "nextn.post_projection.weight", hidden, target.hidden, random);
  add_q8(writer, "token_embd.weight", hidden, kTinyVocab, random);
  add_vector(writer, "output_norm.weight", hidden, 3.0f, random);
  const int q_size = target.q_heads * target.head_dim;
  for (int layer = 0; layer < 3; ++layer) {
    const auto name = [layer](std::string_view part) {
      return fmt::format("blk.{}.{}.weight", layer, part);
    };
    for (const char* norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
      add_vector(writer, name(norm), hidden, 1.0f, random);
    add_vector(writer, name("attn_q_norm"), target.head_dim, 0.2f, random);
    add_f32(writer, name("attn_q"), hidden, q_size, random);
    add_q8(writer, name("attn_output"), q_size, hidden, random);
    add_f32(writer, name("ffn_gate"), hidden, intermediate, random);
    add_q8(writer, name("ffn_up"), hidden, intermediate, random);
    add_f32(writer, name("ffn_down"), intermediate, hidden, random);
    writer.tensor(name("layer_output_scale"), {1}, std::vector<float>{0.7f});
  }
  return writer;
}

std::string write_tiny_assistant(const TinyModel& target) {
  const std::string path = temporary_path(fmt::format("assistant-{}.gguf", target.seed));
  const Status status = tiny_assistant_writer(target).write(path);
  CHECK(status.ok());
  return path;
}

std::string temporary_path(const std::string& name) {
  static const core::TemporaryFolder folder;
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string file = name;
  if (test != nullptr) file = fmt::format("{}-{}-{}", test->test_suite_name(), test->name(), name);
  std::replace(file.begin(), file.end(), '/', '_');
  return folder.file(file);
}

std::string write_tiny(const TinyModel& model, const std::string& name) {
  const std::string path =
      temporary_path(fmt::format("{}-{}-{}.gguf", name, model.architecture, model.seed));
  const Status status = tiny_writer(model).write(path);
  CHECK(status.ok());
  return path;
}

std::string real_model(const std::string& file) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string folder =
      cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache";
  const std::string path = folder + "/segue/models/" + file;
  return std::filesystem::exists(path) ? path : std::string();
}

std::vector<std::int32_t> repetitive_tokens(std::int64_t count, std::uint64_t seed, int vocab) {
  Random random(seed);
  std::vector<std::int32_t> phrase;
  for (int i = 0; i < 23; ++i) {
    phrase.push_back(
        4 + static_cast<std::int32_t>(random.next() % static_cast<std::uint64_t>(vocab - 4)));
  }
  std::vector<std::int32_t> tokens{2};
  while (static_cast<std::int64_t>(tokens.size()) < count) {
    const bool noise = random.next() % 16 == 0;
    tokens.push_back(
        noise ? 4 + static_cast<std::int32_t>(random.next() % static_cast<std::uint64_t>(vocab - 4))
              : phrase[tokens.size() % phrase.size()]);
  }
  return tokens;
}

namespace {

core::Json golden_config(const std::string& folder) {
  const Result<std::string> text =
      core::read_file(std::string(SEGUE_GOLDEN_DIR) + "/gemma4/" + folder + "/config.json");
  EXPECT_TRUE(text.ok()) << text.error().message;
  return core::Json::parse(*text).value();
}

std::string write_config(const core::Json& json, const std::string& name) {
  const std::string path = temporary_path(name + ".json");
  EXPECT_TRUE(core::write_file(path, json.dump(1)).ok());
  return path;
}

}  // namespace

std::string tiny_gemma4(const std::string& variant) {
  core::Json json = golden_config(variant);
  core::Json inner = json.find("text_config") != nullptr ? *json.find("text_config") : json;
  inner.set("vocab_size", kTinyVocab);
  if (*inner.find("hidden_size_per_layer_input")->as_int() > 0) {
    inner.set("hidden_size_per_layer_input", 32).set("vocab_size_per_layer_input", kTinyVocab);
  }
  if (json.find("text_config") != nullptr) {
    json.set("text_config", inner);
  } else {
    json = inner;
  }
  return write_config(json, variant);
}

std::string tiny_gemma4_assistant(const std::string& variant) {
  core::Json json = golden_config(variant + "/assistant");
  core::Json inner = *json.find("text_config");
  json.set("text_config", inner.set("vocab_size", kTinyVocab));
  if (json.find("num_centroids") != nullptr) json.set("num_centroids", 20);  // 13 tokens each
  return write_config(json, variant + "-assistant");
}

}  // namespace segue::e2e
