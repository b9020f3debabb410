// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace segue::text {
namespace {

TEST(Utf8, AcceptsTheFirstAndLastCharacterOfEveryLength) {
  for (std::string_view text :
       {"\x01", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(utf8_character(text, 0), text.size());
    EXPECT_EQ(utf8_incomplete_tail(text), 0u);
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      EXPECT_EQ(utf8_character(text.substr(0, cut), 0), 0u);
      std::string tail(1, 'a');
      tail.append(text.substr(0, cut));
      EXPECT_EQ(utf8_incomplete_tail(tail), cut);
    }
  }
  EXPECT_EQ(utf8_character(std::string_view("\0", 1), 0), 1u);
  EXPECT_EQ(utf8_character("a", 1), 0u);
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndStrayBytes) {
  for (std::string_view text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x28\xa1"}) {
    EXPECT_EQ(utf8_character(text, 0), 0u);
    EXPECT_EQ(utf8_incomplete_tail(text), 0u);
  }
}

}  // namespace
}  // namespace segue::text
