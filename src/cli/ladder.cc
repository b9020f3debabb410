// SPDX-License-Identifier: Apache-2.0
// segue ladder: flags to lab::run_ladder, rows to a table and a file.
#include <atomic>
#include <iterator>

#include <fmt/format.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "lab/ladder.h"

namespace segue::cli {

Status ladder_command(int argc, const char* const* argv) {
  ModelFlag model;
  std::uint64_t seed = 0;
  std::vector<std::int64_t> depths{512, 2048, 8192};
  std::vector<std::string> specs{"off", "ngram:4", "auto"};
  std::vector<std::string> policies{"segue", "stock"};
  std::string prompt_file;
  std::string fill = "synthetic";
  std::string device = "cpu";
  std::string kv = "bf16";
  std::string json;
  bool quiet = false;
  int threads = 0;
  lab::LadderOptions options;
  Args args("ladder",
            "Decode speed at several depths, with and without speculation, on each attention path.",
            {"segue ladder -m model.gguf --depths 512,2048,8192 --spec off,ngram:4",
             "segue ladder -m model.gguf --depths 16384 --spec off,ngram:4,auto "
             "--synthetic-acceptance 0.8,0.6,0.5",
             "segue ladder -m model.gguf --prompt-file book.txt --json ladder.json"});
  model.declare(args);
  args.seed("--seed", seed, "seed of --random-weights")
      .integers("--depths", depths, ranges::kDepth,
                "keys in the cache before the first measured step")
      .path("--assistant", options.assistant, kAssistantHelp)
      .path("--draft-model", options.draft_model,
            "a small model with the same vocabulary that drafts")
      .list("--spec", specs, lab::ladder_spec_forms())
      .list("--policies", policies,
            "segue, stock, pr45450, pr47520, batch_invariant, whole, segmented")
      .integer("--rounds", options.rounds, {1, 1000}, "rounds; every alternative runs in each")
      .integer("--tokens", options.tokens, {8, 1 << 16}, "tokens per alternative, depth and round")
      .path("--prompt-file", prompt_file, "fill the context with this text, repeated")
      .choice("--fill", fill, {"synthetic"},
              "fill the context without a text: pseudo-random tokens")
      .reals(
          "--synthetic-acceptance", options.synthetic_acceptance, {0, 1},
          "probability that draft position 1, 2, .. is right, the last also for those after it; an "
          "oracle drafts the target's own tokens")
      .choice("--device", device, {"cpu", "cuda"}, "where the model runs")
      .choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .integer("--page-size", options.page_size, ranges::kPageSize,
               "tokens of a KV page; 0: the default")
      .integer("--prefill-chunk", options.prefill_chunk, ranges::kPrefillChunk,
               "prompt rows of one step")
      .integer("--threads", threads, ranges::kThreads, "threads; 0: all CPUs of this process")
      .path("--json", json, "write rows and settings to this file (-: standard output)")
      .flag("-q,--quiet", quiet, "no table, no progress");
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  if (Status status = model.resolve(args, seed); !status.ok()) return status;
  if (args.given("--fill") && args.given("--prompt-file")) {
    return Error{ErrorCode::kUsage, "--fill and --prompt-file exclude each other"};
  }
  if (std::ssize(options.synthetic_acceptance) > ranges::kDraftTokens.high) {
    return Error{ErrorCode::kUsage,
                 fmt::format("--synthetic-acceptance: {} values; allowed: up to {}, one for each "
                             "draft position",
                             options.synthetic_acceptance.size(), ranges::kDraftTokens.high)};
  }
  options.depths = depths;
  options.device = parse_device(device);
  options.kv = parse_kv(kv).value();
  for (const std::string& text : specs) {
    const Result<lab::LadderSpec> spec = lab::parse_ladder_spec(text);
    if (!spec.ok()) return spec.error();
    options.specs.push_back(*spec);
  }
  for (const std::string& text : policies) {
    const Result<attention::Policy> policy = attention::parse_policy(text);
    if (!policy.ok()) return policy.error();
    options.policies.push_back(*policy);
  }
  if (!prompt_file.empty()) {
    Result<std::string> text = core::read_file(prompt_file);
    if (!text.ok()) return text.error();
    if (text->empty())
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("--prompt-file: {} is empty", input_name(prompt_file))};
    options.text = std::move(text).value();
  }
  const NamedPath inputs[] = {{"--model", model.model},
                              {"--random-weights", model.random_config},
                              {"--prompt-file", prompt_file},
                              {"--assistant", options.assistant},
                              {"--draft-model", options.draft_model}};
  const NamedPath outputs[] = {{"--json", json}};
  if (Status status = check_distinct(inputs, outputs); !status.ok()) return status;
  if (Status status = model.check_drafts(options.assistant, options.draft_model); !status.ok())
    return status;
  if (Status status = check_writable(json); !status.ok()) return status;
  const std::atomic<bool>& stop = interrupted();
  options.cancelled = [&stop] { return stop.load(); };
  options.threads = threads;
  options.load_progress = progress_bar("loading", quiet);
  options.progress = progress_bar("measuring", quiet);
  Result<core::Json> ladder = lab::run_ladder(model.model, options);
  if (!ladder.ok()) return ladder.error();
  core::Json settings = core::Json::object();
  settings.set("model", model.model)
      .set("assistant", options.assistant)
      .set("draft_model", options.draft_model)
      .set("depths", depths)
      .set("spec", specs)
      .set("policies", policies)
      .set("rounds", options.rounds)
      .set("tokens", options.tokens)
      .set("prompt_file", prompt_file)
      .set("synthetic_acceptance", options.synthetic_acceptance)
      .set("device", device)
      .set("kv", kv)
      .set("page_size", *ladder->find("page_size"))
      .set("prefill_chunk", options.prefill_chunk)
      .set("threads", *ladder->find("threads"));
  const std::string table = lab::ladder_table(*ladder);
  return finish_measurement(json, quiet, std::move(ladder).value(), std::move(settings), table);
}

}  // namespace segue::cli
