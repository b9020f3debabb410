// SPDX-License-Identifier: Apache-2.0
// A plan for people and as JSON.
#include <fmt/format.h>

#include <iterator>

#include "attention/kernel.h"
#include "attention/plan.h"

namespace segue::attention {
namespace {

constexpr std::size_t kLines = 32;  // sequences and tiles listed for people before "... and n more"

/// A member of a struct under its name in JSON.
template <class Row, class Value>
struct Field {
  std::string_view name;
  Value Row::*member;
};
template <class Row, class Value>
Field(const char*, Value Row::*) -> Field<Row, Value>;

core::Json value_json(Path path) { return path_name(path); }
core::Json value_json(KvType type) { return kv_type_name(type); }
core::Json value_json(kv::Layout layout) { return kv::layout_name(layout); }
template <class Value>
core::Json value_json(const Value& value) {
  return value;
}

template <class Row, class... Values>
core::Json object_of(const Row& row, const Field<Row, Values>&... fields) {
  core::Json json = core::Json::object();
  (json.set(fields.name, value_json(row.*fields.member)), ...);
  return json;
}

/// One object per row.
template <class Row, class... Values>
core::Json array_of(const std::vector<Row>& rows, const Field<Row, Values>&... fields) {
  core::Json json = core::Json::array();
  for (const Row& row : rows) json.push(object_of(row, fields...));
  return json;
}

core::Json shape_json(const Shape& shape) {
  return object_of(shape, Field{"q_heads", &Shape::q_heads}, Field{"kv_heads", &Shape::kv_heads},
                   Field{"head_dim", &Shape::head_dim}, Field{"window", &Shape::window},
                   Field{"kv", &Shape::kv}, Field{"layout", &Shape::layout},
                   Field{"page_size", &Shape::page_size});
}

core::Json clauses_json(const Verdict& verdict) {
  return array_of(verdict.clauses, Field{"name", &Clause::name}, Field{"values", &Clause::values},
                  Field{"fired", &Clause::fired});
}

core::Json sequences_json(const Plan& plan) {
  using Choice = SequenceChoice;
  return array_of(plan.sequences, Field{"path", &Choice::path},
                  Field{"segments", &Choice::segments}, Field{"workgroups", &Choice::workgroups},
                  Field{"keys", &Choice::keys});
}

core::Json tiles_json(const Plan& plan) {
  core::Json tiles = core::Json::array();
  for (std::size_t i = 0; i < plan.tiles.size(); ++i) {
    core::Json tile =
        object_of(plan.tiles[i], Field{"sequence", &RowTile::sequence},
                  Field{"row_first", &RowTile::row_first}, Field{"rows", &RowTile::rows},
                  Field{"position", &RowTile::position}, Field{"token", &RowTile::token},
                  Field{"unit", &RowTile::unit}, Field{"unit_first", &RowTile::unit_first},
                  Field{"unit_last", &RowTile::unit_last});
    tile.set("segments", plan.tile_segments[i]);
    tiles.push(std::move(tile));
  }
  return tiles;
}

core::Json items_json(const Plan& plan) {
  return array_of(plan.items, Field{"tile", &WorkItem::tile}, Field{"kv_head", &WorkItem::kv_head},
                  Field{"unit_first", &WorkItem::unit_first},
                  Field{"unit_last", &WorkItem::unit_last}, Field{"partial", &WorkItem::partial});
}

core::Json reductions_json(const Plan& plan) {
  return array_of(
      plan.reductions, Field{"tile", &Reduction::tile}, Field{"kv_head", &Reduction::kv_head},
      Field{"item_first", &Reduction::item_first}, Field{"item_last", &Reduction::item_last});
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
