// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors/packed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "format/safetensors/writer.h"

namespace segue::safetensors {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Shape = std::vector<std::int64_t>;

/// The three tensors of one weight of 4 outputs and 64 inputs, each replaceable or left out.
struct Parts {
  std::optional<Shape> packed = Shape{4, 8};
  std::optional<Shape> scale = Shape{4, 2};
  std::optional<Shape> shape = Shape{4, 64};  // the values
  Dtype shape_type = Dtype::kI64;
  const char* more = nullptr;

  Bytes bytes() const {
    const auto zeros = [](const Shape& axes, std::int64_t element) {
      for (const std::int64_t axis : axes) element *= axis;
      return Bytes(static_cast<std::size_t>(element));
    };
    Writer writer;
    if (packed) writer.tensor("w.weight_packed", Dtype::kI32, *packed, zeros(*packed, 4));
    if (scale) writer.tensor("w.weight_scale", Dtype::kBF16, *scale, zeros(*scale, 2));
    if (shape && shape_type == Dtype::kI64) {
      writer.tensor("w.weight_shape", shape_type, {std::ssize(*shape)},
                    std::as_bytes(std::span(*shape)));
    } else if (shape) {
      const std::vector<std::int32_t> narrow(shape->begin(), shape->end());
      writer.tensor("w.weight_shape", shape_type, {std::ssize(narrow)},
                    std::as_bytes(std::span(narrow)));
    }
    if (more != nullptr) writer.tensor(more, Dtype::kI32, {1, 2}, Bytes(8));
    return writer.bytes();
  }
  std::string refusal() const {
    const Bytes file = bytes();
    const Checkpoint checkpoint = Checkpoint::parse(file, "f").value();
    const Result<PackedWeight> weight = packed_weight(checkpoint, "w");
    return weight ? "accepted" : weight.error().message;
  }
};

TEST(SafetensorsPacked, AWeightHasTheViewsThatTheMatrixTakes) {
  for (const Dtype type : {Dtype::kI64, Dtype::kI32}) {
    const Bytes bytes = Parts{.shape_type = type}.bytes();
    const Checkpoint checkpoint = Checkpoint::parse(bytes, "f").value();
    EXPECT_TRUE(is_packed(checkpoint, "w"));
    EXPECT_FALSE(is_packed(checkpoint, "v"));
    const PackedWeight weight = packed_weight(checkpoint, "w").value();
    EXPECT_EQ(weight.outputs, 4);
    EXPECT_EQ(weight.inputs, 64);
    EXPECT_THAT(weight.words.shape, ElementsAre(8, 4, 1, 1));
    EXPECT_EQ(weight.words.dtype, core::DType::kI32);
    EXPECT_THAT(weight.scales.shape, ElementsAre(2, 4, 1, 1));
    EXPECT_EQ(weight.scales.dtype, core::DType::kBF16);
  }
}

TEST(SafetensorsPacked, PartsThatAreMissingOrDoNotFitAreNamed) {
  EXPECT_EQ(Parts{.packed = {}}.refusal(), "'f': no tensor \"w.weight_packed\"");
  EXPECT_EQ(Parts{.scale = {}}.refusal(), "'f': no tensor \"w.weight_scale\"");
  EXPECT_EQ(Parts{.shape = {}}.refusal(), "'f': no tensor \"w.weight_shape\"");
  EXPECT_EQ((Parts{.packed = Shape{4, 7}}.refusal()),
            "'f': tensor \"w.weight_packed\" has shape [4, 7], its weight needs [4, 8]");
  EXPECT_EQ((Parts{.scale = Shape{4, 1}}.refusal()),
            "'f': tensor \"w.weight_scale\" has shape [4, 1], its weight needs [4, 2]");
  EXPECT_THAT((Parts{.shape = Shape{4, 63}}.refusal()), HasSubstr("says [4, 63]"));
  EXPECT_THAT((Parts{.shape = Shape{-4, 64}}.refusal()), HasSubstr("says [-4, 64]"));
  EXPECT_THAT((Parts{.shape = Shape{4, 64, 1}}.refusal()),
              HasSubstr("is [3] I64 (allowed: 2 values"));
  EXPECT_THAT((Parts{.shape_type = Dtype::kU32}.refusal()), HasSubstr("is [2] U32"));
}

TEST(SafetensorsPacked, ZeroPointsAndActivationOrdersAreRefused) {
  EXPECT_THAT(Parts{.more = "w.weight_zero_point"}.refusal(),
              AllOf(HasSubstr("\"w.weight_zero_point\""), HasSubstr("only symmetric")));
  EXPECT_THAT(Parts{.more = "w.weight_g_idx"}.refusal(), HasSubstr("\"w.weight_g_idx\""));
}

constexpr std::string_view kConfig = R"({"quant_method": "compressed-tensors",
  "format": "pack-quantized", "kv_cache_scheme": null, "ignore": ["lm_head"],
  "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null,
    "output_activations": null, "weights": {"num_bits": 4, "type": "int", "symmetric": true,
    "strategy": "group", "group_size": 32, "actorder": null, "dynamic": false}}}})";

std::string refusal_with(std::string_view from, std::string_view to) {
  std::string text(kConfig);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const Status checked = check_quantization(core::Json::parse(text).value());
  return checked ? "accepted" : checked.error().message;
}

TEST(SafetensorsPacked, OnlySymmetricGroupsOfThirtyTwoFourBitIntegersAreRead) {
  EXPECT_EQ(refusal_with("", ""), "accepted");
  EXPECT_EQ(refusal_with(": 4", ": 8"),
            "quantization_config: group_0.weights.num_bits is 8 (read: 4)");
  EXPECT_THAT(refusal_with("\"int\"", "\"float\""), HasSubstr("weights.type"));
  EXPECT_THAT(refusal_with("true", "false"), HasSubstr("weights.symmetric is false"));
  EXPECT_THAT(refusal_with("\"group\"", "\"channel\""), HasSubstr("weights.strategy"));
  EXPECT_THAT(refusal_with("32", "128"), HasSubstr("group_size is 128 (read: 32)"));
  EXPECT_THAT(refusal_with("\"actorder\": null", "\"actorder\": \"group\""), HasSubstr("actorder"));
  EXPECT_THAT(refusal_with("compressed-tensors", "gptq"), HasSubstr("quant_method is"));
  EXPECT_THAT(refusal_with("pack-quantized", "naive-quantized"), HasSubstr("format is"));
  EXPECT_THAT(refusal_with("\"kv_cache_scheme\": null", "\"kv_cache_scheme\": {}"),
              HasSubstr("kv_cache_scheme is {} (read: null)"));
  EXPECT_THAT(refusal_with("\"input_activations\": null", "\"input_activations\": {}"),
              HasSubstr("group_0.input_activations"));
  EXPECT_THAT(refusal_with("\"weights\"", "\"w\""), HasSubstr("group_0.weights is absent"));
  EXPECT_THAT(refusal_with("\"config_groups\"", "\"groups\""),
              HasSubstr("config_groups is absent"));
}

}  // namespace
}  // namespace segue::safetensors
