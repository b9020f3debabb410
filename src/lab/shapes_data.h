// SPDX-License-Identifier: Apache-2.0
// bench/cases/shapes.json and gpus.json as strings of the program; defined in a source that CMake
// writes.
#pragma once

#include <string_view>

namespace segue::lab {

extern const std::string_view kShapesJson;
extern const std::string_view kGpusJson;

}  // namespace segue::lab
