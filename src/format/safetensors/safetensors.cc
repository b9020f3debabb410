// SPDX-License-Identifier: Apache-2.0
// Checkpoint: opening files and folders, and look-ups. The checks of one file are in header.cc.
#include "format/safetensors/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "core/json.h"
#include "format/safetensors/header.h"

namespace segue::safetensors {
namespace {

using core::Json;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

Error invalid(const std::string& path, std::string_view problem) {
  return {ErrorCode::kInvalidFile, fmt::format("'{}': {}", path, problem)};
}

bool has_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// File name to the tensors that the index expects in it.
using Shards = std::map<std::string, std::vector<std::string>>;

Result<Shards> read_index(const std::string& path) {
  Result<std::string> text = core::read_file(path);
  if (!text) return text.error();
  const Result<Json> json = Json::parse(*text, Json::Repeats::kRefused);
  if (!json) return invalid(path, json.error().message);
  const Json* map = json->find("weight_map");
  if (map == nullptr || !map->is_object() || map->as_object()->empty()) {
    return invalid(path, "has no weight_map (an object of tensor name: file name)");
  }
  Shards shards;
  for (const auto& [tensor, file] : *map->as_object()) {
    const std::string* name = file.as_string();
    if (name == nullptr || name->empty() || name->find('/') != std::string::npos ||
        name->find('\0') != std::string::npos) {
      return invalid(path, fmt::format("weight_map has {} for tensor {} (allowed: the name of a "
                                       "file in the same folder)",
                                       quote(file.dump()), quote(tensor)));
    }
    shards[*name].push_back(tensor);
  }
  return shards;
}

std::optional<core::DType> weight_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return core::DType::kF32;
    case Dtype::kF16: return core::DType::kF16;
    case Dtype::kBF16: return core::DType::kBF16;
    case Dtype::kI32: return core::DType::kI32;
    default: return std::nullopt;
  }
}

}  // namespace

Result<core::TensorView> view(const Tensor& tensor) {
  const std::optional<core::DType> dtype = weight_type(tensor.dtype);
  if (!dtype) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("tensor {}: weights of dtype {} are not supported (F32, F16, BF16 and "
                             "I32 are)",
                             quote(tensor.name), dtype_name(tensor.dtype))};
  }
  core::TensorView view;
  if (tensor.shape.size() > view.shape.size() || tensor.bytes.empty()) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("tensor {}: shape {} (allowed: up to {} axes, none of them 0)",
                             quote(tensor.name), shape_text(tensor.shape), view.shape.size())};
  }
  view.name = tensor.name;
  view.dtype = *dtype;
  view.dims = std::max(1, static_cast<int>(tensor.shape.size()));
  std::copy(tensor.shape.rbegin(), tensor.shape.rend(), view.shape.begin());
  view.data = tensor.bytes.data();
  view.bytes = std::ssize(tensor.bytes);
  return view;
}

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  const std::filesystem::path folder(path);
  std::error_code ignored;
  Status added;
  if (!std::filesystem::is_directory(folder, ignored)) {
    added = checkpoint.add_file(path);
  } else if (has_file(folder / kSingle)) {
    added = checkpoint.add_file((folder / kSingle).string());
  } else if (has_file(folder / kIndex)) {
    added = checkpoint.add_shards((folder / kIndex).string());
  } else {
    return Error{ErrorCode::kNotFound,
                 fmt::format("'{}' has no {} and no {}", path, kSingle, kIndex)};
  }
  if (!added) return added.error();
  return checkpoint;
}

Result<Checkpoint> Checkpoint::parse(std::span<const std::byte> bytes, std::string name) {
  Checkpoint checkpoint;
  checkpoint.path_ = name;
  File file;
  file.path = std::move(name);
  if (Status added = checkpoint.add(std::move(file), bytes); !added) return added.error();
  return checkpoint;
}

Status Checkpoint::add(File file, std::span<const std::byte> bytes) {
  Result<Header> header = read_header(bytes, file.path);
  if (!header) return header.error();
  const int number = static_cast<int>(files_.size());
  for (Tensor& tensor : header->tensors) {
    const auto [place, added] = index_.emplace(tensor.name, tensors_.size());
    if (!added) {
      const int other = tensors_[place->second].file;
      return invalid(file.path, fmt::format("tensor {} is in '{}' too", quote(tensor.name),
                                            files_[static_cast<std::size_t>(other)].path));
    }
    tensor.file = number;
    tensors_.push_back(std::move(tensor));
  }
  file.bytes = std::ssize(bytes);
  file.metadata = std::move(header->metadata);
  files_.push_back(std::move(file));
  return {};
}

Status Checkpoint::add_file(const std::string& path) {
  Result<core::MappedFile> map = core::MappedFile::open(path);
  if (!map) return map.error();
  const std::span<const std::byte> bytes(map->data(), static_cast<std::size_t>(map->size()));
  File file;
  file.path = path;
  file.map = std::move(map).value();
  return add(std::move(file), bytes);
}

Status Checkpoint::add_shards(const std::string& index_path) {
  const Result<Shards> shards = read_index(index_path);
  if (!shards) return shards.error();
  const std::filesystem::path folder = std::filesystem::path(index_path).parent_path();
  for (const auto& shard : *shards) {
    const std::string& name = shard.first;
    const std::vector<std::string>& expected = shard.second;
    const std::string path = (folder / name).string();
    if (!has_file(path)) {
      return Error{
          ErrorCode::kNotFound,
          fmt::format("'{}' is missing: '{}' expects {} of its tensors there, {} among them", path,
                      index_path, expected.size(), quote(expected.front()))};
    }
    const std::size_t first = tensors_.size();
    if (Status added = add_file(path); !added) return added;
    for (const std::string& tensor : expected) {
      const auto found = index_.find(tensor);
      if (found == index_.end() || found->second < first) {
        return invalid(path, fmt::format("has no tensor {}, which '{}' expects there",
                                         quote(tensor), index_path));
      }
    }
    if (tensors_.size() - first != expected.size()) {
      const auto extra = std::find_if(tensors_.begin() + static_cast<std::ptrdiff_t>(first),
                                      tensors_.end(), [&](const Tensor& tensor) {
                                        return std::find(expected.begin(), expected.end(),
                                                         tensor.name) == expected.end();
                                      });
      return invalid(path, fmt::format("has {} tensors, '{}' expects {}; {} is not among them",
                                       tensors_.size() - first, index_path, expected.size(),
                                       quote(extra->name)));
    }
  }
  return {};
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void Checkpoint::release(const Tensor& tensor) const {
  const core::MappedFile& map = files_[static_cast<std::size_t>(tensor.file)].map;
  if (map.data() != nullptr && !tensor.bytes.empty())
    map.release(tensor.bytes.data() - map.data(), std::ssize(tensor.bytes));
}

}  // namespace segue::safetensors
