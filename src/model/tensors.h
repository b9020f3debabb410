// SPDX-License-Identifier: Apache-2.0
// TensorSource: where the weights of a model come from, so that loading is one code path: a GGUF
// file, a Hugging Face folder, or random numbers. It knows names and bytes, nothing about layers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "format/gguf/gguf.h"
#include "format/safetensors/safetensors.h"
#include "model/names.h"
#include "segue/error.h"

namespace segue::model {

/// A tensor as the model wants it: `count` matrices of `outputs` rows of `inputs`.
struct TensorRequest {
  std::string name;  // in the naming of the source, without its prefix
  std::int64_t inputs = 0;
  std::int64_t outputs = 1;
  std::int64_t count = 1;
};

/// Four-bit weights of compressed-tensors ("pack-quantized"): eight to a word, and a scale for
/// every 32 inputs of an output.
struct PackedTensor {
  core::TensorView words;   // I32 {inputs / 8, outputs}
  core::TensorView scales;  // F32, F16 or BF16 {inputs / 32, outputs}
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::string& path() const = 0;  // for messages
  virtual Naming naming() const = 0;
  virtual std::int64_t total_bytes() const = 0;

  virtual bool has(const std::string& name) const = 0;
  /// The tensor of that name whatever its shape; kInvalidFile when it is missing, kUnsupported for
  /// element types that no weight has. Valid until release().
  virtual Result<core::TensorView> find(const TensorRequest& request) = 0;
  virtual void release(const core::TensorView& tensor) = 0;

  /// Whether the tensor is stored as words, scales and a shape; find_packed() then reads them and
  /// refuses a stored shape that is not the requested one.
  virtual bool is_packed(const std::string& name) const;
  virtual Result<PackedTensor> find_packed(const TensorRequest& request);

  /// Names of all tensors that the forward pass may not leave unused.
  virtual std::vector<std::string> names() const = 0;
};

/// `file` must outlive the source.
std::unique_ptr<TensorSource> gguf_tensors(const gguf::File& file);

/// The text model's prefix ("model.", "model.language_model.") is found by the embedding and left
/// out of names; other names stay whole. Towers for images and sound are not in names().
/// `checkpoint` must outlive the source.
std::unique_ptr<TensorSource> folder_tensors(const safetensors::Checkpoint& checkpoint);

}  // namespace segue::model
