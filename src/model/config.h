// SPDX-License-Identifier: Apache-2.0
// Config: everything about a model that its forward pass needs to know besides the weights. Read
// from GGUF metadata, validated once, plain values afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/gguf/gguf.h"
#include "ops/cpu/elementwise.h"
#include "segue/error.h"

namespace segue::model {

enum class Activation : std::uint8_t { kGeluTanh, kSilu };

/// What differs between kinds of layers: one entry per KV group.
struct LayerKind {
  std::string name;  // "sliding", "global"
  int window = 0;    // keys seen including the own one; 0: all
  double rope_theta = 10000.0;
  double rope_factor = 1.0;  // positions are divided by this
  int kv_heads = 0;
  int head_dim = 0;
};

struct Config {
  std::string architecture;  // "gemma3", "llama"
  std::string name;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t vocab = 0;
  std::int64_t context = 0;  // trained positions
  int layers = 0;
  int q_heads = 0;
  float rms_eps = 1e-6f;
  float embedding_scale = 1.0f;
  float attention_scale = 1.0f;
  Activation activation = Activation::kSilu;
  ops::RopePairs rope_pairs = ops::RopePairs::kAdjacent;
  int rope_dims = 0;        // leading dimensions of a head that rotate
  bool qk_norm = false;     // RMSNorm per head on q and k before RoPE
  bool post_norms = false;  // RMSNorm on the outputs of attention and MLP before the residual
  std::vector<LayerKind> kinds;
  std::vector<int> layer_kind;  // [layers] index into kinds
};

/// Refuses architectures other than gemma3 and llama, missing keys, and values that no forward pass
/// can run; messages name the key and the allowed values.
Result<Config> config_from_gguf(const gguf::File& file);

}  // namespace segue::model
