// SPDX-License-Identifier: Apache-2.0
// device.h on the CUDA runtime.
#include "device/device.h"

#include "device/cuda/check.h"

namespace segue::device {
namespace {

cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

}  // namespace

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Result<GpuFacts> gpu_facts(int index) {
  int count = 0;
  if (const cudaError_t result = cudaGetDeviceCount(&count); result != cudaSuccess) {
    return Error{ErrorCode::kUnsupported,
                 std::string("no GPU is usable: ") + cudaGetErrorString(result)};
  }
  if (index < 0 || index >= count) {
    return Error{ErrorCode::kNotFound,
                 "no GPU " + std::to_string(index) + ": this machine has " + std::to_string(count)};
  }
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index));
  GpuFacts facts;
  facts.name = properties.name;
  facts.index = index;
  facts.major = properties.major;
  facts.minor = properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  facts.l2_bytes = properties.l2CacheSize;
  cuda_check(cudaDriverGetVersion(&facts.driver));
  cuda_check(cudaRuntimeGetVersion(&facts.runtime));
  return facts;
}

Result<GpuFacts> current_gpu_facts() {
  int index = 0;
  if (const cudaError_t result = cudaGetDevice(&index); result != cudaSuccess) {
    return Error{ErrorCode::kUnsupported,
                 std::string("no GPU is usable: ") + cudaGetErrorString(result)};
  }
  return gpu_facts(index);
}

Result<std::int64_t> gpu_free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (const cudaError_t result = cudaMemGetInfo(&free, &total); result != cudaSuccess) {
    return Error{ErrorCode::kUnsupported,
                 std::string("no GPU is usable: ") + cudaGetErrorString(result)};
  }
  return static_cast<std::int64_t>(free);
}

Stream::Stream() : owned_(true) {
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  handle_ = stream;
}
Stream::~Stream() {
  if (owned_ && handle_ != nullptr) static_cast<void>(cudaStreamDestroy(cuda_stream(*this)));
}
Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(owned_, other.owned_);
  return *this;
}
void Stream::synchronize() const { cuda_check(cudaStreamSynchronize(cuda_stream(*this))); }
bool Stream::capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(cuda_stream(*this), &status));
  return status != cudaStreamCaptureStatusNone;
}

Event::Event() {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreate(&event));
  handle_ = event;
}
Event::~Event() { static_cast<void>(cudaEventDestroy(event_of(handle_))); }
void Event::record(const Stream& stream) {
  const unsigned flags = stream.capturing() ? cudaEventRecordExternal : cudaEventRecordDefault;
  cuda_check(cudaEventRecordWithFlags(event_of(handle_), cuda_stream(stream), flags));
}
void Event::synchronize() { cuda_check(cudaEventSynchronize(event_of(handle_))); }
double Event::us_since(const Event& start) const {
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, event_of(start.handle_), event_of(handle_)));
  return double{ms} * 1e3;
}

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) cuda_check(cudaMalloc(&data_, bytes));
}
Buffer::~Buffer() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}
Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) {
  if (bytes > 0) cuda_check(cudaMallocHost(&data_, bytes));
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
}
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  return *this;
}

void copy_to_device(void* device, const void* host, std::size_t bytes, const Stream& stream) {
  cuda_check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_stream(stream)));
}
void copy_to_host(void* host, const void* device, std::size_t bytes, const Stream& stream) {
  cuda_check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream(stream)));
}
void copy_on_device(void* to, const void* from, std::size_t bytes, const Stream& stream) {
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream(stream)));
}
void fill_bytes(void* device, int value, std::size_t bytes, const Stream& stream) {
  cuda_check(cudaMemsetAsync(device, value, bytes, cuda_stream(stream)));
}

void Graph::begin(const Stream& stream) {
  cuda_check(cudaStreamBeginCapture(cuda_stream(stream), cudaStreamCaptureModeThreadLocal));
}
void Graph::abandon(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(cuda_stream(stream), &graph) == cudaSuccess && graph != nullptr)
    static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaGetLastError());
}
void Graph::end(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamEndCapture(cuda_stream(stream), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  cuda_check(result);
  handle_ = executable;
}
Graph::~Graph() {
  if (handle_ != nullptr)
    static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_)));
}
void Graph::replay(const Stream& stream) {
  cuda_check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), cuda_stream(stream)));
}

}  // namespace segue::device
