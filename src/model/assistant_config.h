// SPDX-License-Identifier: Apache-2.0
// What a Gemma 4 assistant is besides its weights, from a Hugging Face folder's config.json or GGUF
// metadata, and whether it fits a target. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "format/gguf/gguf.h"
#include "model/config.h"
#include "model/lm.h"
#include "segue/error.h"

namespace segue::model {

struct AssistantConfig {
  std::string path;           // for messages
  Config text;                // its layers: all of them read K and V of the target
  std::int64_t backbone = 0;  // hidden size of the target
  // Head: scores of groups of tokens first, then of the tokens of the best groups; 0: all tokens.
  std::int64_t centroids = 0;
  int centroid_top = 0;
};

/// Both refuse other architectures, missing and impossible values; the message names file and key.
Result<AssistantConfig> assistant_from_json(const core::Json& json, const std::string& path);
Result<AssistantConfig> assistant_from_gguf(const gguf::File& file);

/// Of a Hugging Face folder, its config.json or a GGUF file.
Result<AssistantConfig> read_assistant_config(const std::string& path);

/// [kinds of the assistant] the kind of the target that each reads. kUnsupported, with the two
/// numbers that do not fit, when the target is not what the assistant was made for.
Result<std::vector<int>> fit(const AssistantConfig& config, const Config& target);

/// kUnsupported for what does not run there, by name.
Status check_place(const Place& place, const AssistantConfig& config);

}  // namespace segue::model
