// SPDX-License-Identifier: Apache-2.0
// Tokenizers under random text and random vocabularies. The first byte chooses: text for a small
// good vocabulary, which must come back from decode as it was, or a vocabulary and text, where
// anything but a crash is right.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/check.h"
#include "text/test_vocabulary.h"
#include "text/tokenizer.h"

namespace segue::text {
namespace {

/// Takes numbers and short strings from the front of the input; zeros and empty strings when it is
/// used up.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}
  unsigned byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<unsigned char>(bytes_.front());
    bytes_.remove_prefix(1);
    return value;
  }
  std::string_view text(std::size_t bytes) {
    const std::string_view taken = bytes_.substr(0, bytes);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

std::unique_ptr<Tokenizer> good(Vocabulary vocabulary) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::create(std::move(vocabulary));
  CHECK(tokenizer.ok());
  return std::move(tokenizer).value();
}

void round_trip(const Tokenizer& tokenizer, std::string_view text) {
  if (text.find("\u2581") != std::string_view::npos) return;
  const std::vector<std::int32_t> plain = tokenizer.encode(text, false);
  CHECK(tokenizer.decode(plain) == text);
  for (std::int32_t id : plain) CHECK(!tokenizer.is_control(id));
  const std::vector<std::int32_t> special = tokenizer.encode(text, true);
  CHECK(tokenizer.decode(special, true) == text);
  StreamDecoder stream(tokenizer, true);
  std::string joined;
  for (std::int32_t id : special) joined += stream.push(id);
  CHECK(joined + stream.flush() == text);
}

void any_vocabulary(Input input) {
  Vocabulary vocabulary;
  const unsigned flags = input.byte();
  vocabulary.model = (flags & 1) != 0 ? "llama" : (flags & 32) != 0 ? "gemma4" : "gpt2";
  vocabulary.pre = (flags & 2) != 0 ? "smollm" : "llama-bpe";
  if (vocabulary.model == "gemma4") vocabulary.pre = (flags & 2) != 0 ? "gemma4" : "";
  vocabulary.add_bos = (flags & 4) != 0;
  vocabulary.add_eos = (flags & 8) != 0;
  vocabulary.add_space_prefix = (flags & 16) != 0;
  vocabulary.leftmost_special = (flags & 64) != 0;
  vocabulary.bos = static_cast<std::int32_t>(input.byte()) - 1;
  vocabulary.eos = static_cast<std::int32_t>(input.byte()) - 1;
  vocabulary.unk = static_cast<std::int32_t>(input.byte()) - 1;
  const unsigned tokens = input.byte();
  for (unsigned byte = 0; byte < 256 && vocabulary.model == "gemma4"; ++byte) {
    vocabulary.types.push_back(static_cast<std::int32_t>(TokenType::kByte));
    vocabulary.tokens.add(fmt::format("<0x{:02X}>", byte));
  }
  for (unsigned id = 0; id < tokens && !input.empty(); ++id) {
    const unsigned kind = input.byte();
    vocabulary.types.push_back(static_cast<std::int32_t>(kind % 8));
    vocabulary.scores.push_back(static_cast<float>(kind / 8));
    vocabulary.tokens.add(input.text(input.byte() % 12));
  }
  const unsigned merges = vocabulary.model != "llama" ? input.byte() % 32 : 0;
  for (unsigned rank = 0; rank < merges && !input.empty(); ++rank)
    vocabulary.merges.add(input.text(input.byte() % 8));
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::create(std::move(vocabulary));
  if (!tokenizer) {
    CHECK(!tokenizer.error().message.empty());
    return;
  }
  for (const bool parse_special : {false, true}) {
    const std::vector<std::int32_t> ids = (*tokenizer)->encode_prompt(input.rest(), parse_special);
    for (std::int32_t id : ids) CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    static_cast<void>((*tokenizer)->decode(ids, parse_special));
  }
}

}  // namespace
}  // namespace segue::text

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segue::text;
  static const std::unique_ptr<Tokenizer> spm = good(tiny_spm());
  static const std::unique_ptr<Tokenizer> smollm = good(tiny_bpe("smollm"));
  static const std::unique_ptr<Tokenizer> llama3 = good(tiny_bpe("llama-bpe"));
  static const std::unique_ptr<Tokenizer> gemma4 = good(tiny_gemma4());
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0: round_trip(*spm, rest); break;
    case 1: round_trip(*smollm, rest); break;
    case 2: round_trip(*llama3, rest); break;
    case 4: round_trip(*gemma4, rest); break;
    default: any_vocabulary(Input(rest)); break;
  }
  return 0;
}
