// SPDX-License-Identifier: Apache-2.0
// LanguageModel: weights and one forward pass over a batch, the one interface that the engine and
// drafters see. It writes K and V into a kv::Cache that the caller owns and reserves; it knows
// nothing about requests or sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/kernel.h"
#include "attention/plan.h"
#include "core/cpu.h"
#include "core/thread_pool.h"
#include "kv/cache.h"
#include "model/config.h"
#include "model/place.h"
#include "model/tensors.h"
#include "segue/error.h"

namespace segue::model {

struct LoadOptions {
  Device device = Device::kCpu;
  core::IsaLevel isa = core::best_isa();
  bool dequantise =
      false;  // CPU: weights as f32, products in f32: the float reference of the same file
  std::function<void(double fraction)> progress;  // called from the loading thread, or empty
  std::function<bool()> cancelled;                // asked between tensors, or empty: kCancelled
};

/// The rows of one sequence in a step. Its positions [depth, depth + tokens.size()) must be
/// reserved in the cache.
struct SequenceInput {
  kv::SequenceId id;
  std::int64_t depth = 0;                // keys in the cache before the step
  std::span<const std::int32_t> tokens;  // ids in [0, vocab)
  bool prefill = false;                  // prompt tokens
  int logits = 0;                        // how many of its last rows need logits
};

struct StepInput {
  kv::Cache* cache = nullptr;
  std::span<const SequenceInput> sequences;
  attention::Policy policy = attention::Policy::kSegue;
  const attention::Kernel* kernel = nullptr;  // forced, or null
  int decode_rows = 1;                        // 1 + k that the engine was started with
  int workgroups = 0;                         // 0: as many as the device runs at once
  std::function<bool()> cancelled{};          // asked while it runs, or empty: kCancelled
};

/// What attention did in one KV group; valid until the next forward().
struct GroupRecord {
  const attention::Plan* plan = nullptr;
  int layers = 0;
  double attention_us = 0;  // all layers of the group; on a GPU one layer's, times their number
};

struct StepOutput {
  const float* logits =
      nullptr;  // [rows that asked, vocab] in order of sequences; valid until the next forward()
  const float* hidden =
      nullptr;  // [rows, hidden] of the same rows: what went into the head, after the last norm
  const float* block_maxima = nullptr;  // [rows, ceil(vocab / kMaximaBlock)], or null: the largest
                                        // logits as speculate::SampleRow has them
  std::int64_t rows = 0;
  std::span<const GroupRecord> groups;  // one per LayerKind
  double recording_us = 0;  // of the call's time: preparing what steps like this one will reuse

  static constexpr std::int64_t kMaximaBlock = 64;
  /// Of one of the rows, or empty.
  std::span<const float> maxima_of(std::int64_t row, std::int64_t vocab) const {
    const std::int64_t blocks = (vocab + kMaximaBlock - 1) / kMaximaBlock;
    if (block_maxima == nullptr) return {};
    return {block_maxima + row * blocks, static_cast<std::size_t>(blocks)};
  }
};

/// A layer's K and V in a kv::Cache: cache.view(pool, layer).
struct KvPlace {
  int pool = 0;
  int layer = 0;
};

/// One model on one device. Weights, activations and logits are its own; K and V lie in a cache
/// that was made from its pool_specs.
class LanguageModel {
 public:
  /// Takes the weights out of a source and repacks them; mapped pages are released as tensors are
  /// taken over. Tensors that this forward pass would ignore are refused, not skipped. `source` is
  /// only read during the call. On a GPU also refuses what check_place does.
  static Result<std::unique_ptr<LanguageModel>> load(const Config& config, TensorSource& source,
                                                     core::ThreadPool& pool,
                                                     const LoadOptions& options);
  /// The same from a GGUF file or a Hugging Face folder.
  static Result<std::unique_ptr<LanguageModel>> open(const std::string& path,
                                                     core::ThreadPool& pool,
                                                     const LoadOptions& options);
  /// The same from a GGUF file that is open.
  static Result<std::unique_ptr<LanguageModel>> load(const gguf::File& file, core::ThreadPool& pool,
                                                     const LoadOptions& options);
  virtual ~LanguageModel() = default;
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;

  const Config& config() const { return config_; }
  const Place& place() const { return place_; }
  virtual std::int64_t weight_bytes() const = 0;

  /// One pool per LayerKind, in that order, in this device's memory and layout; `pages` is left 0
  /// (kv::size_pools fills it). The model outlives their caches.
  std::vector<kv::PoolSpec> pool_specs(KvType type, int page_size) const;

  /// Where an assistant reads K and V of a kind (Config::kinds): in the last layer that has its
  /// own.
  KvPlace last_kv_layer(int kind) const { return {kind, config_.kv_layers(kind) - 1}; }

  /// The row that `token` (in [0, vocab)) puts into the first layer, scaled.
  virtual void embed_token(std::int32_t token, float* out /*[hidden]*/) const = 0;

  /// Takes the memory for so many rows of logits now, the largest buffer of a step. Otherwise the
  /// first step with more rows than any before pays for it.
  virtual void reserve_logits(std::int64_t rows) = 0;

  /// One step; done when it returns. Rows of a sequence never influence another's, and their bits
  /// depend on nothing but the tokens before them. Fails when a kernel is forced that cannot run a
  /// group's shape, with kDevice when the device does, and with kCancelled, on a GPU after a layer.
  virtual Result<StepOutput> forward(const StepInput& input) = 0;

 protected:
  LanguageModel(Config config, Place place)
      : config_(std::move(config)), place_(std::move(place)) {}

  /// Of the GPU that the model is on; null on the CPU.
  virtual const device::Stream* stream() const { return nullptr; }

  Config config_;
  Place place_;
};

}  // namespace segue::model
