// SPDX-License-Identifier: Apache-2.0
#include "cli/model_flag.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace segue::cli {
namespace {

constexpr std::string_view kRandom = "random:";

}  // namespace

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
  if (!model.empty()) return check_model_path("--model", model);
  model = fmt::format("{}{}:{}", kRandom, seed, random_config);
  return check_model_path("--random-weights", random_config, kAnyConfig);
}

Status ModelFlag::resolve(const Args& args, std::uint64_t seed) {
  if (random_config.empty() && args.given("--seed"))
    return Error{ErrorCode::kUsage, "--seed is that of --random-weights, which is not given"};
  return resolve(seed);
}

Status ModelFlag::check_drafts(const std::string& assistant, const std::string& draft_model) const {
  const ModelForms& forms = random_config.empty() ? kWholeModel : kAnyConfig;
  if (Status status = check_model_path("--assistant", assistant, forms); !status.ok())
    return status;
  return check_model_path("--draft-model", draft_model);
}

Status check_model_path(std::string_view flag, const std::string& path, const ModelForms& forms) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const auto refuse = [&](const std::string& found) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("{}: '{}' {}; allowed: {}", flag, path, found, forms.allowed)};
  };
  if (fs::is_directory(path, ignored)) {
    if (fs::exists(fs::path(path) / forms.in_folder, ignored)) return {};
    return refuse(fmt::format("is a folder without {}", forms.in_folder));
  }
  if (!fs::is_regular_file(path, ignored)) return {};
  if (!forms.suffix.empty() && path.ends_with(forms.suffix)) return {};
  constexpr std::string_view kMagic = "GGUF";
  std::array<char, kMagic.size()> begin{};
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  file.read(begin.data(), begin.size());
  const auto got = static_cast<std::size_t>(file.gcount());
  if (std::string_view(begin.data(), got) == kMagic) return {};
  return refuse(got == 0 ? "is empty" : "is no GGUF file (it does not begin with 'GGUF')");
}

}  // namespace segue::cli
