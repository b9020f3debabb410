// SPDX-License-Identifier: Apache-2.0
// The flags that say which model: a file or folder, or random weights for a config.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/args.h"
#include "segue/error.h"

namespace segue::cli {

/// Declares -m and --random-weights; `model` gets what the engine takes once resolve() is called.
struct ModelFlag {
  std::string model;
  std::string random_config;

  void declare(Args& args);
  /// kUsage unless exactly one of the two was given; as check_model_path. `seed`: of random
  /// weights.
  Status resolve(std::uint64_t seed);
  /// The same where nothing else has a --seed: kUsage when it is given without random weights.
  Status resolve(const Args& args, std::uint64_t seed);
  /// As check_model_path for the models that draft (empty: none). Beside random weights an
  /// assistant may be a config.json: it gets random ones too.
  Status check_drafts(const std::string& assistant, const std::string& draft_model) const;
};

inline constexpr const char* kAssistantHelp =
    "the model's assistant: a folder or a GGUF file; with --random-weights also a config.json";

/// What a path may be besides a GGUF file.
struct ModelForms {
  std::string_view in_folder = "config.json";  // a folder with this file
  std::string_view suffix{};                   // a file with this ending; empty: none
  std::string_view allowed =
      "a GGUF file, or a folder with config.json, tokenizer.json and safetensors";
};

inline constexpr ModelForms kWholeModel{};
inline constexpr ModelForms kAnyConfig{"config.json", ".json",
                                       "a GGUF file, a config.json, or a folder with one"};

/// Says of a folder or file that is no model what it is and what is allowed instead, which the
/// readers of single formats cannot know. What is not there, and empty paths, are left to them.
Status check_model_path(std::string_view flag, const std::string& path,
                        const ModelForms& forms = kWholeModel);

}  // namespace segue::cli
