// SPDX-License-Identifier: Apache-2.0
// Bytes as a safetensors file. An accepted file must hold what safetensors.h promises: every tensor
// inside the data, disjoint, as large as its shape says. The sanitizers watch the reads.
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "format/safetensors/describe.h"
#include "format/safetensors/packed.h"
#include "format/safetensors/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segue;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const Result<safetensors::Checkpoint> checkpoint = safetensors::Checkpoint::parse(bytes, "fuzz");
  if (!checkpoint) {
    CHECK(!checkpoint.error().message.empty());
    return 0;
  }
  std::size_t total = 0;
  unsigned sum = 0;
  for (const safetensors::Tensor& tensor : checkpoint->tensors()) {
    CHECK(checkpoint->find(tensor.name) == &tensor);
    std::int64_t elements = 1;
    for (const std::int64_t axis : tensor.shape) elements *= axis;
    CHECK(tensor.elements() == elements);
    CHECK((tensor.bytes.data() - bytes.data()) % safetensors::dtype_bytes(tensor.dtype) == 0);
    for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
    total += tensor.bytes.size();
    if (const Result<core::TensorView> view = safetensors::view(tensor); view.ok()) {
      CHECK(view->elements() == elements && view->bytes == std::ssize(tensor.bytes));
    }
    const std::string& name = tensor.name;
    constexpr std::string_view kPacked = ".weight_packed";
    if (!name.ends_with(kPacked)) continue;
    const std::string linear = name.substr(0, name.size() - kPacked.size());
    CHECK(safetensors::is_packed(*checkpoint, linear));
    const Result<safetensors::PackedWeight> weight =
        safetensors::packed_weight(*checkpoint, linear);
    if (weight.ok()) CHECK(weight->words.elements() * 8 == weight->inputs * weight->outputs);
  }
  CHECK(total <= size && sum <= size * 255);
  const Result<core::Json> described =
      core::Json::parse(safetensors::describe(*checkpoint).dump(), core::Json::Repeats::kRefused);
  CHECK(described.ok());
  return 0;
}
