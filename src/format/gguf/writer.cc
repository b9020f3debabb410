// SPDX-License-Identifier: Apache-2.0
// Lays a GGUF file out in one buffer, in the order of the grammar in gguf.h.
#include "format/gguf/writer.h"

#include <bit>
#include <cstring>

#include "core/check.h"
#include "format/gguf/types.h"

namespace segue::gguf {

static_assert(std::endian::native == std::endian::little,
              "GGUF is read and written as it lies in memory");

std::string Writer::encode(std::string_view text) {
  return encode(static_cast<std::uint64_t>(text.size())) += text;
}

std::string Writer::array_head(ValueType element, std::size_t count) {
  return encode(static_cast<std::uint32_t>(element)) += encode(static_cast<std::uint64_t>(count));
}

void Writer::put(std::string_view key, ValueType type, std::string_view payload) {
  std::erase_if(entries_, [key](const Entry& entry) { return entry.key == key; });
  set_raw(key, type, payload);
}

void Writer::set_raw(std::string_view key, ValueType type, std::string_view payload) {
  entries_.push_back({std::string(key), type, std::string(payload)});
  if (key == "general.alignment" && payload.size() == sizeof(alignment_)) {
    std::memcpy(&alignment_, payload.data(), sizeof(alignment_));
    CHECK(alignment_ > 0);
  }
}

void Writer::tensor(std::string_view name, core::DType type, const std::vector<std::int64_t>& shape,
                    std::span<const std::byte> data) {
  const core::DTypeInfo info = core::dtype_info(type);
  std::int64_t elements = 1;
  for (const std::int64_t dim : shape) elements *= dim;
  CHECK(!shape.empty() && shape.size() <= 4 && shape[0] % info.block_elements == 0);
  CHECK(std::ssize(data) == elements / info.block_elements * info.block_bytes);
  tensors_.push_back({std::string(name), type, shape,
                      std::string(reinterpret_cast<const char*>(data.data()), data.size())});
}

void Writer::tensor(std::string_view name, const std::vector<std::int64_t>& shape,
                    std::span<const float> data) {
  tensor(name, core::DType::kF32, shape, std::as_bytes(data));
}

std::vector<std::byte> Writer::bytes() const {
  const auto pad = [&](std::string& text) {
    text.resize((text.size() + alignment_ - 1) / alignment_ * alignment_);
  };
  std::string head = "GGUF";
  head += encode(version_);
  head += encode(static_cast<std::uint64_t>(tensors_.size()));
  head += encode(std::uint64_t{entries_.size()});
  for (const Entry& entry : entries_) {
    head += encode(std::string_view(entry.key));
    head += encode(static_cast<std::uint32_t>(entry.type));
    head += entry.payload;
  }
  std::string data;
  for (const Tensor& tensor : tensors_) {
    pad(data);
    head += encode(std::string_view(tensor.name));
    head += encode(static_cast<std::uint32_t>(tensor.shape.size()));
    for (const std::int64_t dim : tensor.shape) head += encode(static_cast<std::uint64_t>(dim));
    head += encode(tensor_type_id(tensor.type));
    head += encode(static_cast<std::uint64_t>(data.size()));
    data += tensor.data;
  }
  pad(head);
  pad(data);
  head += data;
  const auto* first = reinterpret_cast<const std::byte*>(head.data());
  return {first, first + head.size()};
}

Status Writer::write(const std::string& path) const {
  const std::vector<std::byte> file = bytes();
  return core::write_file(path, {reinterpret_cast<const char*>(file.data()), file.size()});
}

}  // namespace segue::gguf
