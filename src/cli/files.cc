// SPDX-License-Identifier: Apache-2.0
// segue inspect and segue tokenize: what is in a model file, and how it reads text.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "core/log.h"
#include "format/gguf/describe.h"
#include "format/safetensors/describe.h"
#include "text/tokenizer.h"

namespace segue::cli {
namespace {

/// The description as two plain tables.
void print_description(const core::Json& description) {
  for (const auto& [key, value] : *description.find("metadata")->as_object()) {
    fmt::print("{:<44} {}\n", core::printable(key), value.dump());
  }
  fmt::print("\n{:<44} {:<6} {:<24} {:>14}\n", "tensor", "type", "shape", "bytes");
  for (const core::Json& tensor : *description.find("tensors")->as_array()) {
    fmt::print("{:<44} {:<6} {:<24} {:>14}\n", core::printable(*tensor.find("name")->as_string()),
               *tensor.find("type")->as_string(), tensor.find("shape")->dump(),
               *tensor.find("bytes")->as_int());
  }
  fmt::print("\n{}\n", description.find("totals")->dump());
}

/// A folder and a file by that name are safetensors, anything else GGUF.
Result<core::Json> describe(const std::string& path) {
  constexpr ModelForms kDescribed{"", ".safetensors",
                                  "a GGUF file, a .safetensors file, or a folder of them"};
  if (Status status = check_model_path("inspect", path, kDescribed); !status.ok())
    return status.error();
  std::error_code ignored;
  if (path.ends_with(".safetensors") || std::filesystem::is_directory(path, ignored)) {
    const Result<safetensors::Checkpoint> checkpoint = safetensors::Checkpoint::open(path);
    if (!checkpoint.ok()) return checkpoint.error();
    return safetensors::describe(*checkpoint);
  }
  const Result<gguf::File> file = gguf::File::open(path);
  if (!file.ok()) return file.error();
  return gguf::describe(*file);
}

}  // namespace

Status inspect_command(int argc, const char* const* argv) {
  std::string path;
  std::string json;
  bool quiet = false;
  int threads = 0;
  Args args("inspect",
            "Show the metadata and tensors of a GGUF file, a safetensors file or a folder of them.",
            {"segue inspect model.gguf", "segue inspect gemma-4-12b",
             "segue inspect model.gguf --json - --quiet"});
  args.positional("file", path, "model file (GGUF, safetensors) or folder")
      .path("--json", json, "write the description to this file (-: standard output)")
      .integer("--threads", threads, ranges::kThreads,
               "accepted by every command; this one needs one")
      .flag("-q,--quiet", quiet, "no table");
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  const NamedPath inputs[] = {{"the model", path}};
  const NamedPath outputs[] = {{"--json", json}};
  if (Status status = check_distinct(inputs, outputs); !status.ok()) return status;
  Result<core::Json> description = describe(path);
  if (!description.ok()) return description.error();
  if (!quiet && json != "-") print_description(*description);
  return write_with_settings(json, std::move(description).value(),
                             core::Json::object().set("file", path));
}

Status tokenize_command(int argc, const char* const* argv) {
  std::string model;
  std::string prompt;
  std::string prompt_file;
  std::string json;
  bool special = false;
  bool quiet = false;
  int threads = 0;
  Args args("tokenize", "Print the token ids of a text, one per line with its piece.",
            {"segue tokenize -m model.gguf -p 'Hello, world'",
             "segue tokenize -m model.gguf --prompt-file notes.txt --json ids.json --quiet"});
  args.path("-m,--model", model, "model file (GGUF), or folder with a tokenizer.json", true)
      .text("-p,--prompt", prompt, "text")
      .path("--prompt-file", prompt_file, "read the text from this file (-: standard input)")
      .flag("--special", special, "texts of control tokens become those tokens")
      .path("--json", json, "write tokens, pieces and lost_bytes to this file (-: standard output)")
      .integer("--threads", threads, ranges::kThreads,
               "accepted by every command; this one needs one")
      .flag("-q,--quiet", quiet, "no table");
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  if (args.given("--prompt") == args.given("--prompt-file")) {
    return Error{ErrorCode::kUsage, "exactly one of -p TEXT and --prompt-file FILE is needed"};
  }
  const NamedPath inputs[] = {{"--model", model}, {"--prompt-file", prompt_file}};
  const NamedPath outputs[] = {{"--json", json}};
  if (Status status = check_distinct(inputs, outputs); !status.ok()) return status;
  if (args.given("--prompt-file")) {
    Result<std::string> text = core::read_file(prompt_file);
    if (!text.ok()) return text.error();
    prompt = std::move(text).value();
  }
  constexpr ModelForms kTokenizer{"tokenizer.json", "",
                                  "a GGUF file, or a folder with a tokenizer.json"};
  if (Status status = check_model_path("--model", model, kTokenizer); !status.ok()) return status;
  const Result<std::unique_ptr<text::Tokenizer>> tokenizer = text::Tokenizer::open(model);
  if (!tokenizer.ok()) return tokenizer.error();
  const std::vector<std::int32_t> ids = (*tokenizer)->encode_prompt(prompt, special);
  core::Json pieces = core::Json::array();
  for (std::int32_t id : ids) {
    const core::Json piece((*tokenizer)->piece(id, true));
    if (!quiet && json != "-") fmt::print("{:>8}  {}\n", id, piece.dump());
    pieces.push(piece);
  }
  const std::int64_t lost = (*tokenizer)->lost_bytes(prompt, special);
  if (lost > 0 && !quiet) core::log_info(lost_bytes_warning(lost));
  core::Json document = core::Json::object();
  document.set("tokens", ids).set("pieces", std::move(pieces)).set("lost_bytes", lost);
  core::Json settings = core::Json::object();
  settings.set("model", model).set("prompt_file", prompt_file).set("special", special);
  return write_with_settings(json, std::move(document), std::move(settings));
}

}  // namespace segue::cli
