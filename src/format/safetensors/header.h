// SPDX-License-Identifier: Apache-2.0
// The header of one safetensors file as tensors and metadata. Private to this folder.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/safetensors/safetensors.h"
#include "segue/error.h"

namespace segue::safetensors {

/// A name for a message: quoted as in JSON, cut after 80 bytes.
std::string quote(std::string_view name);

struct Header {
  std::vector<Tensor> tensors;  // in the order of their bytes; `file` is not set
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// Checks one file's bytes. `path` is for messages.
Result<Header> read_header(std::span<const std::byte> bytes, const std::string& path);

}  // namespace segue::safetensors
