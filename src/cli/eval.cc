// SPDX-License-Identifier: Apache-2.0
// segue eval: perplexity of a text, and distance to a reference.
#include <atomic>

#include <fmt/format.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "core/log.h"
#include "lab/evaluate.h"

namespace segue::cli {
Status eval_command(int argc, const char* const* argv) {
  std::string model;
  std::string text_file;
  std::string reference;
  std::string device = "cpu";
  std::string kv = "bf16";
  std::string json;
  bool against_float = false;
  bool quiet = false;
  int threads = 0;
  Args args(
      "eval", "Perplexity of a text, and how far the logits are from a reference.",
      {"segue eval -m model.gguf --text-file notes.txt",
       "segue eval -m model.gguf --reference tests/golden/logits/gemma-3-270m-q4_k_m.prose.json",
       "segue eval -m model.gguf --text-file notes.txt --against-float"});
  args.path("-m,--model", model, "model file (GGUF), or folder", true)
      .path("--text-file", text_file, "the text (-: standard input)")
      .path("--reference", reference, "recorded tokens and distributions of another engine (JSON)")
      .flag("--against-float", against_float,
            "compare with the same file in f32 (needs 4 bytes per weight)")
      .choice("--device", device, {"cpu", "cuda"}, "where the model runs")
      .choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .integer("--threads", threads, ranges::kThreads, "threads; 0: all CPUs of this process")
      .path("--json", json, "write the figures to this file (-: standard output)")
      .flag("-q,--quiet", quiet, "no table, no progress");
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  if (quiet) core::set_log_level(core::LogLevel::kQuiet);
  if (args.given("--text-file") == args.given("--reference")) {
    return Error{ErrorCode::kUsage,
                 "exactly one of --text-file FILE and --reference FILE is needed"};
  }
  if (Status status = check_model_path("--model", model); !status.ok()) return status;
  const NamedPath inputs[] = {
      {"--model", model}, {"--text-file", text_file}, {"--reference", reference}};
  const NamedPath outputs[] = {{"--json", json}};
  if (Status status = check_distinct(inputs, outputs); !status.ok()) return status;
  if (Status status = check_writable(json); !status.ok()) return status;
  const std::string& input = text_file.empty() ? reference : text_file;
  const std::string source = input_name(input);
  const Result<std::string> text = core::read_file(input);
  if (!text.ok()) return text.error();
  if (text->empty()) {
    return Error{ErrorCode::kInvalidFile, fmt::format("{} is empty", source)};
  }
  Result<core::Json> recorded = core::Json();
  if (!reference.empty()) {
    recorded = core::Json::parse(*text);
    if (!recorded.ok()) {
      return Error{recorded.error().code, fmt::format("{}: {}", source, recorded.error().message)};
    }
  }
  lab::EvaluateOptions options;
  options.text = *text;
  options.source = source;
  options.recorded = reference.empty() ? nullptr : &*recorded;
  options.against_float = against_float;
  options.device = parse_device(device);
  options.kv = parse_kv(kv).value();
  options.threads = threads;
  options.load_progress = progress_bar("loading", quiet);
  options.progress = progress_bar("evaluating", quiet);
  const std::atomic<bool>& stop = interrupted();
  options.cancelled = [&stop] { return stop.load(); };
  Result<lab::Evaluation> result = lab::evaluate(model, options);
  if (!result.ok()) return result.error();
  core::Json& figures = result->figures;
  if (const core::Json* lost = figures.find("lost_bytes"); lost != nullptr && *lost->as_int() > 0)
    core::log_info(lost_bytes_warning(*lost->as_int()));
  core::Json settings = engine_settings(result->used);
  settings.set("reference", reference)
      .set("text_file", text_file)
      .set("against_float", against_float);
  const std::string table = lab::evaluation_table(figures);
  return finish_measurement(json, quiet, std::move(figures), std::move(settings), table);
}

}  // namespace segue::cli
