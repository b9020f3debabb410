// SPDX-License-Identifier: Apache-2.0
// What `run` and `batch` share: the flags of an engine and of sampling, and completions as JSON.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "cli/args.h"
#include "cli/model_flag.h"
#include "cli/terminal.h"
#include "core/json.h"
#include "segue/engine.h"

namespace segue::cli {

/// What a flag of `run` and the field of a request in `batch` may be: the same, from here.
namespace ranges {
template <class T>
struct Range {
  T low, high;
};
inline constexpr Range<std::int64_t> kMaxTokens{-1, std::int64_t{1} << 30};
inline constexpr Range<double> kTemperature{0, 1e6};
inline constexpr Range<int> kTopK{0, 1 << 30};
inline constexpr Range<double> kTopP{1e-9, 1};
inline constexpr Range<double> kMinP{0, 1};
inline constexpr Range<double> kRepeatPenalty{1e-3, 1e3};
inline constexpr Range<int> kRepeatLastN{-1, 1 << 30};
inline constexpr Range<int> kDraftTokens{0, 8};
inline constexpr Range<std::int64_t> kSeed{0, INT64_MAX};  // what JSON holds exactly
}  // namespace ranges

/// Flags that become EngineOptions, with --json, --quiet and --trace.
struct EngineFlags {
  ModelFlag model;
  EngineOptions engine;  // filled by the flags, all but model and kv
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
  core::Json settings() const;
};

/// Flags that become a Request, all but the prompt.
struct RequestFlags {
  Request values;  // filled by the flags, all but spec
  std::string spec = "auto";

  void declare(Args& args);
  /// A line for the person who gave flags that change nothing, by name; empty: all do something.
  std::string without_effect(const Args& args) const;
  Request request() const;
  core::Json settings() const;
};

/// --trace: one line of JSON per step. The file is open as long as this lives.
class TraceFile {
 public:
  /// Nothing to do for an empty path.
  void open(const std::string& path, EngineOptions& options);
  /// kIo when a line could not be written.
  Status close();

 private:
  std::string path_;
  std::ofstream file_;
};

/// A warning for the person whose text has bytes that the vocabulary lacks; empty for none.
std::string lost_bytes_warning(std::int64_t lost_bytes);

Result<SpecMode> parse_spec(std::string_view name);
Result<KvType> parse_kv(std::string_view name);

/// `settings`, `machine` and `build` are added by the caller where one document holds many
/// completions.
core::Json completion_json(const Completion& completion, double load_s, bool with_hash);

}  // namespace segue::cli
