// SPDX-License-Identifier: Apache-2.0
// The tensor types of the file format: which numbers we read as which element type, and what the
// others are called.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/dtype.h"

namespace segue::gguf {

/// The element type for a number in the file; nullopt when this build does not read it.
std::optional<core::DType> tensor_type(std::uint32_t id);

/// The file's number for an element type.
std::uint32_t tensor_type_id(core::DType type);

/// "10 (Q2_K)", "77": for messages, also for types that are not read.
std::string tensor_type_label(std::uint32_t id);

/// "F32, F16, ...": every type that is read.
std::string supported_tensor_types();

}  // namespace segue::gguf
