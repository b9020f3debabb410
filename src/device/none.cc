// SPDX-License-Identifier: Apache-2.0
// device.h in a build without CUDA: no GPU, and a reason.
#ifndef SEGUE_CUDA
#include "core/check.h"
#include "device/device.h"

namespace segue::device {

int gpu_count() { return 0; }

Result<GpuFacts> gpu_facts(int /*index*/) {
  return Error{ErrorCode::kUnsupported, "this build has no CUDA: configure with -DSEGUE_CUDA=ON"};
}

Result<GpuFacts> current_gpu_facts() { return gpu_facts(); }

Result<std::int64_t> gpu_free_bytes() { return gpu_facts().error(); }

Stream::Stream() { CHECK(false); }
Stream::~Stream() = default;
Stream& Stream::operator=(Stream&& /*other*/) noexcept { CHECK(false); }
void Stream::synchronize() const { CHECK(false); }
bool Stream::capturing() const { CHECK(false); }

Event::Event() { CHECK(false); }
Event::~Event() = default;
void Event::record(const Stream& /*stream*/) { CHECK(false); }
void Event::synchronize() { CHECK(false); }
double Event::us_since(const Event& /*start*/) const { CHECK(false); }

Buffer::Buffer(std::size_t /*bytes*/) { CHECK(false); }
Buffer::~Buffer() = default;
Buffer& Buffer::operator=(Buffer&& other) noexcept {  // of empty ones
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::PinnedBuffer(std::size_t /*bytes*/) { CHECK(false); }
PinnedBuffer::~PinnedBuffer() = default;
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& /*other*/) noexcept { CHECK(false); }

void copy_to_device(void* /*device*/, const void* /*host*/, std::size_t /*bytes*/,
                    const Stream& /*stream*/) {
  CHECK(false);
}
void copy_to_host(void* /*host*/, const void* /*device*/, std::size_t /*bytes*/,
                  const Stream& /*stream*/) {
  CHECK(false);
}
void copy_on_device(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/,
                    const Stream& /*stream*/) {
  CHECK(false);
}
void fill_bytes(void* /*device*/, int /*value*/, std::size_t /*bytes*/, const Stream& /*stream*/) {
  CHECK(false);
}

void Graph::begin(const Stream& /*stream*/) { CHECK(false); }
void Graph::abandon(const Stream& /*stream*/) { CHECK(false); }
void Graph::end(const Stream& /*stream*/) { CHECK(false); }
Graph::~Graph() = default;
void Graph::replay(const Stream& /*stream*/) { CHECK(false); }

}  // namespace segue::device
#endif
