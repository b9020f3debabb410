// SPDX-License-Identifier: Apache-2.0
// Random weights for measurements: a model of any published size without its files. Speed does not
// depend on what weights say, as long as states neither vanish nor overflow.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "core/dtype.h"
#include "core/hash.h"
#include "model/tensors.h"

namespace segue::model {
namespace {

/// The numbers of one tensor: word i is a mix of key and i (splitmix64, Steele et al. 2014).
class Stream {
 public:
  explicit Stream(std::uint64_t key) : state_(key) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// Levels -7 .. 7 of two nibbles: 0 (which would stand for -8) becomes 8 (which stands for 0).
constexpr std::array<std::uint8_t, 256> symmetric_nibbles() {
  std::array<std::uint8_t, 256> table{};
  for (int byte = 0; byte < 256; ++byte) {
    const int low = byte % 16 == 0 ? 8 : byte % 16;
    const int high = byte / 16 == 0 ? 8 : byte / 16;
    table[static_cast<std::size_t>(byte)] = static_cast<std::uint8_t>(low | (high << 4));
  }
  return table;
}
constexpr std::array<std::uint8_t, 256> kNibbles = symmetric_nibbles();
constexpr double kNibbleDeviation = 4.18;  // of those levels: 0 twice as often as the others

/// Rows of Q4_0 with standard deviation 1 / sqrt(inputs): a product keeps the size of its input.
void fill_q4_0(std::int64_t inputs, Stream random, std::vector<std::byte>& out) {
  const double scale = 1.0 / (kNibbleDeviation * std::sqrt(static_cast<double>(inputs)));
  const std::uint16_t half = core::f32_to_f16(static_cast<float>(scale));
  const auto block = static_cast<std::size_t>(core::dtype_info(core::DType::kQ4_0).block_bytes);
  for (std::size_t at = 0; at < out.size(); at += block) {
    std::memcpy(out.data() + at, &half, sizeof(half));
    for (std::size_t word = 0; word < 2; ++word) {
      std::array<std::uint8_t, 8> bytes = std::bit_cast<std::array<std::uint8_t, 8>>(random.next());
      for (std::uint8_t& byte : bytes) byte = kNibbles[byte];
      std::memcpy(out.data() + at + sizeof(half) + word * bytes.size(), bytes.data(), bytes.size());
    }
  }
}

/// BF16, uniform with standard deviation 3 / sqrt(inputs): logits of a tied head then have one
/// of 3.
void fill_bf16(std::int64_t inputs, Stream random, std::vector<std::byte>& out) {
  const float width =
      3.0f * std::sqrt(3.0f) / std::sqrt(static_cast<float>(inputs)) * 0x1p-15f;  // of 2^15 steps
  for (std::size_t at = 0; at < out.size();) {
    std::uint64_t word = random.next();
    for (int part = 0; part < 4 && at < out.size(); ++part, at += 2, word >>= 16) {
      const auto level = static_cast<std::int16_t>(word & 0xffff);
      const std::uint16_t bits = core::f32_to_bf16(static_cast<float>(level) * width);
      std::memcpy(out.data() + at, &bits, sizeof(bits));
    }
  }
}

/// Norms and scales. Scores of attention get a standard deviation of 2: queries of length sqrt(n)
/// meet keys of length 2.
float vector_value(const TensorRequest& request) {
  if (request.name.ends_with("k_norm.weight"))
    return 2.0f / std::sqrt(static_cast<float>(request.inputs));
  return request.name.ends_with("layer_scalar") ? 0.7f : 1.0f;
}

class RandomTensors final : public TensorSource {
 public:
  explicit RandomTensors(std::uint64_t seed)
      : seed_(seed), path_(fmt::format("random weights, seed {}", seed)) {}

  const std::string& path() const override { return path_; }
  Naming naming() const override { return Naming::kHuggingFace; }
  std::int64_t total_bytes() const override { return 0; }
  bool has(const std::string& name) const override { return !name.empty(); }
  void release(const core::TensorView& tensor) override { made_.erase(tensor.name); }
  std::vector<std::string> names() const override { return {}; }

  Result<core::TensorView> find(const TensorRequest& request) override {
    core::TensorView view;
    view.name = request.name;
    view.shape = {request.inputs, request.outputs, request.count, 1};
    view.dims = request.count > 1 ? 3 : request.outputs > 1 ? 2 : 1;
    const bool vector = request.outputs == 1 && request.count == 1;
    view.dtype = vector                                  ? core::DType::kF32
                 : request.name == "embed_tokens.weight" ? core::DType::kBF16
                                                         : core::DType::kQ4_0;
    const core::DTypeInfo info = core::dtype_info(view.dtype);
    if (request.inputs % info.block_elements != 0) {
      return Error{
          ErrorCode::kUnsupported,
          fmt::format("'{}': tensor '{}' has {} inputs; random weights need a multiple of {}",
                      path_, request.name, request.inputs, info.block_elements)};
    }
    view.bytes = view.elements() / info.block_elements * info.block_bytes;
    std::vector<std::byte>& bytes = made_[request.name];
    bytes.resize(static_cast<std::size_t>(view.bytes));
    core::Hash64 key;
    key.update(&seed_, sizeof(seed_));
    key.update(request.name.data(), request.name.size());
    if (vector) {
      const float value = vector_value(request);
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(value))
        std::memcpy(bytes.data() + at, &value, sizeof(value));
    } else if (view.dtype == core::DType::kBF16) {
      fill_bf16(request.inputs, Stream(key.digest()), bytes);
    } else {
      fill_q4_0(request.inputs, Stream(key.digest()), bytes);
    }
    view.data = bytes.data();
    return view;
  }

 private:
  std::uint64_t seed_;
  std::string path_;
  std::unordered_map<std::string, std::vector<std::byte>> made_;
};

}  // namespace

std::unique_ptr<TensorSource> random_tensors(std::uint64_t seed) {
  return std::make_unique<RandomTensors>(seed);
}

}  // namespace segue::model
