// SPDX-License-Identifier: Apache-2.0
// Loading of single tensors.
#include "model/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "core/dtype.h"

namespace segue::model {

Loader::Loader(TensorSource& source, const WeightOptions& options, core::ThreadPool& pool,
               ops::WeightMemory& memory, const std::function<void(double)>& progress)
    : source_(source),
      options_(options),
      pool_(pool),
      memory_(&memory),
      progress_(progress),
      total_bytes_(source.total_bytes()) {}

bool Loader::has(const std::string& name) const {
  return source_.has(name) || source_.is_packed(name);
}

void Loader::fail(Error error) {
  if (problem_) return;
  if (error.code == ErrorCode::kNoMemory && total_bytes_ > 0)
    error.message += fmt::format("; all weights of the file need about {} bytes", total_bytes_);
  problem_ = std::move(error);
}

bool Loader::stopped() {
  if (!problem_ && options_.cancelled && options_.cancelled())
    fail({ErrorCode::kCancelled, fmt::format("interrupted while loading '{}'", source_.path())});
  return problem_.has_value();
}

std::optional<core::TensorView> Loader::take(const TensorRequest& request) {
  if (stopped()) return std::nullopt;
  const Result<core::TensorView> tensor = source_.find(request);
  if (!tensor.ok()) return fail(tensor.error()), std::nullopt;
  const auto& shape = tensor->shape;
  if (shape[0] != request.inputs || shape[1] != request.outputs || shape[2] != request.count ||
      shape[3] != 1) {
    const std::array<std::int64_t, 4> wanted{request.inputs, request.outputs, request.count, 1};
    std::size_t rank = wanted.size();  // without the ones that both end with
    while (rank > 1 && shape[rank - 1] == 1 && wanted[rank - 1] == 1) --rank;
    fail({ErrorCode::kInvalidFile,
          fmt::format("'{}': tensor '{}' has shape [{}]; the config says [{}]", source_.path(),
                      request.name, fmt::join(std::span(shape).first(rank), ", "),
                      fmt::join(std::span(wanted).first(rank), ", "))});
    return std::nullopt;
  }
  taken_.insert(request.name);
  return *tensor;
}

void Loader::matrix(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                    ops::Matrix& out) {
  const TensorRequest request{name, inputs, outputs, 1};
  if (!stopped() && source_.is_packed(name)) return packed_matrix(request, out);
  const std::optional<core::TensorView> tensor = take(request);
  if (!tensor) return;
  const Result<ops::Matrix> prepared = prepare(*tensor);
  if (!prepared.ok()) return fail(prepared.error());
  out = *prepared;
  finish(*tensor);
}

void Loader::packed_matrix(const TensorRequest& request, ops::Matrix& out) {
  const Result<safetensors::PackedWeight> packed = source_.find_packed(request);
  if (!packed.ok()) return fail(packed.error());
  if (packed->inputs != request.inputs || packed->outputs != request.outputs) {
    return fail({ErrorCode::kInvalidFile,
                 fmt::format("'{}': tensor '{}' is packed from [{}, {}]; the config says [{}, {}]",
                             source_.path(), request.name, packed->inputs, packed->outputs,
                             request.inputs, request.outputs)});
  }
  ops::WeightMemory temporary;
  const Result<ops::Matrix> prepared =
      ops::Matrix::prepare_packed(packed->words, packed->scales, options_.isa,
                                  options_.dequantise ? temporary : *memory_, pool_);
  const Result<ops::Matrix> wanted =
      prepared.ok() && options_.dequantise ? dequantised(*prepared) : prepared;
  if (!wanted.ok()) {
    return fail(
        {wanted.error().code, fmt::format("'{}': {}", source_.path(), wanted.error().message)});
  }
  out = *wanted;
  for (const char* part : {"_packed", "_scale", "_shape"}) taken_.insert(request.name + part);
  finish(packed->words);
  finish(packed->scales);
}

void Loader::matrices(const std::string& name, const Slices& slices,
                      std::span<ops::Matrix* const> out) {
  const std::optional<core::TensorView> tensor =
      take({name, slices.inputs, slices.rows, std::ssize(out)});
  if (!tensor) return;
  const std::int64_t row_bytes = tensor->bytes / (slices.rows * std::ssize(out));
  for (std::size_t i = 0; i < out.size(); ++i) {
    core::TensorView slice = *tensor;
    slice.shape = {slices.inputs, slices.outputs, 1, 1};
    slice.dims = 2;
    slice.bytes = slices.outputs * row_bytes;
    slice.data += (static_cast<std::int64_t>(i) * slices.rows + slices.first) * row_bytes;
    const Result<ops::Matrix> prepared = prepare(slice);
    if (!prepared.ok()) return fail(prepared.error());
    *out[i] = *prepared;
  }
  finish(*tensor);
}

void Loader::vector(const std::string& name, std::int64_t size, std::vector<float>& out) {
  const std::optional<core::TensorView> tensor = take({name, size, 1, 1});
  if (!tensor) return;
  out.resize(static_cast<std::size_t>(size));
  if (tensor->dtype == core::DType::kF32) {
    std::memcpy(out.data(), tensor->data, out.size() * sizeof(float));
  } else if (tensor->dtype == core::DType::kF16 || tensor->dtype == core::DType::kBF16) {
    const bool half = tensor->dtype == core::DType::kF16;
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, tensor->data + i * sizeof(bits), sizeof(bits));
      out[i] = half ? core::f16_to_f32(bits) : core::bf16_to_f32(bits);
    }
  } else {
    return fail({ErrorCode::kUnsupported,
                 fmt::format("'{}': tensor '{}' is {}; supported for vectors: F32, F16, BF16",
                             source_.path(), name, core::dtype_info(tensor->dtype).name)});
  }
  finish(*tensor);
}

void Loader::ignore(const std::string& name) {
  taken_.insert(name);
  for (const char* part : {"_packed", "_scale", "_shape"}) taken_.insert(name + part);
}

Status Loader::close() {
  if (problem_) return *problem_;
  for (const std::string& name : source_.names()) {
    if (taken_.contains(name)) continue;
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': tensor '{}' is not part of this architecture as Segue runs it; "
                             "ignoring it would change the output",
                             source_.path(), name)};
  }
  return {};
}

Result<ops::Matrix> Loader::prepare(const core::TensorView& tensor) {
  ops::WeightMemory temporary;
  const bool convert = options_.dequantise && tensor.dtype != core::DType::kF32;
  const Result<ops::Matrix> prepared =
      ops::Matrix::prepare(tensor, options_.isa, convert ? temporary : *memory_, pool_);
  if (!prepared.ok()) {
    return Error{prepared.error().code,
                 fmt::format("'{}': {}", source_.path(), prepared.error().message)};
  }
  return convert ? dequantised(*prepared) : prepared;
}

Result<ops::Matrix> Loader::dequantised(const ops::Matrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.inputs() * matrix.outputs()));
  for (std::int64_t row = 0; row < matrix.outputs(); ++row)
    matrix.dequantize_row(row, values.data() + row * matrix.inputs());
  core::TensorView view;
  view.shape = {matrix.inputs(), matrix.outputs(), 1, 1};
  view.dims = 2;
  view.data = reinterpret_cast<const std::byte*>(values.data());
  view.bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  return ops::Matrix::prepare(view, options_.isa, *memory_, pool_);
}

void Loader::finish(const core::TensorView& tensor) {
  source_.release(tensor);
  done_bytes_ += tensor.bytes;
  if (progress_) {
    progress_(std::min(1.0, static_cast<double>(done_bytes_) /
                                static_cast<double>(std::max<std::int64_t>(1, total_bytes_))));
  }
}

}  // namespace segue::model
