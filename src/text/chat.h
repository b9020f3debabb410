// SPDX-License-Identifier: Apache-2.0
// Chat formats: messages to the prompt text that a model was trained on. Four families are built in
// and recognised from the file; its template is never executed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "segue/error.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace segue::text {

struct Message {
  std::string role;  // "system" ("developer"), "user" or "assistant" ("model")
  std::string content;
};

enum class ChatFormat : std::uint8_t { kGemma3, kChatMl, kLlama3, kGemma4 };

/// What told us the format: the template in the file, or only the names of tokens (a base model may
/// have them).
enum class ChatSource : std::uint8_t { kTemplate, kTokens };

std::string_view chat_format_name(ChatFormat format);  // "gemma3", "chatml", ...

class ChatTemplate {
 public:
  /// kUnsupported for a template that is unknown, kUsage when there is none and no turn tokens of a
  /// known format either; the message has what was found and what is known.
  static Result<ChatTemplate> detect(const Vocabulary& vocabulary);
  explicit ChatTemplate(ChatFormat format, ChatSource source = ChatSource::kTokens,
                        std::string default_system = {}, std::string answer_start = {})
      : format_(format),
        source_(source),
        default_system_(std::move(default_system)),
        answer_start_(std::move(answer_start)) {}

  ChatFormat format() const { return format_; }
  ChatSource source() const { return source_; }
  /// What a person should know of the choice: that the tokens alone told it. Empty: the file's
  /// template did.
  std::string note() const;
  /// System text that the file's template adds when the messages have none; empty: none.
  const std::string& default_system() const { return default_system_; }
  /// What the file's template writes between the header of the answer's turn and the answer when
  /// the model should not think: an empty thought in the larger Gemma 4 models, nothing in E2B and
  /// E4B.
  const std::string& answer_start() const { return answer_start_; }

  /// The prompt text, to be encoded with parse_special and encode_prompt (it has no bos of its
  /// own). With `add_generation_prompt` it ends where the answer begins. kUsage for no messages,
  /// unknown roles, and what the format cannot say (gemma3: turns that do not alternate user,
  /// assistant; a system message that is not the first). Of earlier answers gemma4 leaves the
  /// thoughts out.
  Result<std::string> render(std::span<const Message> messages, bool add_generation_prompt) const;

  /// The ids of that prompt, bos included. Nothing that a message says becomes a control token.
  Result<std::vector<std::int32_t>> encode(const Tokenizer& tokenizer,
                                           std::span<const Message> messages,
                                           bool add_generation_prompt) const;

 private:
  struct Prompt {
    std::string text;
    std::vector<TextRange> contents;  // what messages say, as ranges of text
  };
  Result<Prompt> build(std::span<const Message> messages, bool add_generation_prompt) const;

  ChatFormat format_;
  ChatSource source_;
  std::string default_system_;
  std::string answer_start_;
};

}  // namespace segue::text
