// SPDX-License-Identifier: Apache-2.0
// A plan for people and as JSON.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "attention/kernel.h"
#include "attention/plan.h"
#include "core/append.h"

namespace segue::attention {
namespace {

constexpr std::size_t kLines = 32;  // sequences and tiles listed for people before "... and n more"

/// One object per row.
template <class Row, class ObjectOf>
core::Json array_of(const std::vector<Row>& rows, const ObjectOf& object_of) {
  core::Json json = core::Json::array();
  for (const Row& row : rows) json.push(object_of(row));
  return json;
}

const char* plural(std::int64_t count) { return count == 1 ? "" : "s"; }

core::Json shape_json(const Shape& shape) {
  return core::Json::object()
      .set("q_heads", shape.q_heads)
      .set("kv_heads", shape.kv_heads)
      .set("head_dim", shape.head_dim)
      .set("window", shape.window)
      .set("kv", kv_type_name(shape.kv))
      .set("layout", kv::layout_name(shape.layout))
      .set("page_size", shape.page_size);
}

core::Json clause_json(const Clause& clause) {
  return core::Json::object()
      .set("name", clause.name)
      .set("values", clause.values)
      .set("fired", clause.fired);
}

core::Json sequence_json(const SequenceChoice& choice) {
  return core::Json::object()
      .set("path", path_name(choice.path))
      .set("segments", choice.segments)
      .set("workgroups", choice.workgroups)
      .set("keys", choice.keys);
}

core::Json tile_json(const RowTile& tile, int segments) {
  return core::Json::object()
      .set("sequence", tile.sequence)
      .set("row_first", tile.row_first)
      .set("rows", tile.rows)
      .set("position", tile.position)
      .set("token", tile.token)
      .set("unit", tile.unit)
      .set("unit_first", tile.unit_first)
      .set("unit_last", tile.unit_last)
      .set("segments", segments);
}

core::Json item_json(const WorkItem& item) {
  return core::Json::object()
      .set("tile", item.tile)
      .set("kv_head", item.kv_head)
      .set("unit_first", item.unit_first)
      .set("unit_last", item.unit_last)
      .set("partial", item.partial);
}

core::Json reduction_json(const Reduction& reduction) {
  return core::Json::object()
      .set("tile", reduction.tile)
      .set("kv_head", reduction.kv_head)
      .set("item_first", reduction.item_first)
      .set("item_last", reduction.item_last);
}

}  // namespace

core::Json to_json(const Plan& plan, bool summary) {
  core::Json json = core::Json::object();
  json.set("shape", shape_json(plan.shape));
  json.set("policy", policy_name(plan.policy));
  json.set("path", path_name(plan.verdict.path));
  json.set("reason", plan.verdict.reason);
  json.set("clauses", array_of(plan.verdict.clauses, clause_json));
  json.set("kernel", plan.kernel != nullptr ? plan.kernel->name : "");
  json.set("kernel_reason", plan.kernel_reason);
  json.set("workgroups", plan.workgroups());
  json.set("rows", plan.rows);
  json.set("kv_bytes", plan.kv_bytes);
  json.set("partials", plan.partials);
  json.set("workspace_bytes", plan.workspace_bytes());
  json.set("operations", plan.operations);
  json.set("sequences", array_of(plan.sequences, sequence_json));
  if (summary) return json;
  core::Json tiles = core::Json::array();
  for (std::size_t i = 0; i < plan.tiles.size(); ++i)
    tiles.push(tile_json(plan.tiles[i], plan.tile_segments[i]));
  json.set("tiles", std::move(tiles));
  json.set("items", array_of(plan.items, item_json));
  json.set("reductions", array_of(plan.reductions, reduction_json));
  return json;
}

std::string to_text(const Plan& plan) {
  std::string text;
  const Shape& shape = plan.shape;
  core::append(text,
               "shape       {} query heads, {} kv heads, head_dim {}{}, {} KV, pages of {} ({})\n",
               shape.q_heads, shape.kv_heads, shape.head_dim,
               shape.window > 0 ? fmt::format(", window {}", shape.window) : "",
               kv_type_name(shape.kv), shape.page_size, kv::layout_name(shape.layout));
  core::append(text, "policy      {}\n", policy_name(plan.policy));
  for (const Clause& clause : plan.verdict.clauses) {
    core::append(text, "  {:<34} {:<5} {}\n", clause.name, clause.fired ? "fires" : "no",
                 clause.values);
  }
  core::append(text, "path        {}: {}\n", path_name(plan.verdict.path), plan.verdict.reason);
  core::append(text, "kernel      {}: {}\n", plan.kernel != nullptr ? plan.kernel->name : "none",
               plan.kernel_reason);
  core::append(text, "workgroups  {}\n", plan.workgroups());
  core::append(text, "bytes       {} of K and V and {} of partials in each layer\n", plan.kv_bytes,
               plan.workspace_bytes());
  core::append(text, "operations  {}\n", plan.operations);
  for (std::size_t i = 0; i < plan.tiles.size(); ++i) {
    if (i == kLines) {
      core::append(text, "... and {} more tiles\n", plan.tiles.size() - kLines);
      break;
    }
    const RowTile& tile = plan.tiles[i];
    core::append(text,
                 "tile        sequence {}, rows {} to {} at position {}: {} unit{} of {} keys, {} "
                 "segment{}\n",
                 tile.sequence, tile.row_first, tile.row_first + tile.rows - 1, tile.position,
                 tile.unit_last - tile.unit_first, plural(tile.unit_last - tile.unit_first),
                 tile.unit, plan.tile_segments[i], plural(plan.tile_segments[i]));
  }
  return text;
}

}  // namespace segue::attention
