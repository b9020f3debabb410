// SPDX-License-Identifier: Apache-2.0
// The files of a tokenizer, one after another with a NUL between them: tokenizer.json, its config,
// the generation config, the chat template, then a text. Whatever they say, an accepted tokenizer
// gives ids of its vocabulary.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "text/chat.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segue;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  text::TokenizerFiles files{.folder = "fuzz"};
  for (std::string* file : {&files.tokenizer, &files.tokenizer_config, &files.generation_config,
                            &files.chat_template}) {
    const std::size_t end = rest.find('\0');
    *file = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  Result<text::Vocabulary> vocabulary = text::vocabulary_from_json(files);
  if (!vocabulary) {
    CHECK(!vocabulary.error().message.empty());
    return 0;
  }
  const Result<std::unique_ptr<text::Tokenizer>> tokenizer =
      text::Tokenizer::create(std::move(vocabulary).value());
  if (!tokenizer) {
    CHECK(!tokenizer.error().message.empty());
    return 0;
  }
  for (const bool parse_special : {false, true}) {
    const std::vector<std::int32_t> ids = (*tokenizer)->encode_prompt(rest, parse_special);
    for (std::int32_t id : ids) CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    static_cast<void>((*tokenizer)->decode(ids, parse_special));
  }
  for (std::int32_t id : (*tokenizer)->stop_ids())
    CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
  static_cast<void>(text::ChatTemplate::detect((*tokenizer)->vocabulary()));
  return 0;
}
