// SPDX-License-Identifier: Apache-2.0
#include "core/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "core/file.h"
#include "core/temporary_folder.h"

namespace segue::core {
namespace {

class Memory : public testing::Test {
 protected:
  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_.file(name)).parent_path());
    ASSERT_TRUE(write_file(folder_.file(name), text).ok());
  }
  std::int64_t available() const { return available_memory_bytes(folder_.path()); }

  TemporaryFolder folder_;
};

TEST_F(Memory, WithoutAnythingToReadThereIsNoLimit) {
  EXPECT_EQ(available(), std::numeric_limits<std::int64_t>::max());
}

TEST_F(Memory, IsWhatTheSystemCallsAvailable) {
  write("proc/meminfo", "MemTotal: 900 kB\nMemFree: 5 kB\nMemAvailable:   700 kB\n");
  EXPECT_EQ(available(), 700 * 1024);
}

TEST_F(Memory, IsBoundByTheControlGroupAndByThoseAboveIt) {
  write("proc/meminfo", "MemAvailable: 700 kB\n");
  write("proc/self/cgroup", "1:cpu:/x\n0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  EXPECT_EQ(available(), 700 * 1024);
  write("sys/fs/cgroup/outer/memory.max", "100000\n");
  write("sys/fs/cgroup/outer/memory.current", "60000\n");
  write("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 5000\n");
  EXPECT_EQ(available(), 45000);
  write("sys/fs/cgroup/memory.max", "1000\n");
  write("sys/fs/cgroup/memory.current", "3000\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(Memory, OfThisMachineIsAPositiveNumber) { EXPECT_GT(available_memory_bytes(), 0); }

}  // namespace
}  // namespace segue::core
