// SPDX-License-Identifier: Apache-2.0
// The reader on files that other programs wrote; skipped when a file has not been fetched.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "format/gguf/describe.h"
#include "format/gguf/gguf.h"

namespace segue::gguf {
namespace {

std::string model_path(std::string_view name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string root =
      cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache";
  return root + "/segue/models/" + std::string(name);
}

struct Expected {
  std::string architecture;
  std::int64_t elements;
  std::map<std::string, int> tensors;  // per type
};

void check_model(std::string_view name, const Expected& expected) {
  const std::string path = model_path(name);
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is missing";
  const Result<File> file = File::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->text("general.architecture").value(), expected.architecture);
  std::map<std::string, int> tensors;
  std::int64_t elements = 0;
  for (const core::TensorView& tensor : file->tensors()) {
    ++tensors[std::string(core::dtype_info(tensor.dtype).name)];
    elements += tensor.elements();
  }
  EXPECT_EQ(tensors, expected.tensors);
  EXPECT_EQ(elements, expected.elements);
  const auto vocabulary = file->strings("tokenizer.ggml.tokens").value();
  const core::TensorView* embedding = file->find_tensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->shape[1], static_cast<std::int64_t>(vocabulary.size()));
  EXPECT_LT(describe(*file).dump().size(), 100'000u) << "abbreviated";
}

TEST(GgufModel, ReadsGemma3) {
  check_model("gemma-3-270m-q4_k_m.gguf",
              {"gemma3",
               268'098'176,
               {{"F32", 109}, {"Q4_K", 27}, {"Q5_0", 81}, {"Q6_K", 9}, {"Q8_0", 10}}});
}

TEST(GgufModel, ReadsSmolLm2) {
  check_model("SmolLM2-135M-Instruct.Q4_1.gguf",
              {"llama", 134'515'008, {{"F32", 61}, {"Q4_1", 210}, {"Q8_0", 1}}});
}

}  // namespace
}  // namespace segue::gguf
