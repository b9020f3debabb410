// SPDX-License-Identifier: Apache-2.0
#include "cli/model_flag.h"

#include <fmt/format.h>

namespace segue::cli {

void ModelFlag::declare(Args& args) {
  args.path("-m,--model", model, "model: a GGUF file or a Hugging Face folder")
      .path("--random-weights", random_config,
            "instead of -m: weights from --seed for this config.json, to measure a size without "
            "its files");
}

Status ModelFlag::resolve(std::uint64_t seed) {
  if (model.empty() == random_config.empty()) {
    return Error{
        ErrorCode::kUsage,
        "exactly one of --model FILE_OR_FOLDER and --random-weights CONFIG.json is needed"};
  }
  if (model.empty()) model = fmt::format("random:{}:{}", seed, random_config);
  return {};
}

}  // namespace segue::cli
