// SPDX-License-Identifier: Apache-2.0
// Maps, reads and writes, and the messages when the system refuses them.
#include "core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "core/temporary_folder.h"

namespace segue::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return folder_.file(name); }

  TemporaryFolder folder_;
};

std::string_view text_of(const MappedFile& map) {
  return {reinterpret_cast<const char*>(map.data()), static_cast<std::size_t>(map.size())};
}

TEST_F(FileTest, WhatIsWrittenIsReadAndMapped) {
  const std::string text(200'001, 'x');
  ASSERT_TRUE(write_file(path("a"), text).ok());
  EXPECT_EQ(read_file(path("a")).value(), text);
  EXPECT_EQ(text_of(MappedFile::open(path("a")).value()), text);
}

TEST_F(FileTest, WritingReplacesALongerFile) {
  ASSERT_TRUE(write_file(path("a"), "longer than before").ok());
  ASSERT_TRUE(write_file(path("a"), "short").ok());
  EXPECT_EQ(read_file(path("a")).value(), "short");
}

TEST_F(FileTest, AnEmptyFileIsAnEmptyMap) {
  ASSERT_TRUE(write_file(path("empty"), "").ok());
  const Result<MappedFile> map = MappedFile::open(path("empty"));
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->size(), 0);
  EXPECT_EQ(map->data(), nullptr);
  EXPECT_EQ(read_file(path("empty")).value(), "");
}

TEST_F(FileTest, AMissingFileIsNotFoundAndNamed) {
  const Result<MappedFile> map = MappedFile::open(path("absent"));
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(map.error().message, HasSubstr("/absent'"));
  EXPECT_EQ(read_file(path("absent")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(write_file(path("no/such/folder"), "x").error().code, ErrorCode::kNotFound);
}

TEST_F(FileTest, ADirectoryIsRefusedWithAReason) {
  const Result<MappedFile> map = MappedFile::open(folder_.path());
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.error().code, ErrorCode::kIo);
  EXPECT_THAT(map.error().message, HasSubstr("not a regular file"));
  EXPECT_EQ(read_file(folder_.path()).error().code, ErrorCode::kIo);
  EXPECT_THAT(write_file(folder_.path(), "x").error().message, HasSubstr("directory"));
}

TEST_F(FileTest, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const Status status = write_file("/dev/full", "x");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, HasSubstr("No space left"));
}

TEST_F(FileTest, WhatNeverEndsIsRefusedBeforeItFillsTheMemory) {
  ASSERT_TRUE(write_file(path("a"), std::string(100'000, 'x')).ok());
  EXPECT_EQ(read_file(path("a"), 100'000).value().size(), 100'000u);
  const Result<std::string> longer = read_file(path("a"), 99'999);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().code, ErrorCode::kIo);
  EXPECT_THAT(longer.error().message, AllOf(HasSubstr("/a'"), HasSubstr("up to 99999 bytes")));
  if (!std::filesystem::exists("/dev/zero")) GTEST_SKIP() << "this system has no /dev/zero";
  EXPECT_THAT(read_file("/dev/zero", 1 << 20).error().message, HasSubstr("'/dev/zero'"));
}

TEST_F(FileTest, AnUnreadableFileIsAnError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read every file";
  ASSERT_TRUE(write_file(path("secret"), "x").ok());
  std::filesystem::permissions(path("secret"), std::filesystem::perms::none);
  EXPECT_EQ(MappedFile::open(path("secret")).error().code, ErrorCode::kIo);
  EXPECT_THAT(read_file(path("secret")).error().message, HasSubstr("Permission denied"));
}

TEST_F(FileTest, MovingAMapMovesTheOwnership) {
  ASSERT_TRUE(write_file(path("a"), "first").ok());
  ASSERT_TRUE(write_file(path("b"), "second").ok());
  MappedFile a = MappedFile::open(path("a")).value();
  MappedFile moved(std::move(a));
  EXPECT_EQ(text_of(moved), "first");
  moved = MappedFile::open(path("b")).value();
  EXPECT_EQ(text_of(moved), "second");
}

TEST_F(FileTest, ReleasedBytesStayReadable) {
  std::string text(5 * 65536, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 4096);
  ASSERT_TRUE(write_file(path("a"), text).ok());
  const MappedFile map = MappedFile::open(path("a")).value();
  ASSERT_EQ(text_of(map), text);
  map.release(0, map.size());
  map.release(100, 70'000);
  map.release(map.size() - 1, 1);
  map.release(0, 0);
  EXPECT_EQ(text_of(map), text);
}

}  // namespace
}  // namespace segue::core
