// SPDX-License-Identifier: Apache-2.0
// The attention shapes of a model file, one per kind of layer, read without loading its weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/shapes.h"
#include "segue/error.h"

namespace segue::lab {

struct ModelShapes {
  std::vector<NamedShape> shapes;  // named "MODEL sliding (22 layers)", with the default page size
  std::int64_t context = 0;        // positions that the model has
};

/// As the engine would run them.
Result<ModelShapes> model_shapes(const std::string& path);

}  // namespace segue::lab
