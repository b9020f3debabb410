// SPDX-License-Identifier: Apache-2.0
// What the reader gives for files that are right. Files that are wrong: parser_test.cc.
#include "format/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/temporary_folder.h"
#include "core/tolerance.h"
#include "format/gguf/types.h"
#include "format/gguf/writer.h"

namespace segue::gguf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

File parse_or_die(const std::vector<std::byte>& bytes) {
  Result<File> file = File::parse(bytes, "test.gguf");
  if (!file) ADD_FAILURE() << file.error().message;
  return file ? std::move(file).value() : File();
}

TEST(GgufFile, ReadsEveryScalarTypeAtItsLimits) {
  Writer writer;
  writer.set("u8", std::uint8_t{255});
  writer.set("i8", std::int8_t{-128});
  writer.set("u16", std::uint16_t{65535});
  writer.set("i16", std::int16_t{-32768});
  writer.set("u32", std::uint32_t{4294967295u});
  writer.set("i32", std::numeric_limits<std::int32_t>::min());
  writer.set("u64", std::uint64_t{1} << 62);
  writer.set("i64", std::numeric_limits<std::int64_t>::min());
  writer.set("f32", 0.1f);
  writer.set("f64", 0.1);
  writer.set("yes", true);
  writer.set("no", false);
  writer.set("text", std::string("a\0b", 3));
  const auto bytes = writer.bytes();
  const File file = parse_or_die(bytes);
  EXPECT_EQ(file.integer("u8").value(), 255);
  EXPECT_EQ(file.integer("i8").value(), -128);
  EXPECT_EQ(file.integer("u16").value(), 65535);
  EXPECT_EQ(file.integer("i16").value(), -32768);
  EXPECT_EQ(file.integer("u32").value(), 4294967295);
  EXPECT_EQ(file.integer("i32").value(), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(file.integer("u64").value(), std::int64_t{1} << 62);
  EXPECT_EQ(file.integer("i64").value(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(file.number("f32").value(), 0.1f);
  EXPECT_EQ(file.number("f64").value(), 0.1);
  EXPECT_EQ(file.number("i8").value(), -128);
  EXPECT_TRUE(file.boolean("yes").value());
  EXPECT_FALSE(file.boolean("no").value());
  EXPECT_EQ(file.text("text").value(), std::string_view("a\0b", 3));
  EXPECT_EQ(file.metadata().size(), 13u);
  EXPECT_EQ(file.metadata()[2].key, "u16");
}

TEST(GgufFile, ReadsArraysAndTakesAScalarForAnArrayOfOne) {
  Writer writer;
  writer.set("heads", std::vector<std::uint32_t>{8, 1, 8});
  writer.set("scores", std::vector<float>{-1.5f, 0});
  writer.set("tokens", std::vector<std::string>{"<pad>", "", "ü"});
  writer.set("sliding", std::vector<bool>{true, false});
  writer.set("none", std::vector<std::int32_t>{});
  writer.set("one", std::int16_t{-3});
  writer.set("word", "w");
  const auto bytes = writer.bytes();
  const File file = parse_or_die(bytes);
  EXPECT_THAT(file.integers("heads").value(), ElementsAre(8, 1, 8));
  EXPECT_THAT(file.floats("scores").value(), ElementsAre(-1.5f, 0));
  EXPECT_THAT(file.floats("heads").value(), ElementsAre(8, 1, 8));
  EXPECT_THAT(file.strings("tokens").value(), ElementsAre("<pad>", "", "ü"));
  EXPECT_THAT(file.booleans("sliding").value(), ElementsAre(true, false));
  EXPECT_THAT(file.integers("none").value(), ElementsAre());
  EXPECT_THAT(file.integers("one").value(), ElementsAre(-3));
  EXPECT_THAT(file.strings("word").value(), ElementsAre("w"));
  EXPECT_THAT(file.find("tokens")->as_strings(2).value(), ElementsAre("<pad>", ""));
  EXPECT_EQ(file.find("tokens")->describe_type(), "array of 3 string values");
}

TEST(GgufFile, AbsentKeysAndOtherTypesAreNamedWithWhatIsAllowed) {
  Writer writer;
  writer.set("text", "t");
  writer.set("heads", std::vector<std::uint32_t>{8, 1});
  writer.set("huge", std::numeric_limits<std::uint64_t>::max());
  const auto bytes = writer.bytes();
  const File file = parse_or_die(bytes);
  const Result<std::int64_t> absent = file.integer("llama.block_count");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(absent.error().message,
            "'test.gguf': metadata has no key 'llama.block_count' (an integer)");
  EXPECT_EQ(file.integer("text").error().message,
            "'test.gguf': key 'text' holds string (allowed: an integer)");
  EXPECT_THAT(file.integer("heads").error().message, HasSubstr("array of 2 u32 values"));
  EXPECT_THAT(file.integer("huge").error().message, HasSubstr("the u64 18446744073709551616"));
  EXPECT_THAT(file.boolean("heads").error().message, HasSubstr("allowed: a bool"));
  EXPECT_THAT(file.strings("heads").error().message, HasSubstr("a string or an array"));
  EXPECT_FALSE(file.integers("text").ok());
  EXPECT_FALSE(file.floats("text").ok());
  EXPECT_FALSE(file.booleans("text").ok());
  EXPECT_FALSE(file.text("heads").ok());
}

TEST(GgufFile, FallbacksStandInForAbsentKeysOnly) {
  Writer writer;
  writer.set("n", std::uint32_t{5});
  const auto bytes = writer.bytes();
  const File file = parse_or_die(bytes);
  EXPECT_EQ(file.integer("n", 9).value(), 5);
  EXPECT_EQ(file.integer("absent", 9).value(), 9);
  EXPECT_EQ(file.number("absent", 0.5).value(), 0.5);
  EXPECT_TRUE(file.boolean("absent", true).value());
  EXPECT_EQ(file.text("absent", "x").value(), "x");
  EXPECT_FALSE(file.text("n", "x").ok());
}

TEST(GgufFile, GivesTensorsWithShapeTypeAndBytes) {
  std::vector<std::byte> q8(34 * 6);
  for (std::size_t i = 0; i < q8.size(); ++i) q8[i] = static_cast<std::byte>(i);
  const std::vector<float> values{1, 2, 3};
  Writer writer;
  writer.tensor("blk.0.attn_q.weight", core::DType::kQ8_0, {64, 3}, q8);
  writer.tensor("norm", {3}, values);
  const auto bytes = writer.bytes();
  const File file = parse_or_die(bytes);
  ASSERT_EQ(file.tensors().size(), 2u);
  const core::TensorView* matrix = file.find_tensor("blk.0.attn_q.weight");
  ASSERT_NE(matrix, nullptr);
  EXPECT_EQ(matrix->dtype, core::DType::kQ8_0);
  EXPECT_EQ(matrix->dims, 2);
  EXPECT_THAT(matrix->shape, ElementsAre(64, 3, 1, 1));
  EXPECT_EQ(matrix->bytes, 34 * 6);
  EXPECT_EQ(matrix->elements(), 192);
  EXPECT_EQ(std::memcmp(matrix->data, q8.data(), q8.size()), 0);
  const core::TensorView* norm = file.find_tensor("norm");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(std::memcmp(norm->data, values.data(), 12), 0);
  EXPECT_EQ((norm->data - bytes.data()) % 32, 0);
  EXPECT_EQ(file.find_tensor("output"), nullptr);
}

TEST(GgufFile, ReadsVersionTwoAndOtherAlignments) {
  for (const std::uint32_t version : {2u, 3u}) {
    for (const std::uint32_t alignment : {8u, 64u, 4096u}) {
      Writer writer(version);
      writer.set("general.alignment", alignment);
      writer.tensor("a", {1}, std::vector<float>{1});
      writer.tensor("b", {1}, std::vector<float>{2});
      const auto bytes = writer.bytes();
      const File file = parse_or_die(bytes);
      EXPECT_EQ(file.version(), version);
      EXPECT_EQ(file.alignment(), alignment);
      EXPECT_EQ(file.data_offset() % alignment, 0);
      float b = 0;
      std::memcpy(&b, file.find_tensor("b")->data, sizeof(b));
      EXPECT_EQ(b, 2);
    }
  }
}

TEST(GgufFile, AFileWithoutTensorsOrMetadataIsAccepted) {
  const auto bytes = Writer().bytes();
  const File file = parse_or_die(bytes);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(GgufFile, EveryTensorTypeSurvivesWritingAndReading) {
  using core::DType;
  for (const DType type :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
        DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kI32}) {
    const core::DTypeInfo info = core::dtype_info(type);
    Writer writer;
    writer.tensor("t", type, {info.block_elements * 2, 2},
                  std::vector<std::byte>(static_cast<std::size_t>(info.block_bytes) * 4));
    const auto bytes = writer.bytes();
    const File file = parse_or_die(bytes);
    ASSERT_EQ(file.tensors().size(), 1u) << info.name;
    EXPECT_EQ(file.tensors()[0].dtype, type);
    EXPECT_EQ(file.tensors()[0].bytes, info.block_bytes * 4);
    EXPECT_EQ(tensor_type(tensor_type_id(type)), type);
  }
}

class GgufOnDisk : public ::testing::Test {
 protected:
  core::TemporaryFolder folder_;
  std::string path_ = folder_.file("model.gguf");
};

TEST_F(GgufOnDisk, ViewsSurviveAMoveAndReleasedTensorsStayReadable) {
  const std::vector<float> values(100'000, 0.25f);
  Writer writer;
  writer.set("name", "synthetic");
  writer.tensor("x", {100'000}, values);
  ASSERT_TRUE(writer.write(path_).ok());
  Result<File> opened = File::open(path_);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const std::string_view name = opened->text("name").value();
  const core::TensorView* tensor = opened->find_tensor("x");
  const File moved = std::move(opened).value();
  EXPECT_EQ(name, "synthetic");
  EXPECT_EQ(moved.path(), path_);
  EXPECT_EQ(moved.find_tensor("x"), tensor);
  moved.release(*tensor);
  std::vector<float> back(values.size());
  std::memcpy(back.data(), tensor->data, static_cast<std::size_t>(tensor->bytes));
  const core::Verdict same = core::exact(back, values);
  EXPECT_TRUE(same.ok) << same.message;
}

TEST_F(GgufOnDisk, MissingEmptyAndForeignFilesAreRefusedWithTheirName) {
  EXPECT_EQ(File::open(path_).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(core::write_file(path_, "").ok());
  EXPECT_THAT(File::open(path_).error().message, HasSubstr("not a GGUF file"));
  ASSERT_TRUE(core::write_file(path_, "{\"json\": 1}").ok());
  EXPECT_THAT(File::open(path_).error().message, HasSubstr(path_));
  EXPECT_EQ(File::open(folder_.path()).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace segue::gguf
