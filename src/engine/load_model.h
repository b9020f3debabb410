// SPDX-License-Identifier: Apache-2.0
// A model with its tokenizer: from a GGUF file, a Hugging Face folder, or random weights for a
// config, which have a vocabulary of bytes and placeholders.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/thread_pool.h"
#include "model/config.h"
#include "model/lm.h"
#include "segue/error.h"
#include "text/tokenizer.h"

namespace segue::engine {

struct LoadedModel {
  std::unique_ptr<model::LanguageModel> model;
  std::unique_ptr<text::Tokenizer> tokenizer;
};

/// `model`: the path of a GGUF file or folder; or "random:SEED:PATH", weights that are a function
/// of the seed for the config.json (or the config of the folder or file) at PATH: for measurements,
/// the text means nothing. Refuses a tokenizer with more tokens than the model has rows of
/// embeddings.
Result<LoadedModel> load_model(const std::string& model, core::ThreadPool& pool,
                               const model::LoadOptions& options);

/// The tokenizer of what load_model would load, without its weights.
Result<std::unique_ptr<text::Tokenizer>> open_tokenizer(const std::string& model);

/// The config of what load_model would load, at the cost of reading a file's head.
Result<model::Config> read_model_config(const std::string& model);

}  // namespace segue::engine
