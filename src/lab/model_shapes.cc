// SPDX-License-Identifier: Apache-2.0
// A model's config to shapes.
#include "lab/model_shapes.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/sizing.h"
#include "model/config.h"

namespace segue::lab {

Result<ModelShapes> model_shapes(const std::string& path) {
  const Result<model::Config> config = model::read_config(path);
  if (!config.ok()) return config.error();
  ModelShapes found{.shapes = {}, .context = config->context};
  for (std::size_t kind = 0; kind < config->kinds.size(); ++kind) {
    const model::LayerKind& facts = config->kinds[kind];
    const auto layers =
        std::ranges::count(config->layers, static_cast<int>(kind), &model::Layer::kind);
    NamedShape shape;
    shape.name =
        fmt::format("{} {} ({} layer{})", config->name, facts.name, layers, layers == 1 ? "" : "s");
    shape.shape.q_heads = config->q_heads;
    shape.shape.kv_heads = facts.kv_heads;
    shape.shape.head_dim = facts.head_dim;
    shape.shape.window = facts.window;
    shape.shape.page_size = kv::kDefaultPageSize;
    found.shapes.push_back(std::move(shape));
  }
  return found;
}

}  // namespace segue::lab
