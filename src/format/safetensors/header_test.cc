// SPDX-License-Identifier: Apache-2.0
// Files that are wrong: each is refused with a message that says why, and none is read out of
// bounds.
#include "format/safetensors/header.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/guarded_bytes.h"
#include "format/safetensors/describe.h"
#include "format/safetensors/safetensors.h"
#include "format/safetensors/writer.h"

namespace segue::safetensors {
namespace {

using core::GuardedBytes;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

/// A file of this header (as given, not padded) and `data` bytes of 7.
Bytes file_of(std::string_view header, std::size_t data) {
  const std::uint64_t length = header.size();
  Bytes bytes(8 + header.size() + data, std::byte{7});
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

/// The same, padded with spaces so that the data begins at a multiple of 8.
Bytes padded(std::string header, std::size_t data) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return file_of(header, data);
}

std::string one_tensor(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

Bytes sample() {
  Writer writer;
  writer.metadata("format", "pt");
  writer.tensor("model.embed_tokens.weight", Dtype::kBF16, {4, 3}, Bytes(24, std::byte{1}));
  writer.tensor("q_proj.weight_packed", Dtype::kI32, {2, 4}, Bytes(32, std::byte{2}));
  writer.tensor("q_proj.weight_shape", Dtype::kI64, {2}, Bytes(16));
  writer.tensor("empty", Dtype::kF16, {0, 8}, {});
  writer.tensor("scalar", {}, std::vector<float>{1.5f});
  return writer.bytes();
}

std::string refusal(const Bytes& bytes) {
  const GuardedBytes guarded(bytes);
  const Result<Checkpoint> checkpoint = Checkpoint::parse(guarded.view(), "f");
  return checkpoint ? "accepted" : checkpoint.error().message;
}

bool read_everything(std::span<const std::byte> bytes) {
  const Result<Checkpoint> checkpoint = Checkpoint::parse(bytes, "mutant");
  if (!checkpoint) {
    EXPECT_THAT(checkpoint.error().message, HasSubstr("'mutant'"));
    return false;
  }
  unsigned sum = 0;
  for (const Tensor& tensor : checkpoint->tensors()) {
    EXPECT_EQ(checkpoint->find(tensor.name), &tensor);
    std::int64_t elements = 1;
    for (const std::int64_t axis : tensor.shape) elements *= axis;
    EXPECT_EQ(tensor.elements(), elements);
    for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
    (void)view(tensor);
  }
  EXPECT_LE(sum, bytes.size() * 255);
  EXPECT_FALSE(describe(*checkpoint).dump().empty());
  return true;
}

TEST(SafetensorsHeader, AcceptsTheSample) {
  EXPECT_EQ(refusal(sample()), "accepted");
  EXPECT_TRUE(read_everything(sample()));
}

TEST(SafetensorsHeader, RefusesEveryTruncation) {
  const Bytes whole = sample();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const GuardedBytes cut({whole.data(), size});
    ASSERT_FALSE(read_everything(cut.view())) << size;
  }
}

TEST(SafetensorsHeader, RefusesHeaderLengthsBeyondTheFileAndTheLimit) {
  Bytes bytes = sample();
  for (const std::uint64_t length : {~0ull, 1ull << 63, 100'000'001ull, 1'000'000ull}) {
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_THAT(refusal(bytes),
                AllOf(HasSubstr(fmt::format("a header of {} bytes is announced", length)),
                      HasSubstr(length == 1'000'000 ? "the file ends early" : "are allowed")));
  }
}

TEST(SafetensorsHeader, RefusesWhatIsNoJsonObject) {
  EXPECT_THAT(refusal(file_of("", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refusal(file_of("[1]", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refusal(file_of("{\"a\":", 0)), HasSubstr("'f': header: not valid JSON"));
  EXPECT_THAT(refusal(file_of("{} x", 0)), HasSubstr("not valid JSON"));
  EXPECT_EQ(refusal(file_of("{}", 0)), "accepted");
  EXPECT_EQ(refusal(file_of("{}   \n ", 0)), "accepted");
}

TEST(SafetensorsHeader, RefusesRepeatedNames) {
  const std::string one = R"("t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_EQ(refusal(file_of(fmt::format("{{{}}}", one), 2)), "accepted");
  EXPECT_THAT(refusal(file_of(fmt::format("{{{},{}}}", one, one), 2)),
              HasSubstr("two members named \"t\""));
}

TEST(SafetensorsHeader, RefusesMetadataThatIsNoText) {
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":[]})", 0)), HasSubstr("no object of strings"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":{"total":17}})", 0)),
              AllOf(HasSubstr("\"total\""), HasSubstr("17"), HasSubstr("a string")));
}

TEST(SafetensorsHeader, RefusesTensorsWithoutDtypeShapeOrOffsetsAndWithMore) {
  EXPECT_THAT(refusal(file_of(R"({"t":1})", 0)), HasSubstr("tensor \"t\" is no object"));
  EXPECT_THAT(refusal(file_of(R"({"t":{"shape":[],"data_offsets":[0,0]}})", 0)),
              HasSubstr("has no dtype"));
  EXPECT_THAT(refusal(file_of(R"({"t":{"dtype":"U8","data_offsets":[0,0]}})", 0)),
              HasSubstr("has no shape"));
  EXPECT_THAT(refusal(file_of(R"({"t":{"dtype":"U8","shape":[0]}})", 0)),
              HasSubstr("has data_offsets null"));
  EXPECT_THAT(
      refusal(file_of(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"zip":true}})", 0)),
      HasSubstr("has a member \"zip\""));
}

TEST(SafetensorsHeader, RefusesForeignDtypesWithTheirNameAndTheAllowedOnes) {
  const Bytes bytes = file_of(R"({"t":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1);
  const Result<Checkpoint> read = Checkpoint::parse(bytes, "f");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(read.error().message,
            "'f': tensor \"t\" has dtype \"F4\", which is not read (those that are: BOOL, U8, I8, "
            "F8_E4M3, F8_E5M2, U16, I16, F16, BF16, U32, I32, F32, U64, I64, F64)");
}

TEST(SafetensorsHeader, RefusesShapesThatCannotBe) {
  const auto with = [](std::string_view shape) {
    return refusal(padded(one_tensor("F32", shape, "[0,8]"), 8));
  };
  EXPECT_EQ(with("[2]"), "accepted");
  EXPECT_EQ(with("[1,2,1,1,1,1]"), "accepted");
  for (const char* axis : {"-1", "1.5", "\"2\"", "null", "18446744073709551615", "1e3"}) {
    EXPECT_THAT(with(fmt::format("[{}]", axis)), HasSubstr("has an axis of")) << axis;
  }
  for (const char* huge : {"[9223372036854775807]", "[4294967296,4294967296]",
                           "[0,4294967296,4294967296]", "[4611686018427387904,4]"}) {
    EXPECT_THAT(with(huge), HasSubstr("is too large")) << huge;
  }
  EXPECT_EQ(with("[3]"), "'f': tensor \"t\" has 8 bytes, but [3] of F32 needs 12");
  EXPECT_EQ(with("[0]"), "'f': tensor \"t\" has 8 bytes, but [0] of F32 needs 0");
}

TEST(SafetensorsHeader, RefusesOffsetsThatAreReversedOutsideOrNoNumbers) {
  const auto with = [](std::string_view offsets) {
    return refusal(padded(one_tensor("U8", "[8]", offsets), 8));
  };
  EXPECT_EQ(with("[0,8]"), "accepted");
  for (const char* wrong : {"[0]", "[0,8,8]", "[-1,7]", "[0.0,8]", "{}", "[\"0\",\"8\"]"}) {
    EXPECT_THAT(with(wrong), HasSubstr("(allowed: [begin, end])")) << wrong;
  }
  EXPECT_EQ(with("[8,0]"),
            "'f': tensor \"t\" has data_offsets [8, 0], which end before they begin");
  EXPECT_EQ(
      with("[1,9]"),
      "'f': tensor \"t\" has data_offsets [1, 9], the file ends early, after 8 bytes of data (is "
      "the download complete?)");
  EXPECT_THAT(with("[18446744073709551608,18446744073709551615]"),
              HasSubstr("after 8 bytes of data"));
}

TEST(SafetensorsHeader, RefusesTensorsOffTheirAlignment) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
  EXPECT_THAT(refusal(padded(header, 6)), HasSubstr("no multiple of the 4 bytes of F32"));
  const std::string crooked = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )";
  ASSERT_EQ(crooked.size() % 4, 3u);
  EXPECT_THAT(refusal(file_of(crooked, 4)), HasSubstr("begins at byte"));
}

TEST(SafetensorsHeader, RefusesOverlapsAndBytesOfNoTensor) {
  const auto with = [](int a, int b, int c, int d) {
    return refusal(
        padded(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                           R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                           b - a, a, b, d - c, c, d),
               8));
  };
  EXPECT_EQ(with(0, 4, 4, 8), "accepted");
  EXPECT_EQ(with(4, 8, 0, 4), "accepted");
  EXPECT_EQ(with(0, 5, 4, 8), "'f': tensors \"a\" and \"b\" overlap");
  EXPECT_EQ(with(4, 8, 0, 8), "'f': tensors \"b\" and \"a\" overlap");
  EXPECT_EQ(with(0, 8, 0, 8), "'f': tensors \"a\" and \"b\" overlap");
  EXPECT_EQ(with(0, 8, 3, 3), "'f': tensors \"a\" and \"b\" overlap");
  EXPECT_EQ(with(0, 8, 8, 8), "accepted");
  EXPECT_EQ(with(0, 0, 0, 8), "accepted");
  EXPECT_EQ(with(0, 3, 4, 8), "'f': bytes 3 to 4 of the data belong to no tensor");
  EXPECT_EQ(with(1, 4, 4, 8), "'f': bytes 0 to 1 of the data belong to no tensor");
  EXPECT_EQ(with(0, 4, 4, 7), "'f': bytes 7 to 8 of the data belong to no tensor");
}

TEST(SafetensorsHeader, QuotesNamesAsJsonAndCutsLongOnes) {
  EXPECT_EQ(quote("a\n\x1b"), R"("a\n\u001b")");
  EXPECT_EQ(quote(std::string(100, 'x')), "\"" + std::string(80, 'x') + "\"...");
}

TEST(SafetensorsHeader, ThousandsOfMutantsAreHarmless) {
  const Bytes bytes = sample();
  int accepted = 0;
  const auto read = [&](std::span<const std::byte> mutant) {
    accepted += read_everything(mutant) ? 1 : 0;
  };
  core::for_each_mutant(bytes, bytes.size(), 2000, read);
  core::for_each_mutant(bytes, 64, 2000, read);
  EXPECT_LT(accepted, 4000) << "the mutations did nothing";
}

}  // namespace
}  // namespace segue::safetensors
