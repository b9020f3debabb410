// SPDX-License-Identifier: Apache-2.0
// Shapes on a command line: numbers, or a published shape by name. The names are data,
// bench/cases/shapes.json, built into the program so that a moved binary still knows them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attention/shape.h"

namespace segue::lab {

struct NamedShape {
  std::string name;  // "4,1,256" when given as numbers
  attention::Shape shape;
};

/// "q_heads,kv_heads,head_dim[,window]" or a name. Heads, head_dim and window are set and
/// validated; KV type, layout and page size are the defaults. kUsage; the message lists the names.
Result<NamedShape> parse_shape(std::string_view text);

/// All published shapes.
const std::vector<NamedShape>& named_shapes();

}  // namespace segue::lab
