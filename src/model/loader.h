// SPDX-License-Identifier: Apache-2.0
// Loader: takes tensors out of a source by name, checks their shapes against what the config says
// and makes matrices and vectors of them. The first problem is kept and later calls do nothing;
// close() tells it, or what the model would have left unused.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/cpu.h"
#include "core/thread_pool.h"
#include "model/tensors.h"
#include "ops/cpu/matrix.h"
#include "ops/cpu/weight_memory.h"
#include "segue/error.h"

namespace segue::model {

struct WeightOptions {
  core::IsaLevel isa = core::IsaLevel::kPortable;
  bool dequantise = false;            // matrices become f32
  std::function<bool()> cancelled{};  // asked before every tensor, or empty
};

class Loader {
 public:
  /// All arguments must outlive the loader. `progress` may be empty.
  Loader(TensorSource& source, const WeightOptions& options, core::ThreadPool& pool,
         ops::WeightMemory& memory, const std::function<void(double)>& progress);

  std::string name(Part part, int layer = 0) const {
    return tensor_name(source_.naming(), part, layer);
  }
  bool has(const std::string& name) const;

  /// Where matrices go from now on; it must outlive the loader.
  void fill(ops::WeightMemory& memory) { memory_ = &memory; }

  /// Any matrix type, w4a16 included.
  void matrix(const std::string& name, std::int64_t inputs, std::int64_t outputs, ops::Matrix& out);
  /// One matrix per entry of `out` from a tensor of three axes, contiguous [inputs] first; rows
  /// [first, first + outputs) of the `rows` that every matrix has.
  struct Slices {
    std::int64_t inputs = 0, outputs = 0, first = 0, rows = 0;
  };
  void matrices(const std::string& name, const Slices& slices, std::span<ops::Matrix* const> out);
  /// F32, F16 or BF16, as floats.
  void vector(const std::string& name, std::int64_t size, std::vector<float>& out);
  /// A tensor that may be there and is not used.
  void ignore(const std::string& name);

  Status close();

 private:
  std::optional<core::TensorView> take(const TensorRequest& request);
  void packed_matrix(const TensorRequest& request, ops::Matrix& out);
  Result<ops::Matrix> prepare(const core::TensorView& tensor);
  Result<ops::Matrix> dequantised(const ops::Matrix& matrix);
  void fail(Error error);
  bool stopped();  // by a problem, which cancellation is
  void finish(const core::TensorView& tensor);

  TensorSource& source_;
  WeightOptions options_;
  core::ThreadPool& pool_;
  ops::WeightMemory* memory_;
  const std::function<void(double)>& progress_;
  std::unordered_set<std::string> taken_;
  std::optional<Error> problem_;
  std::int64_t total_bytes_;
  std::int64_t done_bytes_ = 0;
};

}  // namespace segue::model
