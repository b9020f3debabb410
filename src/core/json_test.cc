// SPDX-License-Identifier: Apache-2.0
// Values, printing, the parser and its limits.
#include "core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace segue::core {
namespace {

using ::testing::HasSubstr;

std::string round_trip(std::string_view text) {
  const Result<Json> json = Json::parse(text);
  return json ? json->dump() : json.error().message;
}

TEST(Json, PrintsMembersInTheOrderTheyWereSet) {
  Json json;
  json.set("b", 1).set("a", Json::array().push(true).push("x").push(Json())).set("c", 0.5);
  EXPECT_EQ(json.dump(), R"({"b":1,"a":[true,"x",null],"c":0.5})");
}

TEST(Json, SettingANameAgainKeepsItsPlace) {
  EXPECT_EQ(Json().set("a", 1).set("b", 2).set("a", 3).dump(), R"({"a":3,"b":2})");
}

TEST(Json, ReadsBackWhatItPrints) {
  for (const char* text :
       {"null", "true", "[]", "{}", "-9223372036854775808", "18446744073709551615", "0.1", "1e+300",
        R"(["\u0000\n\"\\",{"a":{"":[[]]}}])", R"("ü€𝄞")"}) {
    EXPECT_EQ(round_trip(text), text);
  }
}

TEST(Json, KeepsEveryBitOfADouble) {
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0}) {
    double back = 1;
    ASSERT_TRUE(Json::parse(Json(value).dump())->as_double(back));
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
}

TEST(Json, KeepsUnsignedNumbersAboveTheSignedRange) {
  const Json seed(std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(seed.as_int(), nullptr);
  std::uint64_t value = 0;
  ASSERT_TRUE(seed.as_uint(value));
  EXPECT_EQ(value, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(seed.dump(), "18446744073709551615");
  double rounded = 0;
  EXPECT_TRUE(seed.as_double(rounded));
  EXPECT_EQ(rounded, 0x1p64);
  EXPECT_FALSE(Json(-1).as_uint(value));
  EXPECT_EQ(Json(-1).dump(), "-1");
}

TEST(Json, PrintsNonFiniteNumbersAsNullAndBadUtf8AsReplacement) {
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(-std::numeric_limits<double>::infinity()).dump(), "null");
  EXPECT_EQ(Json("a\xff\xc0z").dump(), "\"a\xef\xbf\xbd\xef\xbf\xbdz\"");
  EXPECT_EQ(Json().set("\xfe", 1).dump(), "{\"\xef\xbf\xbd\":1}");
}

TEST(Json, IndentsWhenAsked) {
  EXPECT_EQ(Json().set("a", std::vector<int>{1, 2}).dump(1), "{\n \"a\": [\n  1,\n  2\n ]\n}");
}

TEST(Json, TypedReadsGiveNothingForAnotherType) {
  const Json json("text");
  EXPECT_EQ(json.as_int(), nullptr);
  EXPECT_EQ(json.as_bool(), nullptr);
  EXPECT_EQ(json.as_array(), nullptr);
  EXPECT_EQ(json.find("a"), nullptr);
  double number = 0;
  EXPECT_FALSE(json.as_double(number));
  EXPECT_TRUE(Json(3).as_double(number));
  EXPECT_EQ(number, 3);
}

TEST(Json, RepeatedNamesAreRefusedWhereTheReaderWantsThat) {
  for (const char* text : {R"({"a": {"b": 1, "c": 2, "b": 1}})", R"([{"": 1, "": 2}])"}) {
    const Result<Json> read = Json::parse(text, Json::Repeats::kRefused);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.error().message.find("two members named"), std::string::npos);
  }
  EXPECT_TRUE(Json::parse(R"({"a": {"a": 1}, "b": [{"a": 1}]})", Json::Repeats::kRefused).ok());
}

TEST(Json, OfRepeatedNamesTheLastValueCountsInTheFirstPlace) {
  EXPECT_EQ(round_trip(R"({"a":1,"b":2,"a":3})"), R"({"a":3,"b":2})");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text :
       {"", " ", "{", "[1,]", "{\"a\"}", "nul", "01", "1e999", "\"\xff\"", "[1] 2", "\"\t\"", "NaN",
        "{1:2}", "\"\\ud800\"", "'a'", "[1 2]", "// x\n1"}) {
    const Result<Json> json = Json::parse(text);
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.error().code, ErrorCode::kInvalidFile);
    EXPECT_THAT(json.error().message, HasSubstr("not valid JSON: ")) << text;
  }
}

TEST(Json, SaysWhereTheProblemIs) {
  EXPECT_THAT(round_trip("{\n  \"a\": x}"), HasSubstr("line 2, column 8"));
}

TEST(Json, RefusesNestingBeyondItsLimitAndAcceptsTheLimit) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(round_trip(nested(256)), nested(256));
  EXPECT_EQ(round_trip(nested(257)), "JSON nested deeper than 256 levels");
  EXPECT_EQ(round_trip(std::string(1'000'000, '[')), "JSON nested deeper than 256 levels");
  std::string objects;
  for (int i = 0; i < 257; ++i) objects += "{\"a\":";
  EXPECT_EQ(round_trip(objects), "JSON nested deeper than 256 levels");
}

TEST(Json, BracketsInStringsAreNoNesting) {
  const std::string text = '"' + std::string(1000, '[') + '"';
  EXPECT_EQ(round_trip(text), text);
}

TEST(Json, ReadsAndPrintsAnObjectOfManyMembersInLinearTime) {
  const auto object_of = [](int members) {
    std::string text = "{";
    for (int i = 0; i < members; ++i) text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
    return text + "}";
  };
  // Quadratic time would be minutes; processor time, since other programs may be running.
  const std::string text = object_of(200'000);
  const std::clock_t start = std::clock();
  EXPECT_EQ(round_trip(text), text);
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace segue::core
