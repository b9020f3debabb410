// SPDX-License-Identifier: Apache-2.0
// What is refused for a GPU before weights are read, and what attention is planned with there;
// needs no GPU.
#include "model/place.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/assistant_config.h"

namespace segue::model {
namespace {

using ::testing::HasSubstr;

Place h200() {
  Place place;
  place.device = Device::kCuda;
  place.gpu.name = "NVIDIA H200";
  place.gpu.major = 9;
  place.gpu.multiprocessors = 132;
  place.gpu.memory_bytes = std::int64_t{139} << 30;
  return place;
}

Config published(const std::string& name) {
  const Result<Config> config = read_config(std::string(SEGUE_CASES_DIR) + "/" + name + ".json");
  EXPECT_TRUE(config.ok()) << config.error().message;
  return *config;
}

TEST(Place, OnAGpuWhatDoesNotRunIsRefusedByName) {
  const auto refusal = [](const Config& config) {
    const Status status = check_place(h200(), config);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(refusal(published("gemma-4-12b")), "");
  EXPECT_EQ(refusal(published("gemma-4-31b")), "");
  EXPECT_THAT(refusal(published("gemma-4-26b-a4b")), HasSubstr("128 experts"));
  EXPECT_EQ(refusal(published("gemma-4-e2b")), "");
  EXPECT_EQ(refusal(published("gemma-4-e4b")), "");
  Config odd = published("gemma-4-12b");
  odd.hidden = 3848;
  EXPECT_THAT(refusal(odd), HasSubstr("rows of 3848"));
  odd = published("gemma-4-12b");
  odd.layers[3].intermediate = 15361;
  EXPECT_THAT(refusal(odd), HasSubstr("an MLP of 15361"));
  EXPECT_TRUE(check_place(Place{}, published("gemma-4-26b-a4b")).ok());
}

TEST(Place, OnAGpuAnAssistantRunsUnlessItsRowsAreOdd) {
  const auto refusal = [](const AssistantConfig& config) {
    const Status status = check_place(h200(), config);
    return status.ok() ? std::string() : status.error().message;
  };
  const Result<AssistantConfig> of_31b =
      read_assistant_config(std::string(SEGUE_CASES_DIR) + "/gemma-4-31b-assistant.json");
  ASSERT_TRUE(of_31b.ok()) << of_31b.error().message;
  EXPECT_TRUE(fit(*of_31b, published("gemma-4-31b")).ok());
  for (const char* size : {"e2b", "e4b"}) {  // heads of centroids
    const Result<AssistantConfig> small =
        read_assistant_config(fmt::format("{}/gemma-4-{}-assistant.json", SEGUE_CASES_DIR, size));
    ASSERT_TRUE(small.ok()) << small.error().message;
    EXPECT_EQ(small->centroids, 2048);
    const auto reads = fit(*small, published(fmt::format("gemma-4-{}", size)));
    EXPECT_TRUE(reads.ok()) << reads.error().message;
#ifdef SEGUE_CUDA
    EXPECT_EQ(refusal(*small), "");
#endif
  }
  const std::string tiny = std::string(SEGUE_GOLDEN_DIR) + "/gemma4/";
#ifdef SEGUE_CUDA  // otherwise there is no kernel for its shape
  EXPECT_EQ(refusal(*of_31b), "");
  for (const char* variant : {"dense/assistant", "e2b/assistant"})
    EXPECT_EQ(refusal(read_assistant_config(tiny + variant).value()), "");
#endif
  AssistantConfig odd = *of_31b;
  odd.text.hidden = 1032;
  EXPECT_THAT(refusal(odd), HasSubstr("rows of 1032"));
}

TEST(Place, OnAGpuTheCacheIsBf16AndKernelsAreTheGpus) {
  EXPECT_TRUE(check_place(h200(), KvType::kBF16, nullptr).ok());
  const Status f32 = check_place(h200(), KvType::kF32, nullptr);
  ASSERT_FALSE(f32.ok());
  EXPECT_EQ(f32.error().code, ErrorCode::kUsage);
  EXPECT_THAT(f32.error().message, HasSubstr("kv is f32"));
  const attention::Kernel* const of_cpu = attention::kernels().front();
  ASSERT_EQ(of_cpu->device, Device::kCpu);
  const Status kernel = check_place(h200(), KvType::kBF16, of_cpu);
  ASSERT_FALSE(kernel.ok());
  EXPECT_THAT(kernel.error().message, HasSubstr(std::string(of_cpu->name)));
  EXPECT_TRUE(check_place(Place{}, KvType::kF32, of_cpu).ok());
}

TEST(Place, PlansAreForItsDeviceAndLayout) {
  const Config config = published("gemma-4-31b");
  const int global = config.find_kind("global");
  const attention::Shape there = attention_shape(h200(), config, global, KvType::kBF16, 64);
  EXPECT_EQ(there.layout, kv::Layout::kSwizzled8);
  EXPECT_EQ(device_facts(h200(), there, nullptr).kind, Device::kCuda);
  const attention::Shape here = attention_shape(Place{}, config, global, KvType::kBF16, 64);
  EXPECT_EQ(here.layout, kv::Layout::kTiled16);
  EXPECT_EQ(device_facts(Place{}, here, nullptr).kind, Device::kCpu);
  EXPECT_TRUE(h200().prompts_differ());
  EXPECT_FALSE(Place{}.prompts_differ());
}

TEST(Place, WeightsOnAGpuAreTwoBytesEach) {
  // Published: 30.7 billion parameters, 2 bytes each, all but norms and scales.
  const std::int64_t bytes = gpu_weight_bytes(published("gemma-4-31b"));
  EXPECT_NEAR(static_cast<double>(bytes) / 2e9, 30.7, 0.05);
  // Without the table of per-layer embeddings: 4.63 - 2.35 and 7.46 - 2.82 billion.
  EXPECT_NEAR(static_cast<double>(gpu_weight_bytes(published("gemma-4-e2b"))) / 2e9, 2.28, 0.02);
  EXPECT_NEAR(static_cast<double>(gpu_weight_bytes(published("gemma-4-e4b"))) / 2e9, 4.64, 0.02);
}

}  // namespace
}  // namespace segue::model
