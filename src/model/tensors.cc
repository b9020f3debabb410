// SPDX-License-Identifier: Apache-2.0
// Files as sources of tensors.
#include "model/tensors.h"

#include <fmt/format.h>

#include <array>

#include "core/check.h"

namespace segue::model {
namespace {

class GgufTensors final : public TensorSource {
 public:
  explicit GgufTensors(const gguf::File& file) : file_(file) {}

  const std::string& path() const override { return file_.path(); }
  Naming naming() const override { return Naming::kGguf; }
  std::int64_t total_bytes() const override {
    std::int64_t total = 0;
    for (const core::TensorView& tensor : file_.tensors()) total += tensor.bytes;
    return total;
  }
  bool has(const std::string& name) const override { return file_.find_tensor(name) != nullptr; }
  Result<core::TensorView> find(const TensorRequest& request) override {
    const core::TensorView* tensor = file_.find_tensor(request.name);
    if (tensor != nullptr) return *tensor;
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': tensor '{}' is missing", path(), request.name)};
  }
  void release(const core::TensorView& tensor) override { file_.release(tensor); }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const core::TensorView& tensor : file_.tensors()) all.push_back(tensor.name);
    return all;
  }

 private:
  const gguf::File& file_;
};

constexpr std::array<std::string_view, 4> kPrefixes{"model.language_model.",
                                                    "language_model.model.", "model.", ""};
/// Parts of multimodal checkpoints that text never meets.
constexpr std::array<std::string_view, 6> kTowers{"vision_tower",    "audio_tower",
                                                  "embed_vision",    "embed_audio",
                                                  "vision_embedder", "multi_modal_projector"};

class FolderTensors final : public TensorSource {
 public:
  explicit FolderTensors(const safetensors::Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    for (std::string_view prefix : kPrefixes) {
      if (checkpoint.find(fmt::format("{}embed_tokens.weight", prefix)) == nullptr) continue;
      prefix_ = prefix;
      break;
    }
  }

  const std::string& path() const override { return checkpoint_.path(); }
  Naming naming() const override { return Naming::kHuggingFace; }
  std::int64_t total_bytes() const override {
    std::int64_t total = 0;
    for (const safetensors::Tensor& tensor : checkpoint_.tensors())
      total += std::ssize(tensor.bytes);
    return total;
  }
  bool has(const std::string& name) const override { return lookup(name) != nullptr; }
  Result<core::TensorView> find(const TensorRequest& request) override {
    return view_of(request.name);
  }
  void release(const core::TensorView& tensor) override {
    if (const safetensors::Tensor* stored = checkpoint_.find(tensor.name); stored != nullptr)
      checkpoint_.release(*stored);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const safetensors::Tensor& tensor : checkpoint_.tensors()) {
      std::string_view name = tensor.name;
      if (name.starts_with(prefix_)) {
        name.remove_prefix(prefix_.size());
      } else if (is_tower(name)) {
        continue;
      }
      all.emplace_back(name);
    }
    return all;
  }
  bool is_packed(const std::string& name) const override {
    return safetensors::is_packed(checkpoint_, linear(name));
  }
  Result<safetensors::PackedWeight> find_packed(const TensorRequest& request) override {
    return safetensors::packed_weight(checkpoint_, linear(request.name));
  }

 private:
  /// The stored name without ".weight".
  std::string linear(std::string_view name) const {
    if (name.ends_with(".weight")) name.remove_suffix(7);
    return fmt::format("{}{}", prefix_, name);
  }
  const safetensors::Tensor* lookup(const std::string& name) const {
    const safetensors::Tensor* tensor = checkpoint_.find(prefix_ + name);
    return tensor != nullptr ? tensor : checkpoint_.find(name);
  }
  Error missing(const std::string& name) const {
    return {ErrorCode::kInvalidFile,
            fmt::format("'{}': tensor '{}{}' is missing", path(), prefix_, name)};
  }
  Result<core::TensorView> view_of(const std::string& name) const {
    const safetensors::Tensor* tensor = lookup(name);
    if (tensor == nullptr) return missing(name);
    Result<core::TensorView> view = safetensors::view(*tensor);
    if (view.ok()) return view;
    return Error{view.error().code, fmt::format("'{}': {}", path(), view.error().message)};
  }
  static bool is_tower(std::string_view name) {
    if (name.starts_with("model.")) name.remove_prefix(6);
    for (std::string_view tower : kTowers) {
      if (name.starts_with(tower)) return true;
    }
    return false;
  }

  const safetensors::Checkpoint& checkpoint_;
  std::string prefix_;
};

}  // namespace

bool TensorSource::is_packed(const std::string&) const { return false; }

Result<safetensors::PackedWeight> TensorSource::find_packed(const TensorRequest& request) {
  return Error{ErrorCode::kUnsupported,
               fmt::format("'{}': tensor '{}' is not packed", path(), request.name)};
}

std::unique_ptr<TensorSource> gguf_tensors(const gguf::File& file) {
  return std::make_unique<GgufTensors>(file);
}

std::unique_ptr<TensorSource> folder_tensors(const safetensors::Checkpoint& checkpoint) {
  return std::make_unique<FolderTensors>(checkpoint);
}

}  // namespace segue::model
