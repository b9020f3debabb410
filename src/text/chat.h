// SPDX-License-Identifier: Apache-2.0
// Chat formats: messages to the prompt text that a model was trained on. Three families are built in and recognised
// from the file; its template is never executed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "segue/error.h"
#include "text/vocabulary.h"

namespace segue::text {

struct Message {
  std::string role;  // "system", "user" or "assistant" ("model" is the same)
  std::string content;
};

enum class ChatFormat : std::uint8_t { kGemma3, kChatMl, kLlama3 };

/// What told us the format: the template in the file, or only the names of tokens (a base model may have them).
enum class ChatSource : std::uint8_t { kTemplate, kTokens };

std::string_view chat_format_name(ChatFormat format);  // "gemma3", "chatml", "llama3"
std::string_view chat_source_name(ChatSource source);  // "from the file's template", "by tokens"

class ChatTemplate {
 public:
  /// kUnsupported when neither template nor tokens are known; the message has what was found and what is known.
  static Result<ChatTemplate> detect(const Vocabulary& vocabulary);
  explicit ChatTemplate(ChatFormat format, ChatSource source = ChatSource::kTokens, std::string default_system = {})
      : format_(format), source_(source), default_system_(std::move(default_system)) {}

  ChatFormat format() const { return format_; }
  ChatSource source() const { return source_; }
  /// System text that the file's template adds when the messages have none; empty: none.
  const std::string& default_system() const { return default_system_; }

  /// The prompt text, to be encoded with parse_special and encode_prompt (it has no bos of its own). Append
  /// nothing: with `add_generation_prompt` it ends where the answer begins. kUsage for unknown roles, a system message
  /// that is not the first, no messages, or (gemma3) turns that do not alternate, beginning with the user.
  /// Contents go in as they are: a content that spells a control token becomes that token.
  Result<std::string> render(std::span<const Message> messages, bool add_generation_prompt) const;

 private:
  ChatFormat format_;
  ChatSource source_;
  std::string default_system_;
};

}  // namespace segue::text
