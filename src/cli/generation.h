// SPDX-License-Identifier: Apache-2.0
// What `run`, `batch` and `eval` share: the flags of an engine and of sampling, settings and
// completions as JSON.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/args.h"
#include "cli/model_flag.h"
#include "cli/terminal.h"
#include "core/json.h"
#include "segue/engine.h"

namespace segue::cli {

/// Flags that become EngineOptions, with --json, --quiet and --trace.
struct EngineFlags {
  ModelFlag model;
  EngineOptions engine;  // filled by the flags, all but model, device and kv
  std::string device = "cpu";
  std::string kv = "bf16";
  std::string json;
  std::string trace;
  bool quiet = false;

  void declare(Args& args);
  /// What the flags say; interrupts cancel, progress is shown.
  EngineOptions options() const;
  /// kUsage when --json or --trace would overwrite what the command reads, `input` included, or
  /// each other; kIo when they cannot be written; as check_model_path for the models that draft.
  Status check_files(const NamedPath& input) const;
};

/// A field of a request that changes nothing beside its other fields: {"at temperature 0",
/// "top_k"}.
struct WithoutEffect {
  std::string_view why;
  std::string_view field;
};

/// All such fields, whether given or not.
std::vector<WithoutEffect> without_effect(const Request& request);
/// One line for the person who gave them, as flags of `run` or as fields of `batch`; empty: none.
std::string warning_of(const std::vector<WithoutEffect>& given, bool as_flags);

/// Flags that become a Request, all but the prompt.
struct RequestFlags {
  Request values;  // filled by the flags, all but spec
  std::string spec = "auto";

  void declare(Args& args);
  Request request() const;
  /// The flags that were given and are without effect.
  std::vector<WithoutEffect> without_effect(const Args& args) const;
};

/// --trace: one line of JSON per step. The file is open as long as this lives.
class TraceFile {
 public:
  /// Nothing to do for an empty path.
  Status open(const std::string& path, EngineOptions& options);
  /// kIo when a line could not be written.
  Status close();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write(std::string_view line);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int problem_ = 0;  // errno of the first write that failed
};

/// A warning for the person whose text has bytes that the vocabulary lacks; empty for none.
std::string lost_bytes_warning(std::int64_t lost_bytes);

Result<SpecMode> parse_spec(std::string_view name);
Result<KvType> parse_kv(std::string_view name);
/// "cpu" or "cuda".
Device parse_device(std::string_view name);

/// `settings` of an engine: what it used, with what a 0 of the flags stood for; `kernel` is null
/// unless one was forced.
core::Json engine_settings(const EngineOptions& used);
core::Json request_settings(const Request& request);
/// Both in one object.
core::Json all_settings(const EngineOptions& used, const Request& request);

/// `attention` of a document: the kernels and paths that ran, with the steps of each.
core::Json attention_json(const Engine& engine);

/// null for none.
core::Json forced_kernel(const std::string& kernel);

/// `settings`, `machine` and `build` are added by the caller where one document holds many
/// completions.
core::Json completion_json(const Completion& completion, double load_s, bool with_hash);

}  // namespace segue::cli
