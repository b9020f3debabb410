// SPDX-License-Identifier: Apache-2.0
// Runtime: what is loaded once and shared by every request: threads, model, tokenizer. Engine and
// lab build on it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/thread_pool.h"
#include "model/lm.h"
#include "segue/error.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace segue::engine {

struct RuntimeOptions {
  std::string model;
  int threads = 0;  // 0: all CPUs this process may use
  std::function<void(double fraction)> progress;
  bool dequantise = false;  // model::LoadOptions
};

struct Runtime {
  std::unique_ptr<core::ThreadPool> pool;
  std::unique_ptr<model::LanguageModel> model;
  std::unique_ptr<text::Tokenizer> tokenizer;
  double load_s = 0;

  static Result<std::unique_ptr<Runtime>> load(const RuntimeOptions& options);
};

/// Threads to use for a request of `threads` (0: all CPUs of this process). kUsage below 0 or above
/// 1024.
Result<int> resolve_threads(int threads);

}  // namespace segue::engine
