// SPDX-License-Identifier: Apache-2.0
// What the controller tells about itself: estimates with their errors, the last decision, and the
// acceptance at which drafts pay.
#include <algorithm>
#include <optional>
#include <utility>

#include "core/check.h"
#include "speculate/controller.h"

namespace segue::speculate {
namespace {

constexpr std::size_t kShown = 16;  // sequences in explain()
// Of each kind, before speculation is compared with none: others slow the machine down for ten
// steps at a time.
constexpr std::int64_t kFewestSteps = 30;

/// The constant acceptance at which k drafts yield `tokens` tokens a step, 1 to k + 1.
double constant_acceptance(double tokens, int k) {
  double low = 0;
  double high = 1;
  for (int i = 0; i < 50; ++i) {
    const double middle = 0.5 * (low + high);
    double sum = 1;
    double product = 1;
    for (int j = 0; j < k; ++j) sum += product *= middle;
    (sum < tokens ? low : high) = middle;
  }
  return high;
}

}  // namespace

std::optional<double> Controller::break_even_acceptance(int k, std::int64_t depth, int batch,
                                                        int kind) {
  digest();
  CHECK(1 <= k && k <= kMaxDraft && batch >= 1 && 0 <= kind && kind < kDraftKinds);
  if (!costs_.measured()) return std::nullopt;
  StepShape verify;
  StepShape one_row;
  for (int i = 0; i < batch; ++i) {
    verify.add({depth, 1 + k});
    one_row.add({depth, 1});
  }
  const double draft_us = batch * costs_.draft_us({kind, k, depth, 0});
  const double ratio = (costs_.step_us(verify) + draft_us) / costs_.step_us(one_row);
  if (!(k + 1 >= ratio)) return std::nullopt;
  return constant_acceptance(ratio, k);
}

std::optional<AgainstOff> Controller::against_off(const Statistics& counts, std::int64_t depth,
                                                  double draft_us) {
  digest();
  const auto& steps_by_k = counts.k_histogram();
  const auto most = std::max_element(steps_by_k.begin() + 1, steps_by_k.end());
  if (*most == 0 || off_steps_ == 0 || verify_steps_ < kFewestSteps) return std::nullopt;
  const auto step_us = [&](int k) {
    StepShape shape;
    shape.add({depth, 1 + k});
    return costs_.step_us(shape);
  };
  double us = draft_us;
  for (int k = 0; k <= kMaxDraft; ++k) {
    const std::int64_t steps = steps_by_k[static_cast<std::size_t>(k)];
    if (steps > 0) us += static_cast<double>(steps) * step_us(k);
  }
  const auto tokens = static_cast<double>(counts.steps() + counts.accepted());
  const auto verify_steps = static_cast<double>(counts.positions().drafted[0]);
  AgainstOff result;
  result.speedup = tokens * step_us(0) / us;
  result.estimated = off_steps_ < kFewestSteps;
  result.k = static_cast<int>(most - steps_by_k.begin());
  result.acceptance = constant_acceptance(counts.mean_acceptance_length(), result.k);
  const double cost = (step_us(result.k) + draft_us / verify_steps) / step_us(0);
  if (cost <= result.k + 1) result.break_even = constant_acceptance(cost, result.k);
  return result;
}

core::Json Controller::describe(const Choice& choice) const {
  core::Json json = core::Json::object();
  std::vector<int> drafts;
  for (std::size_t i = 0; i < std::min(kShown, choice.drafts.size()); ++i)
    drafts.push_back(choice.drafts[i].draft);
  json.set("k", drafts);
  json.set("expected_tokens", choice.tokens);
  json.set("expected_us", choice.us);
  json.set("error_us", choice.step.error_us());
  json.set("tokens_per_s", 1e6 * choice.rate());
  return json;
}

core::Json Controller::explain() {
  digest();
  core::Json json = core::Json::object();
  json.set("steps", steps_);
  json.set("measured", costs_.measured());
  json.set("step_noise", costs_.noise());
  json.set("rejected_times", costs_.rejected());
  json.set("weighings", weighings_);
  json.set("probes", probes_);
  json.set("probe_loss_s", probe_loss_us_ * 1e-6);
  json.set("probe_budget_steps", budget_steps_);
  const StepShape& last = last_chosen_.shape;
  const std::int64_t depth =
      last.batch > 0 ? static_cast<std::int64_t>(last.depth / last.batch) : 0;
  json.set("depth", depth);
  core::Json costs = core::Json::array();
  for (int k = 0; costs_.measured() && k <= options_.max_draft; ++k) {
    StepShape shape;
    shape.add({depth, 1 + k});
    const CostModel::Prediction step = costs_.predict(shape);
    core::Json cost = core::Json::object();
    cost.set("k", k);
    cost.set("step_us", step.us);
    cost.set("error_us", step.error_us());
    const auto even = k > 0 ? break_even_acceptance(k, depth) : std::nullopt;
    cost.set("break_even_acceptance", even ? core::Json(*even) : core::Json());
    costs.push(std::move(cost));
  }
  json.set("costs", std::move(costs));
  core::Json acceptance = core::Json::array();
  for (int slot = 0; slot < static_cast<int>(kDraftSlots); ++slot) {
    const DraftSource source{slot / kDraftGrades, slot % kDraftGrades};
    if (!shared_.tried(source)) continue;
    std::vector<double> mean;
    std::vector<double> error;
    for (const AcceptanceEstimate& p : SequenceAcceptance().curve(source, shared_)) {
      if (mean.size() == static_cast<std::size_t>(options_.max_draft)) break;
      mean.push_back(p.mean);
      error.push_back(p.error);
    }
    core::Json estimate = core::Json::object();
    estimate.set("kind", source.kind);
    estimate.set("grade", source.grade);
    estimate.set("mean_per_position", mean);
    estimate.set("error_per_position", error);
    acceptance.push(std::move(estimate));
  }
  json.set("acceptance", std::move(acceptance));
  core::Json decision = core::Json::object();
  decision.set("probe", last_was_probe_);
  decision.set("chosen", describe(last_chosen_));
  core::Json choices = core::Json::array();
  for (const Choice& choice : last_choices_) choices.push(describe(choice));
  decision.set("choices", std::move(choices));
  json.set("last_decision", std::move(decision));
  return json;
}

}  // namespace segue::speculate
