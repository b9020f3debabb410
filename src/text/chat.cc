// SPDX-License-Identifier: Apache-2.0
#include "text/chat.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

namespace segue::text {
namespace {

enum class Role : std::uint8_t { kSystem, kUser, kAssistant };

/// One family: what its template and its vocabulary are recognised by, and how a turn is written.
struct Family {
  ChatFormat format;
  std::string_view name;
  std::string_view marker;      // occurs in the template; a token of the vocabulary
  std::string_view end_marker;  // another token
  std::string_view turn_begin;  // before the role
  std::string_view role_end;    // between role and content
  std::string_view turn_end;    // after the content
  std::string_view assistant;   // the name of that role
  bool trims;                   // white space around contents goes away
  bool system_role;             // otherwise system text goes in front of the first user message
  bool thoughts;                // answers may have them: kThought ... kThoughtEnd
};

constexpr std::string_view kThought = "<|channel>", kThoughtEnd = "<channel|>";

constexpr std::array<Family, 4> kFamilies{{
    {ChatFormat::kGemma3, "gemma3", "<start_of_turn>", "<end_of_turn>", "<start_of_turn>", "\n",
     "<end_of_turn>\n", "model", true, false, false},
    {ChatFormat::kChatMl, "chatml", "<|im_start|>", "<|im_end|>", "<|im_start|>", "\n",
     "<|im_end|>\n", "assistant", false, true, false},
    {ChatFormat::kLlama3, "llama3", "<|start_header_id|>", "<|eot_id|>", "<|start_header_id|>",
     "<|end_header_id|>\n\n", "<|eot_id|>", "assistant", true, true, false},
    {ChatFormat::kGemma4, "gemma4", "<|turn>", "<turn|>", "<|turn>", "\n", "<turn|>\n", "model",
     true, true, true},
}};

const Family& family_of(ChatFormat format) { return kFamilies[static_cast<std::size_t>(format)]; }

std::string known_formats() {
  std::string known;
  for (const Family& family : kFamilies) {
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", family.name, family.marker);
  }
  return known;
}

bool has_token(const Vocabulary& vocabulary, std::string_view text) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id] == text) return true;
  }
  return false;
}

/// The system text that a ChatML template writes when there is none: the literal between its system
/// header and the end of the turn, where that is plain text.
std::string default_system_of(std::string_view source) {
  constexpr std::string_view kHeader = "<|im_start|>system";
  for (std::size_t at = source.find(kHeader); at != std::string_view::npos;
       at = source.find(kHeader, at + 1)) {
    std::string_view rest = source.substr(at + kHeader.size());
    if (rest.starts_with("\n")) {
      rest.remove_prefix(1);
    } else if (rest.starts_with("\\n")) {
      rest.remove_prefix(2);
    } else {
      continue;
    }
    const std::string_view text = rest.substr(0, rest.find("<|im_end|>"));
    const bool literal =
        text.size() < rest.size() && text.find_first_of("'\"{}\\") == std::string_view::npos;
    if (literal && !text.empty()) return std::string(text);
  }
  return {};
}

/// The empty thought that the larger Gemma 4 models want before an answer without one; the
/// templates of the small ones have no such text, only thoughts with content.
std::string answer_start_of(std::string_view source) {
  constexpr std::string_view kEmpty = "<|channel>thought\n<channel|>";
  constexpr std::string_view kEscaped = "<|channel>thought\\n<channel|>";
  const bool found = source.find(kEmpty) != std::string_view::npos ||
                     source.find(kEscaped) != std::string_view::npos;
  return found ? std::string(kEmpty) : std::string();
}

/// An earlier answer without its thoughts: what lies between kThought and the next kThoughtEnd (or
/// the end), and stray ends.
std::string without_thoughts(std::string_view answer) {
  std::string text;
  while (!answer.empty()) {
    const std::size_t end = std::min(answer.find(kThoughtEnd), answer.size());
    const std::string_view part = answer.substr(0, end);
    text += part.substr(0, part.find(kThought));
    answer.remove_prefix(std::min(end + kThoughtEnd.size(), answer.size()));
  }
  return text;
}

std::optional<Role> role_of(std::string_view name) {
  if (name == "system" || name == "developer") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant" || name == "model") return Role::kAssistant;
  return std::nullopt;
}

/// Without the white space at both ends, as templates trim: all that Unicode calls white space, and
/// U+001C to U+001F.
std::string_view trim(std::string_view text) {
  constexpr std::array<std::string_view, 29> kSpaces{
      " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",
      "\x1e",   "\x1f",   "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
      "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  for (bool again = true; again;) {
    again = false;
    for (std::string_view space : kSpaces) {
      if (text.starts_with(space)) {
        text.remove_prefix(space.size());
        again = true;
      }
      if (text.ends_with(space)) {
        text.remove_suffix(space.size());
        again = true;
      }
    }
  }
  return text;
}

std::string_view role_name(Role role, const Family& family) {
  switch (role) {
    case Role::kSystem: return "system";
    case Role::kUser: return "user";
    case Role::kAssistant: return family.assistant;
  }
  return "?";
}

/// The roles, or why the format cannot say them in this order.
Result<std::vector<Role>> check_roles(std::span<const Message> messages, const Family& family) {
  if (messages.empty()) return Error{ErrorCode::kUsage, "a chat needs at least one message"};
  std::vector<Role> roles;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::optional<Role> role = role_of(messages[i].role);
    if (!role) {
      return Error{ErrorCode::kUsage,
                   fmt::format("message {} has role \"{}\" (allowed: system, user, assistant)", i,
                               messages[i].role)};
    }
    roles.push_back(*role);
  }
  if (family.system_role) return roles;
  const std::size_t first = roles[0] == Role::kSystem ? 1 : 0;
  if (first == roles.size()) {
    return Error{
        ErrorCode::kUsage,
        fmt::format("the {} chat format needs a user message beside the system text", family.name)};
  }
  for (std::size_t i = first; i < roles.size(); ++i) {
    if (roles[i] != ((i - first) % 2 == 0 ? Role::kUser : Role::kAssistant)) {
      return Error{ErrorCode::kUsage,
                   fmt::format("message {} has role \"{}\": in the {} chat format user and "
                               "assistant alternate, beginning with the "
                               "user, after at most one system message",
                               i, messages[i].role, family.name)};
    }
  }
  return roles;
}

}  // namespace

std::string_view chat_format_name(ChatFormat format) { return family_of(format).name; }

std::string ChatTemplate::note() const {
  if (source_ == ChatSource::kTemplate) return {};
  const Family& family = family_of(format_);
  return fmt::format(
      "the model has no chat template: turns of the format {} are used, because its vocabulary has "
      "{} and {}",
      family.name, family.marker, family.end_marker);
}

Result<ChatTemplate> ChatTemplate::detect(const Vocabulary& vocabulary) {
  const std::string_view source = vocabulary.chat_template;
  if (!source.empty()) {
    for (const Family& family : kFamilies) {
      if (source.find(family.marker) == std::string_view::npos) continue;
      return ChatTemplate(
          family.format, ChatSource::kTemplate,
          family.format == ChatFormat::kChatMl ? default_system_of(source) : std::string(),
          family.thoughts ? answer_start_of(source) : std::string());
    }
    constexpr std::size_t kShown = 80;
    return Error{ErrorCode::kUnsupported,
                 fmt::format("unknown chat template; it begins with: {}{} (known: {})",
                             source.substr(0, kShown), source.size() > kShown ? "..." : "",
                             known_formats())};
  }
  for (const Family& family : kFamilies) {
    if (has_token(vocabulary, family.marker) && has_token(vocabulary, family.end_marker))
      return ChatTemplate(family.format);
  }
  return Error{ErrorCode::kUsage,
               fmt::format("the model has no chat template, and its vocabulary no turn tokens of a "
                           "known chat format (known: {})",
                           known_formats())};
}

Result<ChatTemplate::Prompt> ChatTemplate::build(std::span<const Message> messages,
                                                 bool add_generation_prompt) const {
  const Family& family = family_of(format_);
  const Result<std::vector<Role>> roles = check_roles(messages, family);
  if (!roles) return roles.error();
  Prompt prompt;
  const auto say = [&](std::string_view content) {
    if (content.empty()) return;
    prompt.contents.push_back({prompt.text.size(), prompt.text.size() + content.size()});
    prompt.text += content;
  };
  const auto begin_turn = [&](Role role) {
    prompt.text += family.turn_begin;
    prompt.text += role_name(role, family);
    prompt.text += family.role_end;
  };
  if ((*roles)[0] != Role::kSystem && !default_system_.empty()) {
    begin_turn(Role::kSystem);
    prompt.text += default_system_;
    prompt.text += family.turn_end;
  }
  std::string_view prefix;  // system text that waits for the first user message
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Role role = (*roles)[i];
    const std::string_view content = messages[i].content;
    if (role == Role::kSystem && !family.system_role) {
      prefix = content;
      continue;
    }
    begin_turn(role);
    if (!prefix.empty()) {
      say(prefix);
      prompt.text += "\n\n";
      prefix = {};
    }
    const bool thinks = family.thoughts && role == Role::kAssistant;
    const std::string answer = thinks ? without_thoughts(content) : std::string();
    const std::string_view said = thinks ? std::string_view(answer) : content;
    say(family.trims ? trim(said) : said);
    prompt.text += family.turn_end;
  }
  if (add_generation_prompt) {
    begin_turn(Role::kAssistant);
    prompt.text += answer_start_;
  }
  return prompt;
}

Result<std::string> ChatTemplate::render(std::span<const Message> messages,
                                         bool add_generation_prompt) const {
  Result<Prompt> prompt = build(messages, add_generation_prompt);
  if (!prompt) return prompt.error();
  return std::move(prompt->text);
}

Result<std::vector<std::int32_t>> ChatTemplate::encode(const Tokenizer& tokenizer,
                                                       std::span<const Message> messages,
                                                       bool add_generation_prompt) const {
  const Result<Prompt> prompt = build(messages, add_generation_prompt);
  if (!prompt) return prompt.error();
  return tokenizer.encode_prompt(prompt->text, prompt->contents);
}

}  // namespace segue::text
