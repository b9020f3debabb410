// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors/writer.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"

namespace segue::safetensors {

using core::Json;

void Writer::metadata(std::string_view key, std::string_view text) {
  metadata_.emplace_back(key, text);
}

void Writer::tensor(std::string_view name, Dtype dtype, const std::vector<std::int64_t>& shape,
                    std::span<const std::byte> data) {
  std::int64_t elements = 1;
  for (const std::int64_t axis : shape) elements *= axis;
  CHECK(std::ssize(data) == elements * dtype_bytes(dtype));
  tensors_.push_back({std::string(name), dtype, shape,
                      std::string(reinterpret_cast<const char*>(data.data()), data.size())});
}

void Writer::tensor(std::string_view name, const std::vector<std::int64_t>& shape,
                    std::span<const float> data) {
  tensor(name, Dtype::kF32, shape, std::as_bytes(data));
}

std::vector<std::byte> Writer::bytes() const {
  std::vector<const Entry*> order;
  for (const Entry& entry : tensors_) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });
  Json::Object members;
  if (!metadata_.empty()) {
    Json::Object texts;
    for (const auto& [key, text] : metadata_) texts.emplace_back(key, text);
    members.emplace_back("__metadata__", Json(std::move(texts)));
  }
  std::string data;
  for (const Entry* entry : order) {
    const std::vector<std::int64_t> offsets{std::ssize(data),
                                            std::ssize(data) + std::ssize(entry->data)};
    members.emplace_back(entry->name, Json()
                                          .set("dtype", dtype_name(entry->dtype))
                                          .set("shape", Json(entry->shape))
                                          .set("data_offsets", Json(offsets)));
    data += entry->data;
  }
  std::string header = Json(std::move(members)).dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  std::vector<std::byte> file(sizeof(length) + header.size() + data.size());
  std::memcpy(file.data(), &length, sizeof(length));
  std::memcpy(file.data() + sizeof(length), header.data(), header.size());
  std::copy_n(reinterpret_cast<const std::byte*>(data.data()), data.size(),
              file.data() + sizeof(length) + header.size());
  return file;
}

Status Writer::write(const std::string& path) const {
  const std::vector<std::byte> file = bytes();
  return core::write_file(path, {reinterpret_cast<const char*>(file.data()), file.size()});
}

Status Writer::write_shards(const std::string& folder, std::span<const Writer> shards) {
  Json::Object map;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    if (Status written = shards[i].write(folder + "/" + name); !written) return written;
    for (const Entry& entry : shards[i].tensors_) {
      map.emplace_back(entry.name, name);
      total += std::ssize(entry.data);
    }
  }
  const Json index = Json()
                         .set("metadata", Json().set("total_size", total))
                         .set("weight_map", Json(std::move(map)));
  return core::write_file(folder + "/model.safetensors.index.json", index.dump(1) + "\n");
}

}  // namespace segue::safetensors
