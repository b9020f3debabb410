// SPDX-License-Identifier: Apache-2.0
// The attention shapes of a model file, one per kind of layer, read without loading its weights.
#pragma once

#include <string>
#include <vector>

#include "lab/shapes.h"
#include "segue/error.h"

namespace segue::lab {

/// Named "MODEL sliding (22 layers)". As the engine would run them, with the default page size.
Result<std::vector<NamedShape>> model_shapes(const std::string& path);

}  // namespace segue::lab
