// SPDX-License-Identifier: Apache-2.0
// StepReport to JSON.
#include "engine/trace.h"

#include <algorithm>

namespace segue::engine {
namespace {

core::Json group_json(const model::GroupRecord& group, std::size_t index) {
  const attention::Plan& plan = *group.plan;
  core::Json json = core::Json::object();
  json.set("group", index);
  json.set("layers", group.layers);
  json.set("kernel", plan.kernel->name);
  json.set("path", attention::path_name(plan.verdict.path));
  json.set("reason", plan.verdict.reason);
  json.set("workgroups", plan.workgroups());
  json.set("bytes_all_layers", plan.kv_bytes * group.layers);
  json.set("us", group.attention_us);
  return json;
}

}  // namespace

core::Json trace_step(const StepReport& report, std::int64_t step) {
  std::int64_t depth = 0;
  int rows = 0;
  int drafted = 0;
  int accepted = 0;
  bool prefill = false;
  core::Json sequences = core::Json::array();
  for (const SequenceStep& sequence : report.sequences) {
    depth = std::max(depth, sequence.depth);
    rows += sequence.rows;
    drafted += sequence.drafted;
    accepted += sequence.accepted;
    prefill = prefill || sequence.prefill;
    core::Json one = core::Json::object();
    one.set("sequence", sequence.key).set("rows", sequence.rows).set("depth", sequence.depth);
    one.set("k", sequence.drafted)
        .set("accepted", sequence.accepted)
        .set("emitted", sequence.emitted)
        .set("drafter", sequence.drafter);
    one.set("prefill", sequence.prefill);
    sequences.push(std::move(one));
  }
  core::Json json = core::Json::object();
  json.set("step", step)
      .set("rows", rows)
      .set("depth", depth)
      .set("k", drafted)
      .set("accepted", accepted);
  json.set("prefill", prefill).set("sequences", std::move(sequences));
  core::Json groups = core::Json::array();
  for (std::size_t i = 0; i < report.groups.size(); ++i)
    groups.push(group_json(report.groups[i], i));
  json.set("groups", std::move(groups));
  core::Json us = core::Json::object();
  us.set("draft", report.draft_us).set("verify", report.verify_us).set("other", report.other_us);
  us.set("total", report.total_us);
  json.set("us", std::move(us));
  return json;
}

}  // namespace segue::engine
