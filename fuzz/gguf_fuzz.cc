// SPDX-License-Identifier: Apache-2.0
// Bytes as a GGUF file. An accepted file must hold what gguf.h promises: every tensor inside the
// data section, every value readable as its type. The sanitizers watch the reads.
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "format/gguf/describe.h"
#include "format/gguf/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segue;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const Result<gguf::File> file = gguf::File::parse(bytes, "fuzz");
  if (!file) {
    CHECK(!file.error().message.empty());
    return 0;
  }
  for (const gguf::Entry& entry : file->metadata()) {
    const gguf::Value& value = entry.value;
    CHECK(file->find(entry.key) == &value);
    const auto ints = value.as_ints();
    const auto floats = value.as_floats();
    const auto bools = value.as_bools();
    const auto strings = value.as_strings();
    if (floats) CHECK(static_cast<std::int64_t>(floats->size()) == value.count());
    if (bools) CHECK(static_cast<std::int64_t>(bools->size()) == value.count());
    if (ints) CHECK(floats.has_value());
    unsigned sum = 0;
    if (strings) {
      for (const std::string_view text : *strings) {
        for (const char c : text) sum += static_cast<unsigned char>(c);
      }
    }
    CHECK(sum <= size * 255);
  }
  for (const core::TensorView& tensor : file->tensors()) {
    CHECK(file->find_tensor(tensor.name) == &tensor);
    const auto first = tensor.data - bytes.data();
    CHECK(first >= file->data_offset() && tensor.bytes > 0);
    CHECK(tensor.bytes <= static_cast<std::int64_t>(size) - first);
    CHECK((first - file->data_offset()) % file->alignment() == 0);
  }
  const Result<core::Json> described = core::Json::parse(gguf::describe(*file).dump());
  CHECK(described.ok());
  return 0;
}
