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
#include "format/safetensors/packed.h"
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

  /// Whether the tensor is stored as 4-bit words, scales and a shape; find_packed() then reads
  /// them.
  virtual bool is_packed(const std::string& name) const;
  virtual Result<safetensors::PackedWeight> find_packed(const TensorRequest& request);

  /// Names of all tensors that the forward pass may not leave unused.
  virtual std::vector<std::string> names() const = 0;
};

/// `file` must outlive the source.
std::unique_ptr<TensorSource> gguf_tensors(const gguf::File& file);

/// The text model's prefix ("model.", "model.language_model.") is found by the embedding and left
/// out of names; other names stay whole. Towers for images and sound are not in names().
/// `checkpoint` must outlive the source.
std::unique_ptr<TensorSource> folder_tensors(const safetensors::Checkpoint& checkpoint);

/// Random weights of any shape that is asked for, made anew for every find(): a function of seed
/// and name. Matrices are Q4_0, the embedding BF16, norms and scales such that states keep their
/// size.
std::unique_ptr<TensorSource> random_tensors(std::uint64_t seed);

}  // namespace segue::model
