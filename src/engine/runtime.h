// SPDX-License-Identifier: Apache-2.0
// Runtime: what is loaded once and shared by every request: threads, model, tokenizer, and the
// models that draft. Engine and lab build on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/thread_pool.h"
#include "model/assistant.h"
#include "model/lm.h"
#include "segue/error.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace segue::engine {

struct RuntimeOptions {
  std::string model;
  std::string assistant{};       // of the model: a folder or a GGUF file; empty: none
  std::string draft_model{};     // a small model that drafts; empty: none
  Device device = Device::kCpu;  // of all models
  int threads = 0;               // 0: all CPUs this process may use
  std::function<void(double fraction)> progress{};
  std::function<bool()> cancelled{};  // asked between tensors, or empty: kCancelled
  bool dequantise = false;            // model::LoadOptions
};

struct Runtime {
  std::unique_ptr<core::ThreadPool> pool;
  std::unique_ptr<model::LanguageModel> model;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<model::Assistant> assistant;        // of `model`, or null
  std::unique_ptr<model::LanguageModel> draft_model;  // with the vocabulary of `model`, or null
  double load_s = 0;

  /// Bytes that caches may take beside the weights, where those are.
  std::int64_t cache_budget_bytes() const;

  /// Refuses (kUnsupported) a draft model with another vocabulary, because drafts are token ids of
  /// the target, and an assistant that was made for another target.
  static Result<std::unique_ptr<Runtime>> load(const RuntimeOptions& options);
};

/// Threads to use for a request of `threads` (0: all CPUs of this process). kUsage below 0 or above
/// 1024.
Result<int> resolve_threads(int threads);

}  // namespace segue::engine
