// SPDX-License-Identifier: Apache-2.0
// Evaluation: a model's logits over a fixed text, as perplexity and against a reference:
// distributions recorded from another engine, or the same file with dequantised weights in f32.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/json.h"
#include "segue/engine.h"
#include "segue/error.h"

namespace segue::lab {

struct EvaluateOptions {
  std::string text;    // or the tokens of `recorded`
  std::string source;  // what messages call either: "'notes.txt'"
  const core::Json* recorded =
      nullptr;                   // tests/golden/logits: tokens, top_ids, top_logprobs per position
  bool against_float = false;    // compare with the same file in f32 (4 bytes per weight)
  Device device = Device::kCpu;  // the float reference needs the CPU
  KvType kv = KvType::kBF16;
  int threads = 0;  // 0: all CPUs of this process
  std::function<void(double fraction)> load_progress;
  std::function<void(double fraction)> progress;
  std::function<bool()> cancelled;  // asked between chunks, and between tensors while loading
};

struct Evaluation {
  /// {device_name, positions, total_positions, perplexity, mean_logprob, recorded: {top1_agreement,
  /// mean_kl, max_kl}, float_reference: {the same}, lost_bytes (of a text), interrupted}. Position
  /// i predicts token i + 1; KL is that of the reference from this model, over the recorded tokens
  /// and one bucket for the rest, or over the whole vocabulary for the float reference.
  core::Json figures;
  EngineOptions used;  // what an engine would have been given to compute the same
};

/// Of the model file at `path`. Interrupted: of the positions before; kCancelled while loading.
Result<Evaluation> evaluate(const std::string& path, const EvaluateOptions& options);

/// The figures for people.
std::string evaluation_table(const core::Json& figures);

}  // namespace segue::lab
