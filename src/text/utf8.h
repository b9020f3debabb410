// SPDX-License-Identifier: Apache-2.0
// Where characters begin and end in bytes that may or may not be UTF-8.
#pragma once

#include <cstddef>
#include <string_view>

namespace segue::text {

/// Bytes of the well-formed UTF-8 character at `position` (no surrogates, no overlong forms); 0 if
/// there is none.
std::size_t utf8_character(std::string_view text, std::size_t position);

/// Bytes at the end of `text` that begin a character and lack the rest: 0 to 3.
std::size_t utf8_incomplete_tail(std::string_view text);

}  // namespace segue::text
