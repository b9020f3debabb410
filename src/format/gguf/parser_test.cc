// SPDX-License-Identifier: Apache-2.0
// Files that are wrong: each is refused with a message that says why, and none is read out of
// bounds. The bytes lie directly in front of an unreadable page, so a read past the end stops the
// program.
#include "format/gguf/parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/guarded_bytes.h"
#include "format/gguf/describe.h"
#include "format/gguf/gguf.h"
#include "format/gguf/writer.h"

namespace segue::gguf {
namespace {

using core::GuardedBytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

/// A few of everything: about 1 KB of header and 1 KB of data.
Bytes sample() {
  Writer writer;
  writer.set("general.architecture", "llama");
  writer.set("general.alignment", std::uint32_t{32});
  writer.set("llama.block_count", std::uint32_t{1});
  writer.set("llama.rope.freq_base", 10000.0f);
  writer.set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "a", "", "bc"});
  writer.set("tokenizer.ggml.scores", std::vector<float>{0, -1, -2, -3});
  writer.set("tokenizer.ggml.add_bos_token", true);
  writer.set("big", std::uint64_t{1} << 63);
  // Array of two arrays: u8[3] and string[1].
  const std::string nested(
      "\x09\0\0\0\x02\0\0\0\0\0\0\0"
      "\0\0\0\0\x03\0\0\0\0\0\0\0xyz"
      "\x08\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0hi",
      49);
  writer.set_raw("nested", ValueType::kArray, nested);
  writer.tensor("token_embd.weight", core::DType::kQ8_0, {32, 4}, Bytes(34 * 4, std::byte{7}));
  writer.tensor("blk.0.attn_q.weight", core::DType::kQ4_K, {256, 2}, Bytes(144 * 2));
  writer.tensor("blk.0.attn_norm.weight", {5}, std::vector<float>(5, 1.0f));
  writer.tensor("rope_freqs.weight", {2, 2, 2, 2}, std::vector<float>(16, 1.0f));
  return writer.bytes();
}

/// Reads everything that an accepted file offers; true when it was accepted.
bool read_everything(std::span<const std::byte> bytes) {
  const Result<File> file = File::parse(bytes, "mutant");
  if (!file) {
    EXPECT_THAT(file.error().message, HasSubstr("'mutant'"));
    return false;
  }
  for (const Entry& entry : file->metadata()) {
    EXPECT_NE(file->find(entry.key), nullptr);
    (void)entry.value.as_ints();
    (void)entry.value.as_floats();
    (void)entry.value.as_bools();
    (void)entry.value.as_strings();
    (void)entry.value.describe_type();
  }
  for (const core::TensorView& tensor : file->tensors()) {
    EXPECT_EQ(file->find_tensor(tensor.name), &tensor);
    const auto first = static_cast<std::uint64_t>(tensor.data - bytes.data());
    EXPECT_GE(first, static_cast<std::uint64_t>(file->data_offset()));
    EXPECT_LE(first, bytes.size());
    EXPECT_LE(static_cast<std::uint64_t>(tensor.bytes), bytes.size() - first);
    const core::DTypeInfo info = core::dtype_info(tensor.dtype);
    EXPECT_EQ(tensor.elements() / info.block_elements * info.block_bytes, tensor.bytes);
  }
  EXPECT_FALSE(describe(*file).dump().empty());
  return true;
}

std::string refusal(const Bytes& bytes) {
  const GuardedBytes guarded(bytes);
  const Result<File> file = File::parse(guarded.view(), "f");
  return file ? "accepted" : file.error().message;
}

/// Overwrites the bytes right after the first place where `after` occurs.
template <class T>
Bytes patched(Bytes bytes, std::string_view after, T value, std::size_t skip = 0) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto at = text.find(after);
  EXPECT_NE(at, std::string_view::npos);
  std::memcpy(bytes.data() + at + after.size() + skip, &value, sizeof(value));
  return bytes;
}

constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kTensorCountAt = 8;
constexpr std::size_t kEntryCountAt = 16;

template <class T>
Bytes patched_at(Bytes bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

TEST(GgufParser, AcceptsTheSample) {
  EXPECT_EQ(refusal(sample()), "accepted");
  EXPECT_TRUE(read_everything(sample()));
}

TEST(GgufParser, RefusesEveryTruncation) {
  const Bytes whole = sample();
  // The last tensor fills its padding, so every cut takes away a byte that is needed.
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const GuardedBytes cut({whole.data(), size});
    ASSERT_FALSE(read_everything(cut.view())) << size;
  }
}

TEST(GgufParser, ATruncatedTensorIsNamedWithItsBytesAndTheFiles) {
  Bytes bytes = sample();
  const std::size_t whole = bytes.size();
  bytes.resize(whole - 1);
  EXPECT_EQ(refusal(bytes), "'f': tensor 'rope_freqs.weight' needs bytes " +
                                std::to_string(whole - 64) + " to " + std::to_string(whole) +
                                ", the file has " + std::to_string(whole - 1) +
                                " (is the download complete?)");
}

TEST(GgufParser, ATruncatedHeaderIsNamedByTheKeyItEndsIn) {
  Bytes bytes = sample();
  bytes.resize(200);
  EXPECT_THAT(refusal(bytes),
              AllOf(HasSubstr("the file ends inside"), HasSubstr("the file has 200")));
}

TEST(GgufParser, RefusesOtherVersionsAndBigEndianFiles) {
  const Result<File> one = File::parse(patched_at(sample(), kVersionAt, 1u), "f");
  EXPECT_EQ(one.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(one.error().message, "'f': GGUF version 1 (2 and 3 are read)");
  EXPECT_THAT(refusal(patched_at(sample(), kVersionAt, 0x03000000u)), HasSubstr("big-endian"));
}

TEST(GgufParser, RefusesCountsThatTheFileCannotHold) {
  const auto huge = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t count : {huge, huge / 24 + 1, std::uint64_t{100'000}}) {
    EXPECT_THAT(refusal(patched_at(sample(), kTensorCountAt, count)),
                HasSubstr("tensors cannot fit"));
    EXPECT_THAT(refusal(patched_at(sample(), kEntryCountAt, count)),
                HasSubstr("metadata entries cannot fit"));
  }
}

TEST(GgufParser, RefusesLengthsBeyondTheFile) {
  const auto huge = std::numeric_limits<std::uint64_t>::max();
  const Bytes bytes = sample();
  EXPECT_THAT(refusal(patched_at(bytes, 24, huge)),
              HasSubstr("ends inside the key of metadata entry 0"));
  EXPECT_THAT(refusal(patched(bytes, "general.architecture", huge, 4)),
              HasSubstr("ends inside the value of key 'general.architecture'"));
  EXPECT_THAT(
      refusal(patched(bytes, "tokenizer.ggml.tokens", huge, 8)),
      HasSubstr("the array of key 'tokenizer.ggml.tokens' has 18446744073709551615 elements"));
  EXPECT_THAT(refusal(patched(bytes, "tokenizer.ggml.scores", std::uint64_t{1} << 62, 8)),
              HasSubstr("elements of at least 4 bytes"));
}

TEST(GgufParser, RefusesUnknownValueTypes) {
  EXPECT_THAT(refusal(patched(sample(), "llama.block_count", 13u)),
              HasSubstr("key 'llama.block_count' has value type 13"));
  EXPECT_THAT(refusal(patched(sample(), "tokenizer.ggml.scores", 99u, 4)),
              HasSubstr("'tokenizer.ggml.scores' has element type 99"));
}

TEST(GgufParser, RefusesArraysNestedTooDeeply) {
  std::string payload;
  for (int i = 0; i < 10'000; ++i) payload += std::string("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12);
  Writer writer;
  writer.set_raw("deep", ValueType::kArray, payload);
  EXPECT_THAT(refusal(writer.bytes()), HasSubstr("nested deeper than 4 levels"));
}

TEST(GgufParser, RefusesRepeatedKeysAndTensors) {
  Writer keys;
  keys.set("a", std::uint8_t{1});
  keys.set_raw("a", ValueType::kU8, "2");
  EXPECT_EQ(refusal(keys.bytes()), "'f': key 'a' appears twice");
  Writer tensors;
  tensors.tensor("t", {1}, std::vector<float>{1});
  tensors.tensor("t", {1}, std::vector<float>{1});
  EXPECT_EQ(refusal(tensors.bytes()), "'f': tensor 't' appears twice");
}

TEST(GgufParser, RefusesBadAlignments) {
  for (const std::uint32_t alignment : {1u, 4u, 24u, 48u, 0x80000001u}) {
    EXPECT_THAT(refusal(patched(sample(), "general.alignment", alignment, 4)),
                HasSubstr("general.alignment is " + std::to_string(alignment)));
  }
  EXPECT_THAT(refusal(patched(sample(), "general.alignment", 0u, 4)), HasSubstr("is 0 (a power"));
  Writer text;
  text.set("general.alignment", "32");
  EXPECT_THAT(refusal(text.bytes()), HasSubstr("general.alignment is string"));
}

TEST(GgufParser, RefusesForeignTensorTypesWithTheirNameAndTheAllowedOnes) {
  const Bytes bytes = patched(sample(), "token_embd.weight", 10u, 4 + 16);
  const Result<File> file = File::parse(bytes, "f");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(
      file.error().message,
      "'f': tensor 'token_embd.weight' has type 10 (Q2_K), which is not supported (types that "
      "are: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, I32)");
  EXPECT_THAT(refusal(patched(sample(), "token_embd.weight", 4'000'000'000u, 4 + 16)),
              HasSubstr("has type 4000000000, which"));
}

TEST(GgufParser, RefusesShapesThatCannotBe) {
  const std::string name = "token_embd.weight";
  const auto with_dim = [&](int axis, std::uint64_t value) {
    return refusal(patched(sample(), name, value, 4 + 8 * static_cast<std::size_t>(axis)));
  };
  EXPECT_THAT(refusal(patched(sample(), name, 0u)), HasSubstr("has 0 dimensions"));
  EXPECT_THAT(refusal(patched(sample(), name, 5u)), HasSubstr("has 5 dimensions (1 to 4"));
  EXPECT_THAT(with_dim(1, 0), HasSubstr("has a dimension 1 of 0"));
  EXPECT_THAT(with_dim(0, 33),
              HasSubstr("of shape [33, 4] has type Q8_0, whose rows are multiples of 32"));
  EXPECT_THAT(with_dim(0, std::uint64_t{1} << 63), HasSubstr("too large"));
  EXPECT_THAT(with_dim(1, std::numeric_limits<std::uint64_t>::max()), HasSubstr("too large"));
  EXPECT_THAT(with_dim(1, std::uint64_t{1} << 55), HasSubstr("too large"));
  EXPECT_THAT(with_dim(1, std::uint64_t{1} << 50), HasSubstr("needs bytes"));
}

TEST(GgufParser, RefusesOffsetsThatAreCrookedOutsideOrShared) {
  const std::string name = "blk.0.attn_norm.weight";
  const auto with_offset = [&](std::uint64_t value) {
    return refusal(patched(sample(), name, value, 4 + 8 + 4));
  };
  EXPECT_THAT(with_offset(8), HasSubstr("offset 8, which is no multiple of the alignment 32"));
  EXPECT_THAT(with_offset(std::numeric_limits<std::uint64_t>::max() - 31),
              HasSubstr("beyond any file"));
  EXPECT_THAT(with_offset(std::uint64_t{1} << 40), HasSubstr("needs bytes"));
  EXPECT_THAT(with_offset(32),
              HasSubstr("tensors 'token_embd.weight' and 'blk.0.attn_norm.weight' overlap"));
}

TEST(GgufParser, EscapesWhatCannotBePrinted) {
  EXPECT_EQ(quote("a\n\x1b[31m\xff"), "'a\\x0a\\x1b[31m\\xff'");
  EXPECT_EQ(quote(std::string(100, 'x')), "'" + std::string(80, 'x') + "...'");
}

void read_mutants(const Bytes& original, std::size_t region, int count) {
  int accepted = 0;
  core::for_each_mutant(original, region, count, [&](std::span<const std::byte> mutant) {
    accepted += read_everything(mutant) ? 1 : 0;
  });
  EXPECT_LT(accepted, count) << "the mutations did nothing";
}

TEST(GgufParser, AThousandMutantsOfASmallFileAreHarmless) {
  const Bytes bytes = sample();
  read_mutants(bytes, bytes.size(), 1000);
}

TEST(GgufParser, AThousandMutantsOfAHeaderAreHarmless) {
  const Bytes bytes = sample();
  const File file = File::parse(bytes, "f").value();
  read_mutants(bytes, static_cast<std::size_t>(file.data_offset()), 1000);
}

TEST(GgufParser, AThousandMutantsOfAFileOfManyTensorsAreHarmless) {
  Writer writer;
  for (int i = 0; i < 60; ++i) {
    writer.set("key." + std::to_string(i), std::uint32_t(i));
    writer.tensor("blk." + std::to_string(i), {4, 2}, std::vector<float>(8));
  }
  const Bytes bytes = writer.bytes();
  const File file = File::parse(bytes, "f").value();
  read_mutants(bytes, static_cast<std::size_t>(file.data_offset()), 1000);
}

}  // namespace
}  // namespace segue::gguf
