// SPDX-License-Identifier: Apache-2.0
// The table of well-formed sequences is the one of the Unicode standard, chapter 3, "UTF-8".
#include "text/utf8.h"

#include <algorithm>

namespace segue::text {
namespace {

struct Lead {
  std::size_t length = 0;  // 0: cannot begin a character
  unsigned char second_low = 0x80;
  unsigned char second_high = 0xbf;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

/// How many bytes of `text` (not empty) agree with the character that its first byte announces.
std::size_t agreeing_bytes(std::string_view text, const Lead& lead) {
  std::size_t count = 1;
  for (; count < std::min(lead.length, text.size()); ++count) {
    const auto byte = static_cast<unsigned char>(text[count]);
    const unsigned char low = count == 1 ? lead.second_low : 0x80;
    const unsigned char high = count == 1 ? lead.second_high : 0xbf;
    if (byte < low || byte > high) break;
  }
  return count;
}

}  // namespace

std::size_t utf8_character(std::string_view text, std::size_t position) {
  if (position >= text.size()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[position]));
  if (lead.length <= 1) return lead.length;
  return agreeing_bytes(text.substr(position), lead) == lead.length ? lead.length : 0;
}

std::size_t utf8_incomplete_tail(std::string_view text) {
  for (std::size_t tail = 1; tail <= std::min<std::size_t>(3, text.size()); ++tail) {
    const std::string_view end = text.substr(text.size() - tail);
    const Lead lead = lead_of(static_cast<unsigned char>(end[0]));
    if (lead.length == 0) continue;
    return lead.length > tail && agreeing_bytes(end, lead) == tail ? tail : 0;
  }
  return 0;
}

}  // namespace segue::text
