// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are right, and folders whose parts do not fit. Single files that are wrong:
// header_test.cc.
#include "format/safetensors/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/temporary_folder.h"
#include "format/safetensors/describe.h"
#include "format/safetensors/writer.h"

namespace segue::safetensors {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

/// An empty folder, and what opening it as a checkpoint says.
class Folder : public core::TemporaryFolder {
 public:
  void write(std::string_view name, std::string_view text) const {
    ASSERT_TRUE(core::write_file(file(name), text).ok());
  }
  std::string refusal() const {
    const Result<Checkpoint> checkpoint = Checkpoint::open(path());
    return checkpoint ? "accepted" : checkpoint.error().message;
  }
};

Writer floats(std::initializer_list<std::pair<const char*, float>> tensors) {
  Writer writer;
  for (const auto& [name, value] : tensors) writer.tensor(name, {2}, std::vector<float>(2, value));
  return writer;
}

float first_float(const Checkpoint& checkpoint, std::string_view name) {
  const Tensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) return -1.0f;
  float value = 0;
  std::memcpy(&value, tensor->bytes.data(), sizeof(value));
  return value;
}

TEST(SafetensorsCheckpoint, ReadsNamesTypesShapesAndBytesOfAFile) {
  Writer writer;
  writer.metadata("format", "pt");
  writer.tensor("norm", Dtype::kBF16, {3}, Bytes(6, std::byte{1}));
  writer.tensor("packed", Dtype::kI32, {2, 4}, Bytes(32, std::byte{2}));
  writer.tensor("shape", Dtype::kI64, {2}, Bytes(16, std::byte{3}));
  writer.tensor("scalar", {}, std::vector<float>{1.5f});
  const Folder folder;
  ASSERT_TRUE(writer.write(folder.file("model.safetensors")).ok());
  for (const std::string& path : {folder.path(), folder.file("model.safetensors")}) {
    const Result<Checkpoint> checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    ASSERT_EQ(checkpoint->tensors().size(), 4u);
    EXPECT_EQ(checkpoint->tensors()[0].name, "shape") << "widest elements first";
    const Tensor* packed = checkpoint->find("packed");
    ASSERT_NE(packed, nullptr);
    EXPECT_EQ(packed->dtype, Dtype::kI32);
    EXPECT_THAT(packed->shape, ElementsAre(2, 4));
    EXPECT_EQ(packed->bytes.size(), 32u);
    EXPECT_EQ(packed->bytes.front(), std::byte{2});
    EXPECT_EQ(packed->elements(), 8);
    EXPECT_EQ(checkpoint->find("norm")->bytes.back(), std::byte{1});
    EXPECT_EQ(first_float(*checkpoint, "scalar"), 1.5f);
    EXPECT_EQ(checkpoint->find("nor"), nullptr);
    EXPECT_THAT(checkpoint->files()[0].metadata, ElementsAre(std::pair("format", "pt")));
    checkpoint->release(*packed);
    EXPECT_EQ(packed->bytes.front(), std::byte{2});
  }
}

TEST(SafetensorsCheckpoint, AViewTurnsTheShapeAroundAndRefusesWhatIsNoWeight) {
  Writer writer;
  writer.tensor("w", Dtype::kBF16, {5, 2}, Bytes(20, std::byte{1}));
  writer.tensor("scalar", {}, std::vector<float>{2.0f});
  writer.tensor("order", Dtype::kI64, {2}, Bytes(16));
  writer.tensor("none", Dtype::kF32, {0, 4}, {});
  writer.tensor("deep", Dtype::kF16, {1, 1, 1, 1, 1}, Bytes(2));
  const Bytes bytes = writer.bytes();
  const Checkpoint checkpoint = Checkpoint::parse(bytes, "f").value();
  const core::TensorView w = view(*checkpoint.find("w")).value();
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.dtype, core::DType::kBF16);
  EXPECT_EQ(w.dims, 2);
  EXPECT_THAT(w.shape, ElementsAre(2, 5, 1, 1));
  EXPECT_EQ(w.bytes, 20);
  EXPECT_EQ(view(*checkpoint.find("scalar"))->elements(), 1);
  EXPECT_THAT(view(*checkpoint.find("order")).error().message,
              AllOf(HasSubstr("\"order\""), HasSubstr("I64"), HasSubstr("F32, F16, BF16 and I32")));
  EXPECT_THAT(view(*checkpoint.find("none")).error().message, HasSubstr("shape [0, 4]"));
  EXPECT_THAT(view(*checkpoint.find("deep")).error().message, HasSubstr("up to 4 axes"));
}

TEST(SafetensorsCheckpoint, JoinsTheShardsOfAFolder) {
  const Folder folder;
  const std::vector<Writer> shards{floats({{"a", 1}, {"b", 2}}), floats({{"c", 3}})};
  ASSERT_TRUE(Writer::write_shards(folder.path(), shards).ok());
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->files().size(), 2u);
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(first_float(*checkpoint, "b"), 2.0f);
  EXPECT_EQ(first_float(*checkpoint, "c"), 3.0f);
  EXPECT_EQ(checkpoint->find("c")->file, 1);
}

TEST(SafetensorsCheckpoint, AFolderWithoutWeightsIsNamedWithWhatWasSought) {
  const Folder folder;
  EXPECT_EQ(folder.refusal(),
            fmt::format("'{}' has no model.safetensors and no model.safetensors.index.json",
                        folder.path()));
  EXPECT_EQ(Checkpoint::open(folder.file("absent")).error().code, ErrorCode::kNotFound);
}

TEST(SafetensorsCheckpoint, AMissingShardIsNamedWithATensorOfIt) {
  const Folder folder;
  const std::vector<Writer> shards{floats({{"a", 1}}), floats({{"b", 2}, {"c", 3}})};
  ASSERT_TRUE(Writer::write_shards(folder.path(), shards).ok());
  std::filesystem::remove(folder.file("model-00002-of-00002.safetensors"));
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder.path());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(checkpoint.error().message,
              AllOf(HasSubstr("model-00002-of-00002.safetensors' is missing"),
                    HasSubstr("expects 2 of its tensors there, \"b\" among them")));
}

TEST(SafetensorsCheckpoint, IndexAndShardsMustNameTheSameTensors) {
  const Folder folder;
  ASSERT_TRUE(floats({{"a", 1}, {"b", 2}}).write(folder.file("1.safetensors")).ok());
  ASSERT_TRUE(floats({{"b", 2}, {"c", 3}}).write(folder.file("2.safetensors")).ok());
  const auto with = [&](std::string_view map) {
    folder.write("model.safetensors.index.json", fmt::format(R"({{"weight_map":{}}})", map));
    return folder.refusal();
  };
  EXPECT_EQ(with(R"({"a":"1.safetensors","b":"1.safetensors"})"), "accepted");
  EXPECT_THAT(
      with(R"({"a":"1.safetensors","b":"1.safetensors","d":"1.safetensors"})"),
      AllOf(HasSubstr("1.safetensors': has no tensor \"d\", which"), HasSubstr("index.json")));
  EXPECT_THAT(with(R"({"a":"1.safetensors"})"),
              HasSubstr(fmt::format("has 2 tensors, '{}' expects 1; \"b\" is not among them",
                                    folder.file("model.safetensors.index.json"))));
  EXPECT_THAT(with(R"({"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"})"),
              AllOf(HasSubstr("tensor \"b\" is in"), HasSubstr("1.safetensors' too")));
  EXPECT_THAT(with(R"({"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"})"),
              HasSubstr("\"b\""));
}

TEST(SafetensorsCheckpoint, ADamagedIndexIsRefused) {
  const Folder folder;
  const auto with = [&](std::string_view text) {
    folder.write("model.safetensors.index.json", text);
    return folder.refusal();
  };
  EXPECT_THAT(with("{"), HasSubstr("index.json': not valid JSON"));
  EXPECT_THAT(with("[]"), HasSubstr("has no weight_map"));
  EXPECT_THAT(with(R"({"weight_map":{}})"), HasSubstr("has no weight_map"));
  EXPECT_THAT(with(R"({"weight_map":{"a":1}})"), HasSubstr("has \"1\" for tensor \"a\""));
  EXPECT_THAT(with(R"({"weight_map":{"a":"../x"}})"), HasSubstr("a file in the same folder"));
  EXPECT_THAT(with(R"({"weight_map":{"a":"x","a":"y"}})"), HasSubstr("two members named \"a\""));
  EXPECT_THAT(with(R"({"weight_map":{"a":".."}})"), HasSubstr("not a regular file"));
}

TEST(SafetensorsDescribe, ShowsFilesMetadataTensorsAndTotals) {
  Writer writer;
  writer.metadata("format", "pt");
  writer.tensor("w", Dtype::kBF16, {2, 3}, Bytes(12));
  writer.tensor("n", Dtype::kF32, {3}, Bytes(12));
  const Bytes bytes = writer.bytes();
  const core::Json json = describe(Checkpoint::parse(bytes, "f").value());
  EXPECT_EQ(json.find("metadata")->dump(), R"({"format":"pt"})");
  EXPECT_EQ(json.find("tensors")->dump(),
            R"([{"name":"n","type":"F32","shape":[3],"bytes":12},)"
            R"({"name":"w","type":"BF16","shape":[2,3],"bytes":12}])");
  EXPECT_EQ(json.find("totals")->dump(), R"({"tensors":2,"elements":9,"bytes":24,"types":{)"
                                         R"("BF16":{"tensors":1,"elements":6,"bytes":12},)"
                                         R"("F32":{"tensors":1,"elements":3,"bytes":12}}})");
  EXPECT_EQ(*json.find("bytes")->as_int(), std::ssize(bytes));
}

}  // namespace
}  // namespace segue::safetensors
