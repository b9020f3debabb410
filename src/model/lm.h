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
#include <vector>

#include "attention/kernel.h"
#include "attention/plan.h"
#include "core/cpu.h"
#include "core/thread_pool.h"
#include "kv/cache.h"
#include "model/config.h"
#include "model/tensors.h"
#include "segue/error.h"

namespace segue::model {

struct LoadOptions {
  core::IsaLevel isa = core::best_isa();
  bool dequantise = false;  // weights as f32, products in f32: the float reference of the same file
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
  int workgroups = 0;                         // 0: as many as threads
};

/// What attention did in one KV group; valid until the next forward().
struct GroupRecord {
  const attention::Plan* plan = nullptr;
  int layers = 0;
  double attention_us = 0;  // all layers of the group
};

struct StepOutput {
  const float* logits =
      nullptr;  // [rows that asked, vocab] in order of sequences; valid until the next forward()
  const float* hidden =
      nullptr;  // [rows, hidden] of the same rows: what went into the head, after the last norm
  std::int64_t rows = 0;
  std::span<const GroupRecord> groups;  // one per LayerKind
};

/// A layer's K and V in a kv::Cache: cache.view(pool, layer).
struct KvPlace {
  int pool = 0;
  int layer = 0;
};

class LanguageModel {
 public:
  /// Takes the weights out of a source and repacks them; mapped pages are released as tensors are
  /// taken over. Tensors that this forward pass would ignore are refused, not skipped. `source` is
  /// only read during the call.
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
  ~LanguageModel();
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;

  const Config& config() const;
  core::IsaLevel isa() const;
  std::int64_t weight_bytes() const;

  /// One pool per LayerKind, in that order; `pages` is left 0 (kv::size_pools fills it).
  std::vector<kv::PoolSpec> pool_specs(KvType type, int page_size) const;

  /// The attention shape of a LayerKind on such a pool, and the device facts that planning uses.
  attention::Shape attention_shape(int kind, KvType type, int page_size) const;
  const attention::DeviceFacts& device() const;

  /// Where an assistant reads K and V of a kind (Config::kinds): in the last layer that has its
  /// own.
  KvPlace last_kv_layer(int kind) const;

  /// The row that `token` (in [0, vocab)) puts into the first layer, scaled.
  void embed_token(std::int32_t token, float* out /*[hidden]*/) const;

  /// Takes the memory for so many rows of logits now, the largest buffer of a step. Otherwise the
  /// first step with more rows than any before pays for it.
  void reserve_logits(std::int64_t rows);

  /// One step. Rows of a sequence never influence another's, and their bits depend on nothing but
  /// the tokens before them. Fails only when a kernel is forced that cannot run a group's shape.
  Result<StepOutput> forward(const StepInput& input);

 private:
  struct Impl;
  explicit LanguageModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// LanguageModel::attention_shape, before there is a model.
attention::Shape attention_shape(const Config& config, int kind, KvType type, int page_size);

/// Device facts of the CPU backend for so many threads.
attention::DeviceFacts cpu_device(int threads);

}  // namespace segue::model
