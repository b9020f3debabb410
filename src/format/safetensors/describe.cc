// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors/describe.h"

#include <map>
#include <utility>
#include <vector>

namespace segue::safetensors {
namespace {

using core::Json;

struct Total {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;

  void add(const Tensor& tensor) {
    ++tensors;
    elements += tensor.elements();
    bytes += std::ssize(tensor.bytes);
  }
  Json json() const {
    return Json().set("tensors", tensors).set("elements", elements).set("bytes", bytes);
  }
};

}  // namespace

Json describe(const Checkpoint& checkpoint) {
  std::vector<std::int64_t> tensors_of_file(checkpoint.files().size());
  Json tensors = Json::array();
  Total all;
  std::map<Dtype, Total> by_type;
  for (const Tensor& tensor : checkpoint.tensors()) {
    tensors.push(Json()
                     .set("name", tensor.name)
                     .set("type", dtype_name(tensor.dtype))
                     .set("shape", Json(tensor.shape))
                     .set("bytes", std::ssize(tensor.bytes)));
    ++tensors_of_file[static_cast<std::size_t>(tensor.file)];
    all.add(tensor);
    by_type[tensor.dtype].add(tensor);
  }
  Json types = Json::object();
  for (const auto& [type, total] : by_type) types.set(dtype_name(type), total.json());

  Json files = Json::array();
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    const Checkpoint::File& file = checkpoint.files()[i];
    files.push(
        Json().set("file", file.path).set("bytes", file.bytes).set("tensors", tensors_of_file[i]));
    bytes += file.bytes;
  }
  Json::Object metadata;
  for (const auto& [key, text] : checkpoint.files().front().metadata)
    metadata.emplace_back(key, text);

  return Json()
      .set("file", checkpoint.path())
      .set("bytes", bytes)
      .set("files", std::move(files))
      .set("metadata", Json(std::move(metadata)))
      .set("tensors", std::move(tensors))
      .set("totals", all.json().set("types", std::move(types)));
}

}  // namespace segue::safetensors
