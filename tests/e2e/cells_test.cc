// SPDX-License-Identifier: Apache-2.0
// The never-slower experiment on a small model: that it measures what it says. Whether the promise
// holds is measured on real models and recorded; a loaded test machine's clock cannot say.
#include "lab/cells.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tiny_model.h"

namespace segue::e2e {
namespace {

double number(const core::Json& json, const char* key) {
  double value = std::numeric_limits<double>::quiet_NaN();
  if (const core::Json* field = json.find(key)) static_cast<void>(field->as_double(value));
  return value;
}

lab::CellOptions three_cells() {
  lab::CellOptions options;
  options.depths = {64};
  options.batches = {2};
  options.fixed = {2};
  options.tokens = 48;
  options.rounds = 2;
  options.threads = 1;
  for (const char* profile : {"0", "0.8", "alternating"})
    options.profiles.push_back(lab::parse_cell_profile(profile).value());
  return options;
}

TEST(Cells, EveryAlternativeTakesAsManyTurnsAndYieldsTheTokensItsProfilePromises) {
  const Result<core::Json> document = lab::run_cells(write_tiny({}), three_cells());
  ASSERT_TRUE(document.ok());
  const core::Json::Array& cells = *document->find("cells")->as_array();
  ASSERT_EQ(cells.size(), 3u);
  for (const core::Json& cell : cells) {
    const core::Json::Array& alternatives = *cell.find("alternatives")->as_array();
    ASSERT_EQ(alternatives.size(), 3u);  // off, auto, k2
    for (const core::Json& alternative : alternatives) {
      EXPECT_EQ(alternative.find("slice_us")->as_array()->size(), 2u * 48 / 8);
      EXPECT_GT(number(alternative, "tokens_per_s"), 0);
    }
    for (const char* ratio : {"to_off", "to_best"}) {
      EXPECT_LE(number(*cell.find(ratio), "low95"), number(*cell.find(ratio), "median"));
      EXPECT_GE(number(*cell.find(ratio), "high95"), number(*cell.find(ratio), "median"));
    }
    double tokens = 0;
    for (const core::Json& slice : *alternatives[2].find("slice_tokens")->as_array()) {
      double value = 0;
      EXPECT_TRUE(slice.as_double(value));
      tokens += value;
    }
    std::int64_t sequence_steps = 0;
    for (const core::Json& steps : *alternatives[2].find("steps_by_k")->as_array())
      sequence_steps += *steps.as_int();
    if (*cell.find("profile")->as_string() == "0.8") {
      EXPECT_NEAR(tokens / static_cast<double>(sequence_steps), 1 + 0.8 + 0.64, 0.01);
    }
  }
}

TEST(Cells, AProfileIsANumberOrANameAndOthersAreRefused) {
  for (const char* text : {"0", "1", "0.46", "falling", "alternating"})
    EXPECT_TRUE(lab::parse_cell_profile(text).ok()) << text;
  for (const char* text : {"", "1.5", "-0.1", "0.5x", "nan", "rising"}) {
    const auto refused = lab::parse_cell_profile(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.error().message.find("allowed"), std::string::npos);
  }
  const auto falling = lab::parse_cell_profile("falling").value().at(0);
  EXPECT_NEAR(falling(0, 100), 0.93, 1e-9);
  EXPECT_NEAR(falling(3, 86000), 0.5, 1e-9);
  EXPECT_NEAR(falling(0, 1), 0.93, 1e-9);
  const auto alternating = lab::parse_cell_profile("alternating").value().at(512);
  EXPECT_EQ(alternating(0, 513), 0.9);
  EXPECT_EQ(alternating(7, 562), 0.9);
  EXPECT_EQ(alternating(0, 563), 0.1);
}

TEST(Cells, ARatioOfRatesIsOfTotalsAndItsIntervalShrinksWhereTurnsDriftTogether) {
  lab::Turns a;
  lab::Turns b;
  lab::Turns apart;
  for (int i = 0; i < 40; ++i) {
    const double drift = 1 + 0.3 * std::sin(i);
    a.us.push_back(100 * drift);
    b.us.push_back(150 * drift);
    apart.us.push_back(150 * (1 + 0.3 * std::sin(i + 2)));
    a.work.push_back(8);
    b.work.push_back(8);
    apart.work.push_back(8);
  }
  const lab::Ratio together = lab::rate_ratio(a, b);
  EXPECT_NEAR(together.median, 1.5, 1e-9);
  EXPECT_NEAR(together.high95 - together.low95, 0, 1e-6);
  const lab::Ratio loose = lab::rate_ratio(a, apart);
  EXPECT_LT(loose.low95, 1.45);
  EXPECT_GT(loose.high95, 1.55);
  // A turn without any step is no division by zero.
  a.us.front() = a.work.front() = 0;
  EXPECT_TRUE(std::isfinite(lab::rate_ratio(a, b).low95));
}

}  // namespace
}  // namespace segue::e2e
