// SPDX-License-Identifier: Apache-2.0
// segue cells: flags to lab::run_cells, cells to a table and a file.
#include <atomic>

#include <fmt/format.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "lab/cells.h"

namespace segue::cli {

Status cells_command(int argc, const char* const* argv) {
  ModelFlag model;
  std::uint64_t seed = 0;
  std::vector<std::int64_t> depths{512, 4096};
  std::vector<std::int64_t> batches{1};
  std::vector<std::int64_t> fixed{1, 2, 4, 8};
  std::vector<std::string> profiles{"0", "0.12", "0.46", "0.8", "0.95", "falling", "alternating"};
  std::string device = "cpu";
  std::string kv = "bf16";
  std::string json;
  bool quiet = false;
  lab::CellOptions options;
  Args args("cells",
            "Is --spec auto ever slower than off, or than the best fixed k? Cells of depth, batch "
            "and acceptance; an oracle drafts the target's own tokens.",
            {"segue cells -m model.gguf --depths 512,4096 --batch 1,4",
             "segue cells -m model.gguf --acceptance 0,0.8,falling --json cells.json",
             "segue cells --random-weights config.json --device cuda --depths 4096"});
  model.declare(args);
  args.seed("--seed", seed, "seed of --random-weights")
      .integers("--depths", depths, ranges::kDepth,
                "keys in the cache before the first measured step")
      .integers("--batch", batches, {1, 64}, "sequences that decode together")
      .list("--acceptance", profiles,
            "a probability; falling: 0.93 to 0.5 with depth; alternating: 0.9 and 0.1, changing "
            "every 50 tokens")
      .integers("--fixed", fixed, {1, ranges::kDraftTokens.high}, "k of the fixed alternatives")
      .integer("--rounds", options.rounds, {1, 1000}, "rounds; auto starts cold in each")
      .integer("--tokens", options.tokens, {8, 1 << 16},
               "tokens per sequence, alternative and round")
      .choice("--device", device, {"cpu", "cuda"}, "where the model runs")
      .choice("--kv", kv, {"f32", "f16", "bf16"}, "storage type of the KV cache")
      .integer("--threads", options.threads, ranges::kThreads,
               "threads; 0: all CPUs of this process")
      .path("--json", json, "write cells and settings to this file (-: standard output)")
      .flag("-q,--quiet", quiet, "no table, no progress");
  const Result<bool> parsed = args.parse(argc, argv);
  if (!parsed.ok()) return parsed.error();
  if (!*parsed) return {};
  if (Status status = model.resolve(args, seed); !status.ok()) return status;
  options.depths = depths;
  options.batches = batches;
  options.fixed = fixed;
  options.device = parse_device(device);
  options.kv = parse_kv(kv).value();
  for (const std::string& text : profiles) {
    Result<lab::CellProfile> profile = lab::parse_cell_profile(text);
    if (!profile.ok()) return profile.error();
    options.profiles.push_back(std::move(profile).value());
  }
  const NamedPath inputs[] = {{"--model", model.model}, {"--random-weights", model.random_config}};
  const NamedPath outputs[] = {{"--json", json}};
  if (Status status = check_distinct(inputs, outputs); !status.ok()) return status;
  if (Status status = check_writable(json); !status.ok()) return status;
  const std::atomic<bool>& stop = interrupted();
  options.cancelled = [&stop] { return stop.load(); };
  options.load_progress = progress_bar("loading", quiet);
  options.progress = progress_bar("measuring", quiet);
  Result<core::Json> cells = lab::run_cells(model.model, options);
  if (!cells.ok()) return cells.error();
  core::Json settings = core::Json::object();
  settings.set("model", model.model)
      .set("depths", depths)
      .set("batch", batches)
      .set("acceptance", profiles)
      .set("fixed", fixed)
      .set("rounds", options.rounds)
      .set("tokens", options.tokens)
      .set("device", device)
      .set("kv", kv)
      .set("threads", *cells->find("threads"));
  const std::string table = lab::cells_table(*cells);
  return finish_measurement(json, quiet, std::move(cells).value(), std::move(settings), table);
}

}  // namespace segue::cli
