// SPDX-License-Identifier: Apache-2.0
// Bytes as JSON text. What is accepted must print, and printing must be a fixed point:
// parse(dump(x)) dumps the same.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segue;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<core::Json> json = core::Json::parse(text);
  if (!json) {
    CHECK(!json.error().message.empty());
    return 0;
  }
  const std::string printed = json->dump();
  const Result<core::Json> again = core::Json::parse(printed);
  CHECK(again.ok());
  CHECK(again->dump() == printed);
  CHECK(core::Json::parse(json->dump(2))->dump() == printed);
  return 0;
}
