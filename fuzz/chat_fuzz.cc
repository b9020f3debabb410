// SPDX-License-Identifier: Apache-2.0
// Chat formats under random messages and templates: nothing that a message says becomes a control
// token, and the ids spell the rendered prompt.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "text/chat.h"
#include "text/test_vocabulary.h"

namespace segue::text {
namespace {

std::size_t control_tokens(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  return static_cast<std::size_t>(std::count_if(
      ids.begin(), ids.end(), [&](std::int32_t id) { return tokenizer.is_control(id); }));
}

void talk(const Tokenizer& tokenizer, const ChatTemplate& chat, std::vector<Message> messages) {
  const Result<std::string> text = chat.render(messages, true);
  const Result<std::vector<std::int32_t>> ids = chat.encode(tokenizer, messages, true);
  CHECK(text.ok() == ids.ok());
  if (!text) {
    CHECK(text.error().code == ErrorCode::kUsage);
    return;
  }
  if (text->find("\u2581") == std::string::npos) {
    const std::string bos(tokenizer.add_bos() ? tokenizer.piece(tokenizer.bos(), true) : "");
    CHECK(tokenizer.decode(*ids, true) == bos + *text);
  }
  for (Message& message : messages) message.content = "x";
  CHECK(control_tokens(tokenizer, *ids) ==
        control_tokens(tokenizer, *chat.encode(tokenizer, messages, true)));
}

}  // namespace
}  // namespace segue::text

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segue::text;
  static const std::unique_ptr<Tokenizer> spm = std::move(Tokenizer::create(tiny_spm())).value();
  static const std::unique_ptr<Tokenizer> bpe =
      std::move(Tokenizer::create(tiny_bpe("smollm"))).value();
  static const std::unique_ptr<Tokenizer> gemma4 =
      std::move(Tokenizer::create(tiny_gemma4())).value();
  if (size < 2) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[0] % 5 == 3) {
    Vocabulary vocabulary;
    vocabulary.chat_template = rest;
    if (const segue::Result<ChatTemplate> chat = ChatTemplate::detect(vocabulary); chat.ok()) {
      talk(*bpe, *chat, {{"user", "hello"}});
    }
    return 0;
  }
  constexpr std::string_view kRoles[] = {"system", "user", "assistant", "model", "tool"};
  std::vector<Message> messages;
  unsigned roles = data[1];
  while (!rest.empty()) {
    const std::string_view content = rest.substr(0, rest.find('\0'));
    messages.push_back({std::string(kRoles[roles % 5]), std::string(content)});
    roles = roles * 7 / 5 + 1;
    rest.remove_prefix(std::min(rest.size(), content.size() + 1));
  }
  if (data[0] % 5 == 4) {
    talk(*gemma4, ChatTemplate(ChatFormat::kGemma4), std::move(messages));
    return 0;
  }
  const auto format = static_cast<ChatFormat>(data[0] % 5);
  talk(format == ChatFormat::kGemma3 ? *spm : *bpe, ChatTemplate(format), std::move(messages));
  return 0;
}
