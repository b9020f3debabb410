// SPDX-License-Identifier: Apache-2.0
// GPUs without their headers: facts, streams, events, buffers. A build without CUDA has the same
// header; there gpu_count() is 0, gpu_facts() says why, and nothing else may be called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "segue/error.h"

namespace segue::device {

/// What the machine causes: a failed call, no memory. Thrown by this folder only, caught by the
/// engine's step.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct GpuFacts {
  std::string name;
  int index = 0;
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  int driver = 0;  // versions as CUDA numbers them: 13000
  int runtime = 0;
};

/// Usable GPUs; 0 without CUDA, a driver or a card.
int gpu_count();
/// The message says what is missing.
Result<GpuFacts> gpu_facts(int index = 0);

/// The GPU that calls of this thread go to.
Result<GpuFacts> current_gpu_facts();

/// Memory of the current GPU that nobody has taken.
Result<std::int64_t> gpu_free_bytes();

/// A queue of device work. Owns it unless borrowed; movable.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        owned_(std::exchange(other.owned_, false)) {}
  Stream& operator=(Stream&& other) noexcept;

  /// Somebody else's stream, which outlives this; null is the default stream.
  static Stream borrowed(void* handle) { return Stream(handle); }

  void synchronize() const;
  /// Is its work being recorded into a graph?
  bool capturing() const;
  void* handle() const { return handle_; }  // a cudaStream_t

 private:
  explicit Stream(void* handle) : handle_(handle) {}

  void* handle_ = nullptr;
  bool owned_ = false;
};

/// A point in a stream, for timing.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// While the stream is being recorded into a graph: every replay records the event at this place.
  void record(const Stream& stream);
  void synchronize();
  /// Microseconds from `start` to this; both have been recorded and reached.
  double us_since(const Event& start) const;

 private:
  void* handle_ = nullptr;
};

/// Device memory. Owns it; movable; contents undefined until written.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept;

  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Host memory that a GPU copies from without waiting. Owns it; movable.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// In stream order; host memory must stay valid until the stream has passed (pinned memory) or the
/// call returns.
void copy_to_device(void* device, const void* host, std::size_t bytes, const Stream& stream);
void copy_to_host(void* host, const void* device, std::size_t bytes, const Stream& stream);
void copy_on_device(void* to, const void* from, std::size_t bytes, const Stream& stream);
void fill_bytes(void* device, int value, std::size_t bytes, const Stream& stream);

/// A recorded sequence of launches that replays with one call.
class Graph {
 public:
  /// Records what `enqueue` puts on the stream. When that throws, the stream is as it was.
  template <class Function>
  Graph(Stream& stream, Function&& enqueue) {
    begin(stream);
    try {
      enqueue();
    } catch (...) {
      abandon(stream);
      throw;
    }
    end(stream);
  }
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay(const Stream& stream);

 private:
  static void begin(const Stream& stream);
  static void abandon(const Stream& stream);
  void end(const Stream& stream);
  void* handle_ = nullptr;
};

}  // namespace segue::device
