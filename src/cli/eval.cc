// SPDX-License-Identifier: Apache-2.0
// segue eval: perplexity of a text, and distance to a reference.
#include <fmt/format.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/terminal.h"
#include "core/build.h"
#include "core/file.h"
#include "core/log.h"
#include "lab/evaluate.h"

namespace segue::cli {
namespace {

void print_comparison(std::string_view name, const core::Json* comparison) {
  if (comparison == nullptr) return;
  double agreement = 0;
  double mean = 0;
  double most = 0;
  static_cast<void>(comparison->find("top1_agreement")->as_double(agreement));
  static_cast<void>(comparison->find("mean_kl")->as_double(mean));
  static_cast<void>(comparison->find("max_kl")->as_double(most));
  fmt::print("{:<16} top-1 agreement {:.2f} %, mean KL {:.3g}, largest {:.3g}\n", name,
             agreement * 100, mean, most);
}

}  // namespace

Status eval_command(int argc, const char* const* argv) {
  std::string model;
  std::string text_file;
  std::string reference;
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
      .choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .integer("--threads", threads, 0, 1024, "threads; 0: all CPUs of this process")
      .path("--json", json, "write the figures to this file (-: standard output)")
      .flag("-q,--quiet", quiet, "no table, no progress");
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
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
  const Result<std::string> text = core::read_file(text_file.empty() ? reference : text_file);
  if (!text.ok()) return text.error();
  if (text->empty()) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}' is empty", text_file.empty() ? reference : text_file)};
  }
  Result<core::Json> recorded = core::Json();
  if (!reference.empty()) {
    recorded = core::Json::parse(*text);
    if (!recorded.ok()) {
      return Error{recorded.error().code,
                   fmt::format("'{}': {}", reference, recorded.error().message)};
    }
  }
  lab::EvaluateOptions options;
  options.text = *text;
  options.source = text_file.empty() ? reference : text_file;
  options.recorded = reference.empty() ? nullptr : &*recorded;
  options.against_float = against_float;
  options.kv = parse_kv(kv).value();
  options.threads = threads;
  options.load_progress = progress_bar("loading", quiet);
  options.progress = progress_bar("evaluating", quiet);
  Result<core::Json> result = lab::evaluate(model, options);
  if (!result.ok()) return result.error();
  if (!quiet && json != "-") {
    double perplexity = 0;
    static_cast<void>(result->find("perplexity")->as_double(perplexity));
    fmt::print("{} positions, perplexity {:.3f}\n", *result->find("positions")->as_int(),
               perplexity);
    if (const core::Json* lost = result->find("lost_bytes"); lost != nullptr && *lost->as_int() > 0)
      core::log_info(lost_bytes_warning(*lost->as_int()));
    print_comparison("recorded", result->find("recorded"));
    print_comparison("float reference", result->find("float_reference"));
  }
  result->set("settings", core::Json::object()
                              .set("model", file_name(model))
                              .set("kv", kv)
                              .set("reference", reference)
                              .set("text_file", text_file)
                              .set("threads", threads));
  result->set("machine", core::machine_json()).set("build", core::build_json());
  return write_json(json, *result);
}

}  // namespace segue::cli
