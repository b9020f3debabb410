// SPDX-License-Identifier: Apache-2.0
// The JSON behind `segue inspect`, and what it leaves out.
#include "format/gguf/describe.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "format/gguf/writer.h"

namespace segue::gguf {
namespace {

core::Json described(const Writer& writer) {
  const std::vector<std::byte> bytes = writer.bytes();
  return describe(File::parse(bytes, "f").value());
}

TEST(GgufDescribe, ShowsMetadataTensorsAndTotals) {
  Writer writer;
  writer.set("arch", "llama");
  writer.set("eps", 1e-6f);
  writer.set("theta", 0.1);
  writer.set("heads", std::vector<std::int32_t>{8, -1});
  writer.set("bos", false);
  writer.tensor("embd", core::DType::kQ8_0, {32, 2}, std::vector<std::byte>(68));
  writer.tensor("norm", {4}, std::vector<float>(4));
  writer.tensor("out", {4, 1, 1}, std::vector<float>(4));
  core::Json json = described(writer);
  EXPECT_EQ(json.find("metadata")->dump(),
            R"({"arch":"llama","eps":1e-06,"theta":0.1,"heads":[8,-1],"bos":false})");
  EXPECT_EQ(json.find("tensors")->dump(),
            R"([{"name":"embd","type":"Q8_0","shape":[32,2],"bytes":68},)"
            R"({"name":"norm","type":"F32","shape":[4],"bytes":16},)"
            R"({"name":"out","type":"F32","shape":[4,1,1],"bytes":16}])");
  EXPECT_EQ(
      json.find("totals")->dump(),
      R"({"tensors":3,"elements":72,"bytes":100,"types":{"Q8_0":{"tensors":1,"elements":64,"bytes":68},)"
      R"("F32":{"tensors":2,"elements":8,"bytes":32}}})");
  EXPECT_EQ(json.find("version")->dump(), "3");
}

TEST(GgufDescribe, AbbreviatesLongArraysAndStrings) {
  Writer writer;
  writer.set("tokens", std::vector<std::string>(9, "t"));
  writer.set("scores", std::vector<float>(1000, 0.5f));
  writer.set("eight", std::vector<bool>(8, true));
  writer.set("template", std::string(1000, 'x'));
  const core::Json json = described(writer);
  const core::Json* metadata = json.find("metadata");
  EXPECT_EQ(metadata->find("tokens")->dump(),
            R"({"type":"string","count":9,"first":["t","t","t","t"]})");
  EXPECT_EQ(metadata->find("scores")->dump(),
            R"({"type":"f32","count":1000,"first":[0.5,0.5,0.5,0.5]})");
  EXPECT_EQ(metadata->find("eight")->as_array()->size(), 8u);
  EXPECT_EQ(*metadata->find("template")->as_string(), std::string(200, 'x') + "... (1000 bytes)");
}

TEST(GgufDescribe, CutsStringsBetweenCharacters) {
  Writer writer;
  std::string text = "x";
  for (int i = 0; i < 200; ++i) text += "ü";
  writer.set("text", text);
  EXPECT_EQ(described(writer).find("metadata")->dump().find("\xef\xbf\xbd"), std::string::npos);
}

TEST(GgufDescribe, ShowsNestedArraysByTypeAndCountOnly) {
  Writer writer;
  writer.set_raw("nested", ValueType::kArray, std::string("\x09\0\0\0\0\0\0\0\0\0\0\0", 12));
  EXPECT_EQ(described(writer).find("metadata")->dump(), R"({"nested":{"type":"array","count":0}})");
}

}  // namespace
}  // namespace segue::gguf
