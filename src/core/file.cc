// SPDX-License-Identifier: Apache-2.0
// POSIX file access. Every message names the path and the system's reason.
#include "core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

namespace segue::core {
namespace {

std::string name_of(const std::string& path, std::string_view action) {
  if (path != "-") return fmt::format("'{}'", path);
  return action == "read" ? "standard input" : "standard output";
}

Error io_error(const std::string& path, std::string_view action) {
  const int problem = errno;
  const ErrorCode code = problem == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  return {code,
          fmt::format("cannot {} {}: {}", action, name_of(path, action), std::strerror(problem))};
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd > 2) ::close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Not blocking: a pipe without a writer is to be refused, not waited for.
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return io_error(path, "open");
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return io_error(path, "read the size of");
  if (!S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kIo, fmt::format("cannot open '{}': not a regular file", path)};
  }
  MappedFile map;
  map.size_ = info.st_size;
  if (map.size_ == 0) return map;
  void* address =
      ::mmap(nullptr, static_cast<std::size_t>(map.size_), PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) {
    map.size_ = 0;
    return io_error(path, "map");
  }
  map.data_ = static_cast<std::byte*>(address);
  return map;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

void MappedFile::release(std::int64_t offset, std::int64_t bytes) const {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t first = (offset + page - 1) / page * page;
  const std::int64_t last = (offset + bytes) / page * page;
  if (data_ != nullptr && last > first) {
    ::madvise(data_ + first, static_cast<std::size_t>(last - first), MADV_DONTNEED);
  }
}

Result<std::string> read_file(const std::string& path, std::int64_t most_bytes) {
  Descriptor file{path == "-" ? 0 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return io_error(path, "open");
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(file.fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path, "read");
    if (got == 0) return text;
    if (std::ssize(text) + got > most_bytes) {
      return Error{ErrorCode::kIo, fmt::format("{} is too long to read: allowed are up to {} bytes",
                                               name_of(path, "read"), most_bytes)};
    }
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

Status write_file(const std::string& path, std::string_view text) {
  Descriptor file{
      path == "-" ? 1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  if (file.fd < 0) return io_error(path, "create");
  while (!text.empty()) {
    const ssize_t wrote = ::write(file.fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return io_error(path, "write");
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  // Some file systems report a full disk or quota only here.
  const int fd = std::exchange(file.fd, -1);
  if (fd > 2 && ::close(fd) != 0) return io_error(path, "write");
  return {};
}

}  // namespace segue::core
