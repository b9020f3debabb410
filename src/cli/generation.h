// SPDX-License-Identifier: Apache-2.0
// What `run` and `batch` share: the flags of an engine and of sampling, and completions as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "cli/args.h"
#include "cli/model_flag.h"
#include "cli/terminal.h"
#include "core/json.h"
#include "segue/engine.h"

namespace segue::cli {

/// Flags that become EngineOptions, with --json, --quiet and --trace.
struct EngineFlags {
  ModelFlag model;
  std::string assistant;
  std::string draft_model;
  int threads = 0;
  std::string kv = "bf16";
  int page_size = 0;
  int prefill_chunk = 512;
  std::int64_t context = 0;
  std::string policy = "segue";
  std::string kernel;
  std::string json;
  std::string trace;
  bool quiet = false;

  void declare(Args& args);
  EngineOptions options() const;
  /// kUsage when --json or --trace would overwrite what the command reads, `input` included, or
  /// each other; kIo when they cannot be written.
  Status check_outputs(const NamedPath& input) const;
  core::Json settings() const;
};

/// Flags that become a Request, all but the prompt.
struct RequestFlags {
  std::int64_t max_tokens = -1;
  Sampling sampling;
  std::string spec = "auto";
  int draft_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool logits_hash = false;

  void declare(Args& args);
  Request request() const;
  core::Json settings() const;
};

Result<SpecMode> parse_spec(std::string_view name);
Result<KvType> parse_kv(std::string_view name);

/// `settings`, `machine` and `build` are added by the caller where one document holds many
/// completions.
core::Json completion_json(const Completion& completion, double load_s, bool with_hash);

}  // namespace segue::cli
