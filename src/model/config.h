// SPDX-License-Identifier: Apache-2.0
// Config: everything about a model that its forward pass needs to know besides the weights. Read
// from GGUF metadata or a config.json, validated once, plain values afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
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
  int rotary = 0;           // dims of a head that rotate, in rotary / 2 pairs
  int rotary_span = 0;      // dims over which pairs and frequencies are spread: rotary, or head_dim
                            // when a part of a whole head's pairs rotates ("proportional")
  bool v_from_k = false;    // V is the output of K's projection, before norm and RoPE
  bool rope_freqs = false;  // the file's divisors of the angles apply

  ops::RopeShape rope(int heads, ops::RopePairs pairs) const {
    return {heads, head_dim, rotary, rotary_span / 2, pairs};
  }
};

struct Layer {
  int kind = 0;
  bool owns_kv = true;  // computes K and V; otherwise it reads those of an earlier layer
  int kv_layer = 0;     // whose K and V it reads: index among the owners of its kind; -1: another
                        // model's (an assistant)
  std::int64_t intermediate = 0;
};

/// Experts beside the dense MLP of every layer (Gemma 4 26B-A4B).
struct Experts {
  int count = 0;  // 0: none
  int used = 0;   // per row
  std::int64_t intermediate = 0;
};

struct Config {
  std::string architecture;  // "gemma3", "gemma4", "llama"
  std::string name;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t context = 0;  // trained positions
  int q_heads = 0;
  float rms_eps = 1e-6f;
  float embedding_scale = 1.0f;
  float attention_scale = 1.0f;
  float final_softcap = 0.0f;  // logits become c tanh(logit / c); 0: as they are
  Activation activation = Activation::kSilu;
  ops::RopePairs rope_pairs = ops::RopePairs::kAdjacent;
  bool qk_norm = false;        // RMSNorm per head on q and k before RoPE
  bool v_norm = false;         // the same on v, without a weight
  bool post_norms = false;     // RMSNorm on the outputs of attention and MLP before the residual
  bool layer_scalars = false;  // a layer's output is multiplied by a stored scalar
  bool tied = true;            // the head is the embedding; false: it may be a tensor of its own
  int per_layer_input = 0;     // width of the embedding that every layer adds; 0: none
  std::int64_t per_layer_vocab = 0;
  Experts experts;
  std::vector<LayerKind> kinds;
  std::vector<Layer> layers;

  const LayerKind& kind_of(const Layer& layer) const {
    return kinds[static_cast<std::size_t>(layer.kind)];
  }
  int layer_count() const { return static_cast<int>(layers.size()); }
  /// Layers of a kind that own K and V: those of its pool.
  int kv_layers(int kind) const;
  /// Index of a kind by name, or -1.
  int find_kind(std::string_view kind_name) const;
};

/// Refuses architectures other than gemma3, gemma4 and llama, missing keys, values that no forward
/// pass can run, and keys that ask for what none does; messages name the key and the allowed
/// values.
Result<Config> config_from_gguf(const gguf::File& file);

/// Reads a Hugging Face config.json of Gemma 4 (gemma4, gemma4_unified and their text configs);
/// keys that it leaves out have the published defaults. `where` stands for the file in messages.
/// The text config of an assistant, whose layers all read another model's K and V, is read as well.
Result<Config> config_from_json(const core::Json& json, const std::string& where);

/// The config of the model at `path`: a GGUF file, a folder with a config.json, or a config.json.
Result<Config> read_config(const std::string& path);

/// For the readers of both formats: sets kind, owner and index of K and V of every layer from the
/// kind of each, when the last `shared` layers read those of the last owner of their kind; drops
/// kinds without layers. `config.layers` has the right size.
Status assign_layers(Config& config, std::span<const int> kinds, int shared,
                     const std::string& where);

/// For the readers of both formats: head counts and head_dims that no kernel can run.
Status check_heads(const Config& config, const std::string& where);

}  // namespace segue::model
