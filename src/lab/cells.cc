// SPDX-License-Identifier: Apache-2.0
// In a round every alternative forks the trunk once per sequence of its batch, so all see the same
// cache and the same drafts.
#include "lab/cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "engine/limits.h"
#include "lab/trunk.h"
#include "speculate/controller.h"

namespace segue::lab {
namespace {

constexpr int kSliceTokens = 8;   // per sequence
constexpr int kSpareTokens = 96;  // sequences of a batch do not advance alike
using engine::kMaxK;

struct Alternative {
  Alternative(std::string name_in, SpecMode mode_in, int draft_tokens_in)
      : name(std::move(name_in)), mode(mode_in), draft_tokens(draft_tokens_in) {}

  std::string name;
  SpecMode mode;
  int draft_tokens;  // largest k
  // Of the round:
  std::vector<engine::Sequence> sequences;
  std::unique_ptr<speculate::OracleDrafter> oracle;
  speculate::Controller controller;
  std::int64_t generated = 0;
  // Of the cell:
  Turns turns;              // without the time that other programs held the CPUs
  double preempted_us = 0;  // that time
  speculate::Statistics stats;
  std::vector<core::Json> explained;  // auto: what the controller knew at the end of each round
};

/// Tokens that a step with k drafts yields on average.
double expected_tokens(const speculate::AcceptanceProfile& profile, int k, std::int64_t context) {
  double tokens = 1;
  double product = 1;
  for (int i = 0; i < k; ++i) tokens += product *= profile(i, context);
  return tokens;
}

/// Room after the depth that a round needs.
std::int64_t round_room(int tokens) { return 1 + std::int64_t{tokens} + kSpareTokens; }

/// What is refused before the model is loaded.
Status check(const std::string& path, const CellOptions& options) {
  const Result<model::Place> place =
      engine::check_place(options.device, options.threads, options.kv);
  if (!place.ok()) return place.error();
  const Result<model::Config> config = engine::check_models(path, {}, {}, *place);
  if (!config.ok()) return config.error();
  return check_room(*config, std::ranges::max(options.depths), round_room(options.tokens));
}

class Cells {
 public:
  Cells(engine::Runtime& runtime, CellOptions options)
      : runtime_(runtime), options_(std::move(options)) {}

  Result<core::Json> run();

 private:
  Status prepare();
  Status begin_round(int round, std::int64_t batch);
  void end_round();
  Status slice(Alternative& alternative, std::int64_t until, bool counts);
  Status warm(std::int64_t batch);
  Status warm_rows(std::int64_t batch, int k);
  std::vector<Alternative*> turns_of(std::int64_t slice);
  Status rounds(std::int64_t batch, std::size_t& finished_turns);
  Status measure(std::int64_t depth, std::int64_t batch, const CellProfile& profile,
                 core::Json& cells);
  Status measure_all(core::Json& cells);
  core::Json cell(std::int64_t depth, std::int64_t batch, const std::string& profile) const;

  engine::Runtime& runtime_;
  CellOptions options_;
  std::unique_ptr<Trunk> trunk_;
  std::vector<Alternative> alternatives_;
  std::vector<std::int32_t> own_tokens_;  // what the target says after the current depth
  speculate::AcceptanceProfile profile_;  // of the current cell
  double done_ = 0;
};

Status Cells::prepare() {
  std::ranges::sort(options_.depths);
  alternatives_.emplace_back("off", SpecMode::kOff, 0);
  // Next to off: what is compared most closely is measured close together.
  alternatives_.emplace_back("auto", SpecMode::kAuto, kMaxK);
  for (const std::int64_t k : options_.fixed)
    alternatives_.emplace_back(fmt::format("k{}", k), SpecMode::kNgram, static_cast<int>(k));
  engine::LoopOptions loop;
  loop.kv = options_.kv;
  loop.max_sequences = static_cast<int>(static_cast<std::int64_t>(alternatives_.size()) *
                                        std::ranges::max(options_.batches));
  loop.decode_rows = 1 + kMaxK;
  Result<std::unique_ptr<Trunk>> trunk = Trunk::create(runtime_, loop,
                                                       {.depth = options_.depths.back(),
                                                        .room = round_room(options_.tokens),
                                                        .cancelled = options_.cancelled});
  if (!trunk.ok()) return trunk.error();
  trunk_ = std::move(trunk).value();
  return {};
}

Status Cells::begin_round(int round, std::int64_t batch) {
  for (Alternative& alternative : alternatives_) {
    alternative.controller = engine::new_controller(runtime_.model->place());
    alternative.generated = 0;
    alternative.oracle = std::make_unique<speculate::OracleDrafter>(
        profile_, static_cast<std::int32_t>(runtime_.model->config().vocab));
    for (std::int64_t i = 0; i < batch; ++i) {
      Result<engine::Sequence> fork = trunk_->fork();
      if (!fork.ok()) return fork.error();
      engine::Sequence& sequence = alternative.sequences.emplace_back(std::move(fork).value());
      sequence.spec = alternative.mode;
      sequence.max_draft = alternative.draft_tokens;
      if (alternative.mode == SpecMode::kOff) continue;
      sequence.drafters = {alternative.oracle.get()};
      alternative.oracle->record(sequence.key, own_tokens_,
                                 static_cast<std::uint64_t>(1000 * round + i));
    }
  }
  return {};
}

void Cells::end_round() {
  for (Alternative& alternative : alternatives_) {
    for (engine::Sequence& sequence : alternative.sequences) {
      alternative.stats.merge(sequence.stats);
      trunk_->loop().release(sequence);
    }
    alternative.sequences.clear();
    if (alternative.mode == SpecMode::kAuto)
      alternative.explained.push_back(alternative.controller.explain());
  }
}

/// Steps until the batch has generated `until` tokens in this round.
Status Cells::slice(Alternative& alternative, std::int64_t until, bool counts) {
  if (Status status = trunk_->check_cancelled(); !status.ok()) return status;
  std::vector<engine::Sequence*> sequences;
  for (engine::Sequence& sequence : alternative.sequences) sequences.push_back(&sequence);
  double us = 0;
  double tokens = 0;
  while (alternative.generated < until) {
    const Result<engine::StepReport> report =
        trunk_->loop().step(sequences, attention::Policy::kSegue, alternative.controller);
    if (!report.ok()) return report.error();
    us += report->total_us - report->preempted_us;
    alternative.preempted_us += counts ? report->preempted_us : 0;
    for (const engine::SequenceStep& step : report->sequences) {
      alternative.generated += step.emitted;
      tokens += expected_tokens(profile_, step.drafted, step.depth + 1);
    }
  }
  if (counts) {
    alternative.turns.us.push_back(us);
    alternative.turns.work.push_back(tokens);
  }
  return {};
}

/// The first steps of as many forks as there will be touch memory that nobody has touched before,
/// and on a GPU those of every number of rows are recorded: that is no cost of any alternative.
Status Cells::warm(std::int64_t batch) {
  profile_ = [](int, std::int64_t) { return 0.0; };
  if (Status status = begin_round(0, batch); !status.ok()) return status;
  for (Alternative& alternative : alternatives_) {
    if (Status status = slice(alternative, 3 * batch, false); !status.ok()) return status;
  }
  end_round();
  for (int k = 1; k <= kMaxK; ++k) {
    if (Status status = warm_rows(batch, k); !status.ok()) return status;
  }
  return {};
}

/// Two steps of as many rows as some sequences with k drafts and the others with one less have.
Status Cells::warm_rows(std::int64_t batch, int k) {
  constexpr std::int64_t kMostSteps = 32;  // what a fork has room for
  if (Status status = begin_round(0, batch); !status.ok()) return status;
  Alternative& any = alternatives_[1];
  for (engine::Sequence& sequence : any.sequences) {
    sequence.spec = SpecMode::kNgram;
    sequence.max_draft = k - 1;
  }
  const std::int64_t stride = (2 * batch + kMostSteps - 1) / kMostSteps;
  for (std::int64_t i = 0; i < batch; ++i) {
    any.sequences[static_cast<std::size_t>(i)].max_draft = k;
    if ((i + 1) % stride != 0 && i + 1 != batch) continue;
    if (Status status = slice(any, any.generated + 2 * batch, false); !status.ok()) return status;
  }
  end_round();
  return {};
}

/// Who takes the turns of a slice, in order. Off and auto stay neighbours and the fixed k keep
/// their order or its reverse; in four slices each of off and auto goes first twice, and whoever
/// goes first comes once after the smallest k and once after the largest. A fixed order would
/// charge one of them what a step costs after another's verify steps have had the caches.
std::vector<Alternative*> Cells::turns_of(std::int64_t slice) {
  std::vector<Alternative*> order;
  for (Alternative& alternative : alternatives_) order.push_back(&alternative);
  if (slice % 2 == 1) std::swap(order[0], order[1]);
  if (slice % 4 >= 2) std::reverse(order.begin() + 2, order.end());
  return order;
}

/// kCancelled between slices; `finished_turns` are those of an alternative in whole rounds.
Status Cells::rounds(std::int64_t batch, std::size_t& finished_turns) {
  const std::int64_t slices = std::max(1, options_.tokens / kSliceTokens);
  for (int round = 0; round < options_.rounds; ++round) {
    if (Status status = begin_round(round, batch); !status.ok()) return status;
    for (std::int64_t i = 1; i <= slices; ++i) {
      for (Alternative* alternative : turns_of(i)) {
        if (Status status = slice(*alternative, i * kSliceTokens * batch, true); !status.ok())
          return status;
      }
    }
    end_round();
    finished_turns += static_cast<std::size_t>(slices);
  }
  return {};
}

Status Cells::measure(std::int64_t depth, std::int64_t batch, const CellProfile& profile,
                      core::Json& cells) {
  for (Alternative& alternative : alternatives_) {
    alternative.turns = {};
    alternative.preempted_us = 0;
    alternative.stats = {};
    alternative.explained.clear();
  }
  profile_ = profile.at(depth);
  std::size_t finished_turns = 0;
  const Status status = rounds(batch, finished_turns);
  if (finished_turns == 0) return status;
  for (Alternative& alternative : alternatives_) {
    alternative.turns.us.resize(finished_turns);
    alternative.turns.work.resize(finished_turns);
  }
  cells.push(cell(depth, batch, profile.name));
  done_ += 1;
  if (options_.progress) {
    options_.progress(done_ / static_cast<double>(options_.depths.size() * options_.batches.size() *
                                                  options_.profiles.size()));
  }
  return status;
}

core::Json Cells::cell(std::int64_t depth, std::int64_t batch, const std::string& profile) const {
  const Alternative& automatic = alternatives_[1];
  const Alternative* best = &alternatives_[0];
  double best_rate = 0;
  core::Json list = core::Json::array();
  for (const Alternative& alternative : alternatives_) {
    double us = 0;
    double tokens = 0;
    std::vector<std::int64_t> rounded_us;
    std::vector<double> rounded_tokens;
    for (std::size_t i = 0; i < alternative.turns.us.size(); ++i) {
      us += alternative.turns.us[i];
      tokens += alternative.turns.work[i];
      rounded_us.push_back(std::llround(alternative.turns.us[i]));
      rounded_tokens.push_back(std::round(1000 * alternative.turns.work[i]) / 1000);
    }
    const double rate = tokens / us;
    if (&alternative != &automatic && rate > best_rate) {
      best = &alternative;
      best_rate = rate;
    }
    const auto& histogram = alternative.stats.k_histogram();
    core::Json json = core::Json::object();
    json.set("spec", alternative.name)
        .set("tokens_per_s", 1e6 * rate)
        .set("steps_by_k",
             std::vector<std::int64_t>(histogram.begin(), histogram.begin() + kMaxK + 1))
        .set("preempted_s", alternative.preempted_us * 1e-6)
        .set("slice_us", rounded_us)
        .set("slice_tokens", rounded_tokens);
    if (&alternative == &automatic) {
      core::Json rounds = core::Json::array();
      for (const core::Json& explained : alternative.explained) {
        core::Json one = core::Json::object();
        for (const char* key : {"steps", "probes", "probe_loss_s", "step_noise", "rejected_times"})
          one.set(key, *explained.find(key));
        rounds.push(std::move(one));
      }
      json.set("controller", std::move(rounds));
    }
    list.push(std::move(json));
  }
  core::Json json = core::Json::object();
  return json.set("depth", depth)
      .set("batch", batch)
      .set("profile", profile)
      .set("best_fixed", best->name)
      .set("to_off", ratio_json(rate_ratio(automatic.turns, alternatives_[0].turns)))
      .set("to_best", ratio_json(rate_ratio(automatic.turns, best->turns)))
      .set("alternatives", std::move(list));
}

Status Cells::measure_all(core::Json& cells) {
  for (const std::int64_t depth : options_.depths) {
    if (Status status = trunk_->grow(depth); !status.ok()) return status;
    Result<std::vector<std::int32_t>> own = trunk_->own_tokens();
    if (!own.ok()) return own.error();
    own_tokens_ = std::move(own).value();
    for (const std::int64_t batch : options_.batches) {
      if (Status status = warm(batch); !status.ok()) return status;
      for (const CellProfile& profile : options_.profiles) {
        if (Status status = measure(depth, batch, profile, cells); !status.ok()) return status;
      }
    }
  }
  return {};
}

Result<core::Json> Cells::run() {
  if (Status status = prepare(); !status.ok()) return status.error();
  core::Json cells = core::Json::array();
  const Status status = measure_all(cells);
  if (!status.ok() && status.error().code != ErrorCode::kCancelled) return status.error();
  core::Json json = core::Json::object();
  return json.set("cells", std::move(cells))
      .set("device_name", runtime_.model->place().name())
      .set("threads", runtime_.pool->threads())
      .set("interrupted", !status.ok());
}

}  // namespace

Result<CellProfile> parse_cell_profile(const std::string& text) {
  if (text == "falling") {
    return CellProfile{text, [](std::int64_t) -> speculate::AcceptanceProfile {
                         return [](int, std::int64_t context) {
                           const double keys =
                               std::clamp<double>(static_cast<double>(context), 100, 86000);
                           return 0.93 - 0.43 * std::log(keys / 100) / std::log(860.0);
                         };
                       }};
  }
  if (text == "alternating") {
    return CellProfile{text, [](std::int64_t depth) -> speculate::AcceptanceProfile {
                         return [depth](int, std::int64_t context) {
                           return (context - depth - 1) / 50 % 2 == 0 ? 0.9 : 0.1;
                         };
                       }};
  }
  double p = -1;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, p);
  if (problem == std::errc() && stop == end && p >= 0 && p <= 1) {
    return CellProfile{text, [p](std::int64_t) -> speculate::AcceptanceProfile {
                         return [p](int, std::int64_t) { return p; };
                       }};
  }
  return Error{ErrorCode::kUsage,
               fmt::format("acceptance profile '{}' is not allowed; allowed: a probability from 0 "
                           "to 1, falling, alternating",
                           text)};
}

Result<core::Json> run_cells(const std::string& path, CellOptions options) {
  if (Status status = check(path, options); !status.ok()) return status.error();
  const Result<std::unique_ptr<engine::Runtime>> runtime =
      engine::Runtime::load({.model = path,
                             .device = options.device,
                             .threads = options.threads,
                             .progress = options.load_progress,
                             .cancelled = options.cancelled});
  if (!runtime.ok()) return runtime.error();
  return Cells(**runtime, std::move(options)).run();
}

std::string cells_table(const core::Json& document) {
  std::string table = fmt::format("{:>7} {:>5}  {:<11} {:>10} {:>10}  {:<5} {:>21} {:>21}\n",
                                  "depth", "batch", "acceptance", "off tok/s", "auto tok/s", "best",
                                  "auto/off (95 %)", "auto/best (95 %)");
  for (const core::Json& cell : *document.find("cells")->as_array()) {
    const auto* alternatives = cell.find("alternatives")->as_array();
    table += fmt::format(
        "{:>7} {:>5}  {:<11} {:>10.1f} {:>10.1f}  {:<5} {:>21} {:>21}\n",
        *cell.find("depth")->as_int(), *cell.find("batch")->as_int(),
        *cell.find("profile")->as_string(), number(alternatives->front(), "tokens_per_s"),
        number((*alternatives)[1], "tokens_per_s"), *cell.find("best_fixed")->as_string(),
        ratio_text(*cell.find("to_off"), 3), ratio_text(*cell.find("to_best"), 3));
  }
  return table;
}

}  // namespace segue::lab
