// SPDX-License-Identifier: Apache-2.0
// inspect and tokenize on Hugging Face folders: what they print, and what they refuse with a
// reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/file.h"
#include "core/json.h"
#include "core/temporary_folder.h"
#include "e2e/program.h"
#include "format/safetensors/writer.h"

namespace segue::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Folder : public testing::Test {
 protected:
  std::string file(const char* name) const { return folder_.file(name); }

  core::TemporaryFolder folder_;
  const std::string path_ = folder_.path();
};

TEST_F(Folder, InspectShowsTheTensorsOfEveryShard) {
  std::vector<safetensors::Writer> shards(2);
  shards[0].metadata("format", "pt");
  shards[0].tensor("first.weight", {2, 3}, std::vector<float>(6));
  shards[1].tensor("second.weight", {4}, std::vector<float>(4));
  ASSERT_TRUE(safetensors::Writer::write_shards(path_, shards).ok());
  const Outcome shown = run_program(fmt::format("inspect {}", path_));
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.output,
              AllOf(HasSubstr("first.weight"), HasSubstr("second.weight"), HasSubstr("[2,3]")));
  const Outcome json = run_program(fmt::format("inspect {} --json - --quiet", path_));
  const core::Json document = core::Json::parse(json.output).value();
  EXPECT_EQ(document.find("files")->as_array()->size(), 2u);
  EXPECT_EQ(*document.find("totals")->find("elements")->as_int(), 10);
  const Outcome one =
      run_program(fmt::format("inspect {}", file("model-00002-of-00002.safetensors")));
  EXPECT_EQ(one.code, 0);
  EXPECT_THAT(one.output, testing::Not(HasSubstr("first.weight")));

  std::filesystem::remove(file("model-00002-of-00002.safetensors"));
  const Outcome missing = run_program(fmt::format("inspect {}", path_));
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.output, AllOf(HasSubstr("model-00002-of-00002.safetensors' is missing"),
                                    HasSubstr("\"second.weight\"")));
}

TEST_F(Folder, TokenizeReadsATokenizerJson) {
  const std::string gemma = std::string(SEGUE_GOLDEN_DIR) + "/tokenizer_json/gemma";
  const Outcome ids =
      run_program(fmt::format("tokenize -m {} -p 'a<eos>' --special --json - --quiet", gemma));
  EXPECT_EQ(ids.code, 0);
  const core::Json document = core::Json::parse(ids.output).value();
  EXPECT_EQ(document.find("pieces")->dump(), R"(["<bos>","a","<eos>"])");
}

TEST_F(Folder, TokenizeRefusesWhatItDoesNotUnderstandByName) {
  ASSERT_TRUE(core::write_file(file("tokenizer.json"),
                               R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})")
                  .ok());
  const Outcome refused = run_program(fmt::format("tokenize -m {} -p x", path_));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("model.type is \"WordPiece\" (read: \"BPE\")"));
  std::filesystem::remove(file("tokenizer.json"));
  const Outcome absent = run_program(fmt::format("tokenize -m {} -p x", path_));
  EXPECT_EQ(absent.code, 1);
  EXPECT_THAT(absent.output, HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace segue::e2e
