// SPDX-License-Identifier: Apache-2.0
// Small value types shared by the public API and everything below it: KV types, sampling parameters
// and speculation modes. No behaviour beyond names.
#pragma once

#include <cstdint>
#include <string_view>

namespace segue {

/// Where a model or a layer of attention runs.
enum class Device : std::uint8_t { kCpu, kCuda };

constexpr std::string_view device_name(Device device) {
  switch (device) {
    case Device::kCpu: return "cpu";
    case Device::kCuda: return "cuda";
  }
  return "?";
}

/// Storage type of the KV cache.
enum class KvType : std::uint8_t { kF32, kF16, kBF16 };

constexpr int kv_type_bytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }
constexpr std::string_view kv_type_name(KvType type) {
  switch (type) {
    case KvType::kF32: return "f32";
    case KvType::kF16: return "f16";
    case KvType::kBF16: return "bf16";
  }
  return "?";
}

/// What samples a token. Temperature 0 takes the largest penalised logit; every filter at its
/// default is off.
struct Sampling {
  float temperature = 0.0f;
  int top_k = 0;                // 0: off
  float top_p = 1.0f;           // 1: off
  float min_p = 0.0f;           // 0: off
  float repeat_penalty = 1.0f;  // 1: off
  int repeat_last_n = 64;       // tokens of history that the penalty looks at; -1: all, 0: none
  std::uint64_t seed = 0;
};

/// Which drafter proposes tokens: prompt lookup, an assistant that reads the target's cache, a
/// small model. kAuto lets the controller decide among those there are, 0 drafts included.
enum class SpecMode : std::uint8_t { kOff, kNgram, kMtp, kDraft, kAuto };

constexpr std::string_view spec_mode_name(SpecMode mode) {
  switch (mode) {
    case SpecMode::kOff: return "off";
    case SpecMode::kNgram: return "ngram";
    case SpecMode::kMtp: return "mtp";
    case SpecMode::kDraft: return "draft";
    case SpecMode::kAuto: return "auto";
  }
  return "?";
}

}  // namespace segue
