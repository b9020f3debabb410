// SPDX-License-Identifier: Apache-2.0
// A plan for people and as JSON.
#include <fmt/format.h>

#include <iterator>

#include "attention/kernel.h"
#include "attention/plan.h"

namespace segue::attention {
namespace {

constexpr std::size_t kLines = 32;  // sequences and tiles listed for people before "... and n more"

core::Json shape_json(const Shape& shape) {
  core::Json json = core::Json::object();
  json.set("q_heads", shape.q_heads);
  json.set("kv_heads", shape.kv_heads);
  json.set("head_dim", shape.head_dim);
  json.set("window", shape.window);
  json.set("kv", kv_type_name(shape.kv));
  json.set("layout", kv::layout_name(shape.layout));
  json.set("page_size", shape.page_size);
  return json;
}

core::Json clauses_json(const Verdict& verdict) {
  core::Json clauses = core::Json::array();
  for (const Clause& clause : verdict.clauses) {
    core::Json json = core::Json::object();
    json.set("name", clause.name);
    json.set("values", clause.values);
    json.set("fired", clause.fired);
    clauses.push(std::move(json));
  }
  return clauses;
}

core::Json sequences_json(const Plan& plan) {
  core::Json sequences = core::Json::array();
  for (const SequenceChoice& choice : plan.sequences) {
    core::Json json = core::Json::object();
    json.set("path", path_name(choice.path));
    json.set("segments", choice.segments);
    json.set("workgroups", choice.workgroups);
    json.set("keys", choice.keys);
    sequences.push(std::move(json));
  }
  return sequences;
}

core::Json tiles_json(const Plan& plan) {
  core::Json tiles = core::Json::array();
  for (std::size_t i = 0; i < plan.tiles.size(); ++i) {
    const RowTile& tile = plan.tiles[i];
    core::Json json = core::Json::object();
    json.set("sequence", tile.sequence);
    json.set("row_first", tile.row_first);
    json.set("rows", tile.rows);
    json.set("position", tile.position);
    json.set("token", tile.token);
    json.set("unit", tile.unit);
    json.set("unit_first", tile.unit_first);
    json.set("unit_last", tile.unit_last);
    json.set("segments", plan.tile_segments[i]);
    tiles.push(std::move(json));
  }
  return tiles;
}

core::Json items_json(const Plan& plan) {
  core::Json items = core::Json::array();
  for (const WorkItem& item : plan.items) {
    core::Json json = core::Json::object();
    json.set("tile", item.tile);
    json.set("kv_head", item.kv_head);
    json.set("unit_first", item.unit_first);
    json.set("unit_last", item.unit_last);
    json.set("partial", item.partial);
    items.push(std::move(json));
  }
  return items;
}

core::Json reductions_json(const Plan& plan) {
  core::Json reductions = core::Json::array();
  for (const Reduction& reduction : plan.reductions) {
    core::Json json = core::Json::object();
    json.set("tile", reduction.tile);
    json.set("kv_head", reduction.kv_head);
    json.set("item_first", reduction.item_first);
    json.set("item_last", reduction.item_last);
    reductions.push(std::move(json));
  }
  return reductions;
}

}  // namespace

core::Json to_json(const Plan& plan, bool summary) {
  core::Json json = core::Json::object();
  json.set("shape", shape_json(plan.shape));
  json.set("policy", policy_name(plan.policy));
  json.set("path", path_name(plan.verdict.path));
  json.set("reason", plan.verdict.reason);
  json.set("clauses", clauses_json(plan.verdict));
  json.set("kernel", plan.kernel != nullptr ? plan.kernel->name : "");
  json.set("kernel_reason", plan.kernel_reason);
  json.set("workgroups", plan.workgroups());
  json.set("rows", plan.rows);
  json.set("kv_bytes", plan.kv_bytes);
  json.set("partials", plan.partials);
  json.set("workspace_bytes", plan.workspace_bytes());
  json.set("operations", plan.operations);
  json.set("sequences", sequences_json(plan));
  if (summary) return json;
  json.set("tiles", tiles_json(plan));
  json.set("items", items_json(plan));
  json.set("reductions", reductions_json(plan));
  return json;
}

std::string to_text(const Plan& plan) {
  std::string text;
  auto out = std::back_inserter(text);
  const Shape& shape = plan.shape;
  fmt::format_to(
      out, "shape       {} query heads, {} kv heads, head_dim {}{}, {} KV, pages of {} ({})\n",
      shape.q_heads, shape.kv_heads, shape.head_dim,
      shape.window > 0 ? fmt::format(", window {}", shape.window) : "", kv_type_name(shape.kv),
      shape.page_size, kv::layout_name(shape.layout));
  fmt::format_to(out, "policy      {}\n", policy_name(plan.policy));
  for (const Clause& clause : plan.verdict.clauses) {
    fmt::format_to(out, "  {:<34} {:<5} {}\n", clause.name, clause.fired ? "fires" : "no",
                   clause.values);
  }
  fmt::format_to(out, "path        {}: {}\n", path_name(plan.verdict.path), plan.verdict.reason);
  fmt::format_to(out, "kernel      {}: {}\n", plan.kernel != nullptr ? plan.kernel->name : "none",
                 plan.kernel_reason);
  fmt::format_to(out, "workgroups  {}\n", plan.workgroups());
  fmt::format_to(out, "bytes       {} of K and V, {} of partials\n", plan.kv_bytes,
                 plan.workspace_bytes());
  fmt::format_to(out, "operations  {}\n", plan.operations);
  for (std::size_t i = 0; i < plan.tiles.size(); ++i) {
    if (i == kLines) {
      fmt::format_to(out, "... and {} more tiles\n", plan.tiles.size() - kLines);
      break;
    }
    const RowTile& tile = plan.tiles[i];
    fmt::format_to(
        out,
        "tile        sequence {}, rows {} to {} at position {}: {} units of {} keys, {} segments\n",
        tile.sequence, tile.row_first, tile.row_first + tile.rows - 1, tile.position,
        tile.unit_last - tile.unit_first, tile.unit, plan.tile_segments[i]);
  }
  return text;
}

}  // namespace segue::attention
