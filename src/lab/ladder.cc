// SPDX-License-Identifier: Apache-2.0
// In a round every alternative decodes a fork of the trunk.
#include "lab/ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "core/clock.h"
#include "engine/limits.h"
#include "lab/stats.h"
#include "lab/trunk.h"
#include "speculate/oracle_drafter.h"

namespace segue::lab {
namespace {

constexpr int kSliceTokens = 8;
using engine::kMaxK;

/// What an alternative's steps took.
struct Times {
  std::vector<double> slice_us;               // per token
  std::vector<double> step_ms, attention_ms;  // [steps]
  std::vector<double> full_k_ms, plain_ms;    // steps with the largest k, and with none

  void append(const Times& more) {
    for (const auto part : {&Times::slice_us, &Times::step_ms, &Times::attention_ms,
                            &Times::full_k_ms, &Times::plain_ms})
      (this->*part).insert((this->*part).end(), (more.*part).begin(), (more.*part).end());
  }
};

/// One column of the ladder: a policy with a speculation setting, and what it measured at the
/// current depth.
struct Alternative {
  Alternative(attention::Policy policy_in, LadderSpec spec_in)
      : policy(policy_in), spec(std::move(spec_in)) {}

  attention::Policy policy;
  LadderSpec spec;
  speculate::Controller controller;
  engine::Sequence sequence;
  std::vector<speculate::Drafter*> drafters;
  std::unique_ptr<speculate::OracleDrafter> oracle;  // in front of the first drafter, or null
  std::vector<double> round_rates;                   // tokens per second
  Times times;                                       // of the rounds that finished
  Times round;                                       // of the one that runs
  speculate::Statistics stats;
  core::Json groups;
  double round_us = 0;
  int round_tokens = 0;
};

/// Most tokens that a round can take: a slice ends with a whole step.
std::int64_t round_room(int tokens) { return 2 * std::int64_t{tokens} + 4 * kMaxK; }

/// What is refused before the model is loaded.
Status check(const std::string& path, const LadderOptions& options) {
  const Result<model::Place> place =
      engine::check_place(options.device, options.threads, options.kv);
  if (!place.ok()) return place.error();
  const Result<model::Config> config =
      engine::check_models(path, options.assistant, options.draft_model, *place);
  if (!config.ok()) return config.error();
  for (const LadderSpec& spec : options.specs) {
    if (Status status = engine::check_drafter(spec.mode, !options.assistant.empty(),
                                              !options.draft_model.empty());
        !status.ok()) {
      return status;
    }
  }
  const int page_size = options.page_size == 0 ? kv::kDefaultPageSize : options.page_size;
  if (Status status = engine::check_sizes(page_size, options.prefill_chunk); !status.ok())
    return status;
  return check_room(*config, std::ranges::max(options.depths), round_room(options.tokens));
}

/// Constant per-position acceptance a at which a step of 1 + k rows that costs `cost` plain steps
/// emits as many tokens as it costs: (1 + a + .. + a^k) = cost. Empty when even a = 1 is not
/// enough.
std::optional<double> break_even(double cost, int k) {
  if (cost <= 1) return 0;
  if (cost > k + 1) return std::nullopt;
  double low = 0;
  double high = 1;
  for (int i = 0; i < 60; ++i) {
    const double a = (low + high) / 2;
    double tokens = 1;
    double power = 1;
    for (int j = 0; j < k; ++j) tokens += power *= a;
    (tokens < cost ? low : high) = a;
  }
  return high;
}

class Ladder {
 public:
  Ladder(engine::Runtime& runtime, LadderOptions options)
      : runtime_(runtime), options_(std::move(options)) {}

  Result<core::Json> run();

 private:
  Status prepare();
  Status begin_round(Alternative& alternative, int round);
  Status slice(Alternative& alternative);
  Status rounds();
  Status measure(std::int64_t depth, core::Json& rows);
  core::Json row(std::int64_t depth, const Alternative& alternative, const Alternative& off) const;
  void advance(double work);

  engine::Runtime& runtime_;
  LadderOptions options_;
  std::unique_ptr<Trunk> trunk_;
  std::vector<Alternative> alternatives_;
  std::vector<std::int32_t> own_tokens_;  // the target's, at the current depth, for the oracle
  double done_ = 0;
  double total_ = 1;
};

Status Ladder::prepare() {
  std::ranges::sort(options_.depths);
  const auto is_off = [](const LadderSpec& spec) { return spec.mode == SpecMode::kOff; };
  if (std::ranges::none_of(options_.specs, is_off))
    options_.specs.insert(options_.specs.begin(), LadderSpec{"off", SpecMode::kOff, 0});
  for (attention::Policy policy : options_.policies) {
    for (const LadderSpec& spec : options_.specs) alternatives_.emplace_back(policy, spec);
  }
  const auto steps =
      static_cast<double>(alternatives_.size() * options_.depths.size()) * options_.rounds;
  total_ = static_cast<double>(options_.depths.back()) + steps * options_.tokens * 8;
  engine::LoopOptions loop;
  loop.kv = options_.kv;
  if (options_.page_size != 0) loop.page_size = options_.page_size;
  loop.prefill_chunk = options_.prefill_chunk;
  loop.max_sequences = static_cast<int>(alternatives_.size());
  for (const LadderSpec& spec : options_.specs)
    loop.decode_rows = std::max(loop.decode_rows, 1 + spec.draft_tokens);
  Result<std::unique_ptr<Trunk>> trunk = Trunk::create(
      runtime_, loop,
      {.depth = options_.depths.back(),
       .room = round_room(options_.tokens),
       .text = options_.text,
       .cancelled = options_.cancelled,
       .prefilled = [this](std::int64_t rows) { advance(static_cast<double>(rows)); }});
  if (!trunk.ok()) return trunk.error();
  trunk_ = std::move(trunk).value();
  for (Alternative& alternative : alternatives_) {
    Result<std::vector<speculate::Drafter*>> drafters =
        trunk_->loop().drafters(alternative.spec.mode);
    if (!drafters.ok()) return drafters.error();
    alternative.drafters = std::move(drafters).value();
    trunk_->prepare(alternative.drafters);
  }
  return {};
}

/// A decoded token counts as eight prefilled ones: close enough for a bar.
void Ladder::advance(double work) {
  done_ += work;
  if (options_.progress) options_.progress(std::min(1.0, done_ / total_));
}

Status Ladder::begin_round(Alternative& alternative, int round) {
  Result<engine::Sequence> fork = trunk_->fork();
  if (!fork.ok()) return fork.error();
  alternative.sequence = std::move(fork).value();
  engine::Sequence& sequence = alternative.sequence;
  sequence.spec = alternative.spec.mode;
  sequence.max_draft = alternative.spec.draft_tokens;
  sequence.drafters = alternative.drafters;
  if (alternative.oracle != nullptr) {
    alternative.oracle->record(sequence.key, own_tokens_, static_cast<std::uint64_t>(round));
    sequence.drafters = {alternative.oracle.get()};
  }
  alternative.round = {};
  alternative.round_us = 0;
  alternative.round_tokens = 0;
  return {};
}

Status Ladder::slice(Alternative& alternative) {
  engine::Sequence* const one = &alternative.sequence;
  int tokens = 0;
  double us = 0;
  while (tokens < kSliceTokens) {
    const Result<engine::StepReport> report =
        trunk_->loop().step({&one, 1}, alternative.policy, alternative.controller);
    if (!report.ok()) return report.error();
    const engine::SequenceStep& step = report->sequences[0];
    double attention_us = 0;
    alternative.groups = core::Json::array();
    for (const model::GroupRecord& group : report->groups) {
      attention_us += group.attention_us;
      core::Json json = core::Json::object();
      json.set("layers", group.layers)
          .set("kernel", group.plan->kernel->name)
          .set("path", attention::path_name(group.plan->verdict.path))
          .set("workgroups", group.plan->workgroups());
      alternative.groups.push(std::move(json));
    }
    tokens += step.emitted;
    us += report->total_us;
    Times& times = alternative.round;
    times.step_ms.push_back(report->total_us / 1e3);
    times.attention_ms.push_back(attention_us / 1e3);
    if (step.drafted == 0) times.plain_ms.push_back(report->total_us / 1e3);
    if (step.drafted > 0 && step.drafted == alternative.spec.draft_tokens) {
      times.full_k_ms.push_back(report->total_us / 1e3);
    }
  }
  alternative.round.slice_us.push_back(us / tokens);
  alternative.round_us += us;
  alternative.round_tokens += tokens;
  advance(8.0 * tokens);
  return {};
}

Status Ladder::measure(std::int64_t depth, core::Json& rows) {
  if (!options_.synthetic_acceptance.empty()) {
    Result<std::vector<std::int32_t>> own = trunk_->own_tokens();
    if (!own.ok()) return own.error();
    own_tokens_ = std::move(own).value();
  }
  for (Alternative& alternative : alternatives_) {
    std::vector<speculate::Drafter*> drafters = std::move(alternative.drafters);
    alternative = Alternative(alternative.policy, alternative.spec);
    alternative.controller = engine::new_controller(runtime_.model->place());
    alternative.drafters = std::move(drafters);
    if (options_.synthetic_acceptance.empty() || alternative.drafters.empty()) continue;
    // Pays for the drafter that knows the target best.
    alternative.oracle = std::make_unique<speculate::OracleDrafter>(
        speculate::fixed_acceptance(options_.synthetic_acceptance),
        static_cast<std::int32_t>(runtime_.model->config().vocab), alternative.drafters.back());
  }
  const Status status = rounds();
  if (alternatives_.front().round_rates.empty()) return status;
  for (const Alternative& alternative : alternatives_) {
    const auto off = std::ranges::find_if(alternatives_, [&](const Alternative& other) {
      return other.policy == alternative.policy && other.spec.mode == SpecMode::kOff;
    });
    rows.push(row(depth, alternative, *off));
  }
  return status;
}

/// kCancelled between slices: what the unfinished round measured is forgotten.
Status Ladder::rounds() {
  const int slices = std::max(1, options_.tokens / kSliceTokens);
  for (int round = 0; round < options_.rounds; ++round) {
    for (Alternative& alternative : alternatives_) {
      if (Status status = begin_round(alternative, round); !status.ok()) return status;
    }
    for (int i = 0; i < slices; ++i) {
      for (Alternative& alternative : alternatives_) {
        if (Status status = trunk_->check_cancelled(); !status.ok()) return status;
        if (Status status = slice(alternative); !status.ok()) return status;
      }
    }
    for (Alternative& alternative : alternatives_) {
      alternative.round_rates.push_back(alternative.round_tokens / alternative.round_us * 1e6);
      alternative.times.append(alternative.round);
      alternative.stats.merge(alternative.sequence.stats);
      alternative.controller.forget(alternative.sequence.key);
      if (alternative.oracle != nullptr) alternative.oracle->forget(alternative.sequence.key);
      trunk_->loop().release(alternative.sequence);
    }
  }
  return {};
}

core::Json Ladder::row(std::int64_t depth, const Alternative& alternative,
                       const Alternative& off) const {
  const core::Json counts = alternative.stats.to_json();
  core::Json json = core::Json::object();
  json.set("depth", depth)
      .set("spec", alternative.spec.name)
      .set("policy", attention::policy_name(alternative.policy))
      .set("groups", alternative.groups)
      .set("tokens_per_s", samples_json(alternative.round_rates))
      .set("step_ms", samples_json(alternative.times.step_ms))
      .set("attention_ms", median(alternative.times.attention_ms))
      .set("mean_acceptance_length", alternative.stats.mean_acceptance_length())
      .set("tokens_per_step", alternative.stats.mean_tokens_per_step())
      .set("drafted_per_position", *counts.find("drafted_per_position"))
      .set("accepted_per_position", *counts.find("accepted_per_position"))
      .set("k_histogram", *counts.find("k_histogram"))
      .set("ratio_to_off",
           ratio_json(paired_ratio(off.times.slice_us, alternative.times.slice_us)));
  std::optional<double> even;
  if (!alternative.times.full_k_ms.empty() && !off.times.plain_ms.empty()) {
    even = break_even(median(alternative.times.full_k_ms) / median(off.times.plain_ms),
                      alternative.spec.draft_tokens);
  }
  return json.set("break_even_acceptance", even.has_value() ? core::Json(*even) : core::Json());
}

Result<core::Json> Ladder::run() {
  if (Status status = prepare(); !status.ok()) return status.error();
  core::Json rows = core::Json::array();
  Status status;
  for (std::int64_t depth : options_.depths) {
    status = trunk_->grow(depth);
    if (status.ok()) status = measure(depth, rows);
    if (!status.ok()) break;
  }
  if (!status.ok() && status.error().code != ErrorCode::kCancelled) return status.error();
  if (options_.progress) options_.progress(1.0);
  core::Json json = core::Json::object();
  return json.set("rows", std::move(rows))
      .set("device_name", runtime_.model->place().name())
      .set("threads", runtime_.pool->threads())
      .set("page_size", trunk_->loop().options().page_size)
      .set("interrupted", !status.ok());
}

}  // namespace

std::string ladder_spec_forms() {
  return fmt::format("off, auto, and ngram:K, mtp:K, draft:K with K from 1 to {}", kMaxK);
}

Result<LadderSpec> parse_ladder_spec(const std::string& text) {
  if (text == "off") return LadderSpec{text, SpecMode::kOff, 0};
  if (text == "auto") return LadderSpec{text, SpecMode::kAuto, kMaxK};
  for (SpecMode mode : {SpecMode::kNgram, SpecMode::kMtp, SpecMode::kDraft}) {
    const std::string prefix = fmt::format("{}:", spec_mode_name(mode));
    if (!text.starts_with(prefix)) continue;
    int k = 0;
    const char* end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data() + prefix.size(), end, k);
    if (problem == std::errc() && stop == end && k >= 1 && k <= kMaxK)
      return LadderSpec{text, mode, k};
  }
  return Error{ErrorCode::kUsage,
               fmt::format("spec '{}' is not allowed; allowed: {}", text, ladder_spec_forms())};
}

Result<core::Json> run_ladder(const std::string& path, LadderOptions options) {
  if (Status status = check(path, options); !status.ok()) return status.error();
  const Result<std::unique_ptr<engine::Runtime>> runtime =
      engine::Runtime::load({.model = path,
                             .assistant = options.assistant,
                             .draft_model = options.draft_model,
                             .device = options.device,
                             .threads = options.threads,
                             .progress = options.load_progress,
                             .cancelled = options.cancelled});
  if (!runtime.ok()) return runtime.error();
  return Ladder(**runtime, std::move(options)).run();
}

std::string ladder_table(const core::Json& ladder) {
  std::string table =
      fmt::format("{:>7}  {:<8} {:<8} {:>9} {:>8} {:>18} {:>11} {:>11} {:>17} {:>11}  {}\n",
                  "depth", "policy", "spec", "tokens/s", "step ms", "to off (95 %)", "attn ms",
                  "tokens/step", "acceptance length", "break-even", "path (workgroups)");
  for (const core::Json& row : *ladder.find("rows")->as_array()) {
    std::string paths;
    for (const core::Json& group : *row.find("groups")->as_array()) {
      paths += fmt::format("{}{} ({})", paths.empty() ? "" : ", ", *group.find("path")->as_string(),
                           *group.find("workgroups")->as_int());
    }
    const core::Json* ratio = row.find("ratio_to_off");
    const core::Json* even = row.find("break_even_acceptance");
    const bool drafted = !row.find("drafted_per_position")->as_array()->empty();
    table += fmt::format(
        "{:>7}  {:<8} {:<8} {:>9.1f} {:>8.2f} {:>18} {:>11.2f} {:>11.2f} {:>17} {:>11}  "
        "{}\n",
        *row.find("depth")->as_int(), *row.find("policy")->as_string(),
        *row.find("spec")->as_string(), number(*row.find("tokens_per_s"), "median"),
        number(*row.find("step_ms"), "median"), ratio_text(*ratio, 2), number(row, "attention_ms"),
        number(row, "tokens_per_step"),
        drafted ? fmt::format("{:.2f}", number(row, "mean_acceptance_length")) : "-",
        even->is_null() ? "-" : fmt::format("{:.2f}", number(row, "break_even_acceptance")), paths);
  }
  return table +
         "to off: median ratio of slices measured next to each other, with its 95 % bounds; "
         "tokens/s: median of the rounds,\nso the one is not the quotient of the other\n";
}

}  // namespace segue::lab
