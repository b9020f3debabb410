// SPDX-License-Identifier: Apache-2.0
// The steps around the vocabulary in a tokenizer.json (normalizer, pre-tokenizer, post-processor,
// decoder): each is recognised as one of the forms that our tokenizer models implement, or refused.
// Private to this folder.
#pragma once

#include <optional>
#include <string>

#include "core/json.h"
#include "segue/error.h"

namespace segue::text {

/// What a tokenizer.json does to text, in our words.
struct Pipeline {
  std::string model;  // as Vocabulary::model: "gpt2" or "gemma4"
  std::string pre;    // as Vocabulary::pre
  bool space_prefix = false;
  std::optional<std::string> first;  // token text that the post-processor puts in front
  std::optional<std::string> last;   // and behind
};

/// kUnsupported, naming the step, what was found and what is read.
Result<Pipeline> read_pipeline(const core::Json& tokenizer);

/// `value` for a message: its JSON, cut when it is long.
std::string shown(const core::Json* value);

}  // namespace segue::text
