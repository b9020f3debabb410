// SPDX-License-Identifier: Apache-2.0
// Loading a model file into a Runtime.
#include "engine/runtime.h"

#include <fmt/format.h>

#include "core/clock.h"
#include "core/cpu.h"
#include "format/gguf/gguf.h"

namespace segue::engine {

Result<int> resolve_threads(int threads) {
  constexpr int kMaxThreads = 1024;
  if (threads < 0 || threads > kMaxThreads) {
    return Error{ErrorCode::kUsage,
                 fmt::format("threads is {}; allowed: 0 (all CPUs) to {}", threads, kMaxThreads)};
  }
  return threads == 0 ? core::cpu_facts().logical_cpus : threads;
}

Result<std::unique_ptr<Runtime>> Runtime::load(const RuntimeOptions& options) {
  const double start = core::now_us();
  const Result<int> threads = resolve_threads(options.threads);
  if (!threads.ok()) return threads.error();
  const Result<gguf::File> file = gguf::File::open(options.model);
  if (!file.ok()) return file.error();
  auto runtime = std::make_unique<Runtime>();
  runtime->pool = std::make_unique<core::ThreadPool>(*threads);
  model::LoadOptions load_options;
  load_options.progress = options.progress;
  load_options.dequantise = options.dequantise;
  Result<std::unique_ptr<model::LanguageModel>> model =
      model::LanguageModel::load(*file, *runtime->pool, load_options);
  if (!model.ok()) return model.error();
  runtime->model = std::move(model).value();
  Result<text::Vocabulary> vocabulary = text::vocabulary_from_gguf(*file);
  if (!vocabulary.ok()) return vocabulary.error();
  Result<std::unique_ptr<text::Tokenizer>> tokenizer =
      text::Tokenizer::create(std::move(vocabulary).value());
  if (!tokenizer.ok()) return tokenizer.error();
  runtime->tokenizer = std::move(tokenizer).value();
  if (runtime->tokenizer->vocab_size() > runtime->model->config().vocab) {
    return Error{
        ErrorCode::kInvalidFile,
        fmt::format("'{}': the tokenizer has {} tokens, the embedding {} rows", options.model,
                    runtime->tokenizer->vocab_size(), runtime->model->config().vocab)};
  }
  runtime->load_s = (core::now_us() - start) / 1e6;
  return runtime;
}

}  // namespace segue::engine
