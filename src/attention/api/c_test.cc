// SPDX-License-Identifier: Apache-2.0
// The C ABI: struct sizes of older and newer headers, codes, messages, and one step.
#include "segue/c.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/tolerance.h"

namespace {

segue_attention_config small_config() {
  segue_attention_config config;
  segue_attention_config_init(&config);
  config.threads = 1;
  config.q_heads = 2;
  config.kv_heads = 1;
  config.head_dim = 64;
  config.kv_type = SEGUE_F32;
  config.io_type = SEGUE_F32;
  config.layout = SEGUE_LAYOUT_HEAD_MAJOR;
  config.page_size = 8;
  return config;
}

TEST(CAbi, RunsAStepAndDestroysInAnyOrder) {
  EXPECT_EQ(segue_abi_version(), SEGUE_ABI_VERSION);
  EXPECT_NE(std::string(segue_build()).find("segue"), std::string::npos);
  segue_error error;
  segue_attention* attention = nullptr;
  const segue_attention_config config = small_config();
  ASSERT_EQ(segue_attention_create(&config, &attention, &error), SEGUE_OK) << error.message;
  EXPECT_EQ(segue_attention_page_bytes(attention), 8 * 64 * 4);
  EXPECT_EQ(segue_attention_v_offset(attention, 0, 3, 5), (3 * 64 + 5) * 4);
  segue_limits limits;
  segue_limits_init(&limits);
  limits.kv_len = 16;
  segue_plan* plan = nullptr;
  ASSERT_EQ(segue_plan_create(attention, &limits, &plan, &error), SEGUE_OK) << error.message;
  segue_attention_destroy(attention);

  // Ten equal keys: the output is the mean of the values.
  std::vector<float> k(2 * 8 * 64, std::nanf(""));
  std::vector<float> v(2 * 8 * 64, std::nanf(""));
  const std::int32_t table[2] = {1, 0};
  for (int t = 0; t < 10; ++t) {
    const int slot = table[t / 8] * 8 + t % 8;
    for (int d = 0; d < 64; ++d) {
      k[static_cast<std::size_t>(slot * 64 + d)] = 1.0f;
      v[static_cast<std::size_t>(slot * 64 + d)] = static_cast<float>(t);
    }
  }
  const std::vector<float> q(2 * 64, 0.25f);
  std::vector<float> out(2 * 64, std::nanf(""));
  std::vector<float> lse(2, std::nanf(""));
  std::vector<unsigned char> workspace(segue_plan_workspace_bytes(plan) + 1);
  const segue_sequence sequence{9, 1, 0};
  ASSERT_EQ(segue_plan_update(plan, &sequence, 1, nullptr, &error), SEGUE_OK) << error.message;
  segue_call call;
  segue_call_init(&call);
  call.q = q.data();
  call.out = out.data();
  call.lse = lse.data();
  call.k = k.data();
  call.v = v.data();
  call.pages = 2;
  call.page_tables = table;
  call.workspace = workspace.data();
  call.workspace_bytes = workspace.size();
  ASSERT_EQ(segue_plan_run(plan, &call, &error), SEGUE_OK) << error.message;
  const double score = 64 * 0.25 / 8;
  const double lse_expected = score + std::log(10.0);
  const double roundoff = segue::core::unit_roundoff(segue::KvType::kF32);
  const double bound = segue::core::derived_bound(
      {.reference = 4.5, .absolute_sum = 4.5, .score_sum = score}, roundoff, roundoff);
  const double lse_bound = segue::core::derived_bound(
      {.reference = lse_expected, .absolute_sum = 1, .score_sum = score}, roundoff, roundoff);
  for (const float x : out) EXPECT_NEAR(x, 4.5, bound);
  for (const float x : lse) EXPECT_NEAR(x, lse_expected, lse_bound);

  char json[64];
  const std::uint64_t bytes = segue_plan_explain(plan, json, sizeof(json));
  EXPECT_GT(bytes, sizeof(json));
  EXPECT_EQ(std::strlen(json), sizeof(json) - 1);
  std::vector<char> whole(bytes);
  EXPECT_EQ(segue_plan_explain(plan, whole.data(), bytes), bytes);
  EXPECT_NE(std::string(whole.data()).find("\"kernel\""), std::string::npos);
  segue_plan_destroy(plan);
}

TEST(CAbi, ServesStructsOfNewerHeadersAndRefusesOnesThatWereNotFilled) {
  segue_attention* attention = nullptr;
  segue_error error;
  struct {
    segue_attention_config known;
    std::uint64_t unknown;
  } newer{small_config(), ~std::uint64_t{0}};
  newer.known.size = sizeof(newer);
  ASSERT_EQ(segue_attention_create(&newer.known, &attention, &error), SEGUE_OK) << error.message;
  segue_attention_destroy(attention);
  segue_attention_config empty{};
  EXPECT_EQ(segue_attention_create(&empty, &attention, &error), SEGUE_USAGE);
  EXPECT_NE(std::string(error.message).find("_init"), std::string::npos);
  EXPECT_EQ(attention, nullptr);
  EXPECT_EQ(segue_attention_create(nullptr, &attention, nullptr), SEGUE_USAGE);
}

/// A handle and a plan of it.
struct Handles {
  Handles() {
    const segue_attention_config config = small_config();
    EXPECT_EQ(segue_attention_create(&config, &attention, nullptr), SEGUE_OK);
    segue_limits limits;
    segue_limits_init(&limits);
    limits.kv_len = 16;
    EXPECT_EQ(segue_plan_create(attention, &limits, &plan, nullptr), SEGUE_OK);
  }
  ~Handles() {
    segue_plan_destroy(plan);
    segue_attention_destroy(attention);
  }
  segue_attention* attention = nullptr;
  segue_plan* plan = nullptr;
};

TEST(CAbi, ToleratesNullEverywhere) {
  Handles handles;
  segue_error error;
  segue_attention_config_init(nullptr);
  segue_limits_init(nullptr);
  segue_call_init(nullptr);
  segue_append_init(nullptr);
  const segue_attention_config config = small_config();
  segue_limits limits;
  segue_limits_init(&limits);
  limits.kv_len = 16;
  segue_call call;
  segue_call_init(&call);
  segue_append append;
  segue_append_init(&append);
  const segue_sequence sequence{9, 1, 0};
  segue_plan* plan = handles.plan;
  for (segue_error* place : {&error, static_cast<segue_error*>(nullptr)}) {
    EXPECT_EQ(segue_attention_create(&config, nullptr, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_create(nullptr, &limits, &plan, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_create(handles.attention, &limits, nullptr, place), SEGUE_USAGE);
    segue_plan* none = handles.plan;
    EXPECT_EQ(segue_plan_create(handles.attention, nullptr, &none, place), SEGUE_USAGE);
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(segue_plan_update(nullptr, &sequence, 1, nullptr, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_update(handles.plan, nullptr, 1, nullptr, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_update(handles.plan, &sequence, -1, nullptr, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_update(handles.plan, &sequence, 1, nullptr, place), SEGUE_OK);
    EXPECT_EQ(segue_plan_append(nullptr, &append, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_append(handles.plan, nullptr, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_append(handles.plan, &append, place), SEGUE_USAGE) << "null pointers";
    EXPECT_EQ(segue_plan_run(nullptr, &call, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_run(handles.plan, nullptr, place), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_run(handles.plan, &call, place), SEGUE_USAGE) << "null pointers";
    EXPECT_EQ(segue_plan_update(handles.plan, nullptr, 0, nullptr, place), SEGUE_OK) << "no rows";
  }
  EXPECT_EQ(segue_plan_workspace_bytes(nullptr), 0u);
  char json[9] = "a";
  EXPECT_EQ(segue_plan_explain(nullptr, json, sizeof(json)), 0u);
  EXPECT_STREQ(json, "");
  EXPECT_EQ(segue_plan_explain(nullptr, nullptr, 9), 0u);
  const std::uint64_t bytes = segue_plan_explain(handles.plan, nullptr, 9);
  EXPECT_GT(bytes, sizeof(json));
  json[0] = 'a';
  EXPECT_EQ(segue_plan_explain(handles.plan, json, 0), bytes);
  EXPECT_EQ(json[0], 'a') << "no room";
  EXPECT_EQ(segue_plan_explain(handles.plan, json, 1), bytes);
  EXPECT_STREQ(json, "");
}

TEST(CAbi, RefusesSizesThatNoHeaderHadAndPlacesThatPagesLack) {
  Handles handles;
  segue_limits limits;
  segue_limits_init(&limits);
  limits.kv_len = 16;
  segue_call call;
  segue_call_init(&call);
  segue_append append;
  segue_append_init(&append);
  segue_error error;
  segue_plan* plan = nullptr;
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{8}, ~std::uint64_t{0}}) {
    limits.size = call.size = append.size = size;
    EXPECT_EQ(segue_plan_create(handles.attention, &limits, &plan, &error), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_run(handles.plan, &call, &error), SEGUE_USAGE);
    EXPECT_EQ(segue_plan_append(handles.plan, &append, &error), SEGUE_USAGE);
    EXPECT_NE(std::string(error.message).find("_init"), std::string::npos);
  }
  EXPECT_EQ(segue_attention_k_offset(handles.attention, 0, 7, 63), (7 * 64 + 63) * 4);
  for (const int bad : {-1, 64, 0x7fffffff}) {
    EXPECT_EQ(segue_attention_k_offset(handles.attention, bad, 0, 0), -1);
    EXPECT_EQ(segue_attention_k_offset(handles.attention, 0, bad, 0), -1);
    EXPECT_EQ(segue_attention_v_offset(handles.attention, 0, 0, bad), -1);
  }
}

TEST(CAbi, ReportsCodesAndMessages) {
  EXPECT_EQ(segue_attention_page_bytes(nullptr), -1);
  EXPECT_EQ(segue_attention_k_offset(nullptr, 0, 0, 0), -1);
  EXPECT_EQ(segue_attention_v_offset(nullptr, 0, 0, 0), -1);
  segue_attention* attention = nullptr;
  segue_error error;
  segue_attention_config config = small_config();
  config.head_dim = 65;
  EXPECT_EQ(segue_attention_create(&config, &attention, &error), SEGUE_USAGE);
  EXPECT_EQ(error.code, SEGUE_USAGE);
  EXPECT_NE(std::string(error.message).find("head_dim 65"), std::string::npos);
  config = small_config();
  config.kv_type = 300;
  EXPECT_EQ(segue_attention_create(&config, &attention, &error), SEGUE_USAGE);
  config = small_config();
  const std::string long_name(5000, 'x');
  config.policy = long_name.c_str();
  EXPECT_EQ(segue_attention_create(&config, &attention, &error), SEGUE_USAGE);
  EXPECT_EQ(std::strlen(error.message), sizeof(error.message) - 1) << "cut, and ended";
  segue_attention_destroy(nullptr);
  segue_plan_destroy(nullptr);
}

}  // namespace
