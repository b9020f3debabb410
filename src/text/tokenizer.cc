// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "text/byte_fallback.h"
#include "text/model.h"
#include "text/token_map.h"
#include "text/utf8.h"

namespace segue::text {
namespace {

// Tokens that end a turn or a text in some family of models. Files often name only one of them as
// eos, and some give them another type than control; such a name means nothing else, so they are
// control tokens whatever the file says.
constexpr std::array<std::string_view, 12> kStopNames{
    "<end_of_turn>", "<turn|>",         "<|im_end|>",         "<|eot_id|>",
    "<|eom_id|>",    "<|end_of_text|>", "<|endoftext|>",      "<|end|>",
    "<EOT>",         "<|end_of_turn|>", "<end_of_utterance>", "<|tool_response>"};

constexpr std::array<std::string_view, 3> kModels{"llama", "gpt2", "gemma4"};

Error invalid(std::string message) {
  return {ErrorCode::kInvalidFile, "vocabulary: " + std::move(message)};
}

/// Counts, ranges and flags; fills in absent types.
Status check(Vocabulary& vocabulary) {
  const std::size_t count = vocabulary.tokens.size();
  if (count == 0) return invalid("it has no tokens");
  if (count > std::size_t{1} << 28)
    return invalid(fmt::format("{} tokens are more than the {} allowed", count, 1 << 28));
  if (vocabulary.types.empty())
    vocabulary.types.assign(count, static_cast<std::int32_t>(TokenType::kNormal));
  if (vocabulary.types.size() != count)
    return invalid(fmt::format("{} tokens but {} types", count, vocabulary.types.size()));
  for (std::size_t id = 0; id < count; ++id) {
    const std::int32_t type = vocabulary.types[id];
    if (type < static_cast<std::int32_t>(TokenType::kNormal) ||
        type > static_cast<std::int32_t>(TokenType::kByte)) {
      return invalid(fmt::format("token {} has type {} (allowed: 1 to 6)", id, type));
    }
    const auto kind = static_cast<TokenType>(type);
    const bool special = kind == TokenType::kControl || kind == TokenType::kUnknown ||
                         kind == TokenType::kUserDefined;
    if (special && vocabulary.tokens[id].size() > kMaxSpecialBytes) {
      return invalid(fmt::format("special token {} has {} bytes (allowed: {})", id,
                                 vocabulary.tokens[id].size(), kMaxSpecialBytes));
    }
  }
  const std::array<std::pair<std::string_view, std::int32_t>, 4> named{
      {{"bos", vocabulary.bos},
       {"eos", vocabulary.eos},
       {"eot", vocabulary.eot},
       {"unknown", vocabulary.unk}}};
  for (const auto& [name, id] : named) {
    if (id < -1 || id >= static_cast<std::int64_t>(count)) {
      return invalid(fmt::format("the {} token is {}, but there are {} tokens", name, id, count));
    }
  }
  for (const std::int32_t id : vocabulary.stops) {
    if (id < 0 || id >= static_cast<std::int64_t>(count)) {
      return invalid(
          fmt::format("generation ends with token {}, but there are {} tokens", id, count));
    }
  }
  if (vocabulary.add_bos && vocabulary.bos < 0)
    return invalid("prompts should begin with bos, but there is no bos token");
  if (vocabulary.add_eos && vocabulary.eos < 0)
    return invalid("prompts should end with eos, but there is no eos token");
  return {};
}

/// Errors with the file in front.
Result<std::unique_ptr<Tokenizer>> in_file(const std::string& path,
                                           Result<std::unique_ptr<Tokenizer>> tokenizer) {
  if (tokenizer) return tokenizer;
  return Error{tokenizer.error().code, fmt::format("'{}': {}", path, tokenizer.error().message)};
}

/// How much of `text` one call of a model may take: all, or a long part that ends between
/// characters.
std::size_t part_bytes(std::string_view text) {
  if (text.size() <= kMaxFragmentBytes) return text.size();
  return kMaxFragmentBytes - utf8_incomplete_tail(text.substr(0, kMaxFragmentBytes));
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(Vocabulary given) : vocabulary(std::move(given)), map(vocabulary.tokens) {
    find_stops();
    if (vocabulary.model == "gemma4") find_bytes();
    cutter = SpecialCutter(vocabulary);
  }

  TokenType type(std::size_t id) const { return static_cast<TokenType>(vocabulary.types[id]); }
  bool control(std::size_t id) const {
    return type(id) == TokenType::kControl || type(id) == TokenType::kUnknown;
  }

  void build_pieces() {
    pieces.reserve(vocabulary.tokens.size(), vocabulary.tokens.bytes());
    std::string piece;
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      piece.clear();
      if (!control(id)) model->decode(static_cast<std::int32_t>(id), piece);
      pieces.add(piece);
    }
  }

  void find_stops() {
    if (vocabulary.eos >= 0) stops.push_back(vocabulary.eos);
    if (vocabulary.eot >= 0) stops.push_back(vocabulary.eot);
    stops.insert(stops.end(), vocabulary.stops.begin(), vocabulary.stops.end());
    for (std::string_view name : kStopNames) {
      const std::int32_t id = map.find(name);
      if (id < 0) continue;
      stops.push_back(id);
      vocabulary.types[static_cast<std::size_t>(id)] =
          static_cast<std::int32_t>(TokenType::kControl);
    }
    std::sort(stops.begin(), stops.end());
    stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  }

  /// Byte tokens by their names: not every file gives them their type.
  void find_bytes() {
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      const bool text = type(id) == TokenType::kNormal || type(id) == TokenType::kUnused;
      if (text && byte_of_token(vocabulary.tokens[id]) >= 0)
        vocabulary.types[id] = static_cast<std::int32_t>(TokenType::kByte);
    }
  }

  /// Returns how many bytes no token has.
  std::int64_t encode(std::string_view text, std::span<const TextRange> plain,
                      std::vector<std::int32_t>& out) const {
    Scratch scratch;
    bool after_special = true;
    const auto encode_plain = [&](std::string_view fragment) {
      while (!fragment.empty()) {
        const std::size_t bytes = part_bytes(fragment);
        model->encode(fragment.substr(0, bytes), after_special, scratch, out);
        fragment.remove_prefix(bytes);
        after_special = false;
      }
    };
    std::size_t done = 0;
    for (const SpecialMatch& match : cutter.find(text, plain)) {
      encode_plain(text.substr(done, match.begin - done));
      out.push_back(match.token);
      after_special = true;
      done = match.end;
    }
    encode_plain(text.substr(done));
    return scratch.lost_bytes;
  }

  Vocabulary vocabulary;
  TokenMap map;
  SpecialCutter cutter;
  std::unique_ptr<TokenModel> model;
  StringTable pieces;  // [tokens] bytes; empty for control tokens
  std::vector<std::int32_t> stops;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(Vocabulary vocabulary) {
  if (std::find(kModels.begin(), kModels.end(), vocabulary.model) == kModels.end()) {
    return Error{ErrorCode::kUnsupported, fmt::format("unknown tokenizer model \"{}\" (known: {})",
                                                      vocabulary.model, fmt::join(kModels, ", "))};
  }
  if (Status status = check(vocabulary); !status) return status.error();
  auto impl = std::make_unique<Impl>(std::move(vocabulary));
  const auto create_model = impl->vocabulary.model == "llama"  ? create_spm
                            : impl->vocabulary.model == "gpt2" ? create_bpe
                                                               : create_char_bpe;
  Result<std::unique_ptr<TokenModel>> model = create_model(impl->vocabulary, impl->map);
  if (!model) return model.error();
  impl->model = std::move(model).value();
  impl->build_pieces();
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    Result<Vocabulary> vocabulary = vocabulary_from_folder(path);
    if (!vocabulary) return vocabulary.error();
    return in_file(path + "/tokenizer.json", create(std::move(vocabulary).value()));
  }
  const Result<gguf::File> file = gguf::File::open(path);
  if (!file) return file.error();
  Result<Vocabulary> vocabulary = vocabulary_from_gguf(*file);
  if (!vocabulary) return vocabulary.error();
  return in_file(path, create(std::move(vocabulary).value()));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  const TextRange all{0, text.size()};
  return encode(text,
                parse_special ? std::span<const TextRange>() : std::span<const TextRange>(&all, 1));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text,
                                            std::span<const TextRange> plain) const {
  std::vector<std::int32_t> ids;
  impl_->encode(text, plain, ids);
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_prompt(std::string_view text,
                                                   bool parse_special) const {
  const TextRange all{0, text.size()};
  return encode_prompt(
      text, parse_special ? std::span<const TextRange>() : std::span<const TextRange>(&all, 1));
}

std::vector<std::int32_t> Tokenizer::encode_prompt(std::string_view text,
                                                   std::span<const TextRange> plain) const {
  std::vector<std::int32_t> ids;
  if (impl_->vocabulary.add_bos) ids.push_back(impl_->vocabulary.bos);
  impl_->encode(text, plain, ids);
  if (impl_->vocabulary.add_eos) ids.push_back(impl_->vocabulary.eos);
  return ids;
}

std::string_view Tokenizer::piece(std::int32_t id, bool special) const {
  if (id < 0 || id >= vocab_size()) return {};
  const auto index = static_cast<std::size_t>(id);
  return special && impl_->control(index) ? impl_->vocabulary.tokens[index] : impl_->pieces[index];
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool special) const {
  std::string text;
  for (std::int32_t id : ids) text += piece(id, special);
  return text;
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(impl_->vocabulary.tokens.size());
}
std::int32_t Tokenizer::bos() const { return impl_->vocabulary.bos; }
std::int32_t Tokenizer::eos() const { return impl_->vocabulary.eos; }
bool Tokenizer::add_bos() const { return impl_->vocabulary.add_bos; }
bool Tokenizer::is_stop(std::int32_t id) const {
  return std::binary_search(impl_->stops.begin(), impl_->stops.end(), id);
}
const std::vector<std::int32_t>& Tokenizer::stop_ids() const { return impl_->stops; }
const std::vector<std::int32_t>& Tokenizer::suppressed_ids() const {
  return impl_->vocabulary.suppressed;
}
bool Tokenizer::is_control(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->control(static_cast<std::size_t>(id));
}

std::optional<std::int32_t> Tokenizer::find(std::string_view token_text) const {
  const std::int32_t id = impl_->map.find(token_text);
  return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
}

std::int64_t Tokenizer::lost_bytes(std::string_view text, bool parse_special) const {
  if (missing_bytes() == 0) return 0;
  const TextRange all{0, text.size()};
  std::vector<std::int32_t> ids;
  return impl_->encode(
      text, parse_special ? std::span<const TextRange>() : std::span<const TextRange>(&all, 1),
      ids);
}

int Tokenizer::missing_bytes() const { return impl_->model->missing_bytes(); }
const Vocabulary& Tokenizer::vocabulary() const { return impl_->vocabulary; }

std::string StreamDecoder::push(std::int32_t id) {
  pending_ += tokenizer_.piece(id, special_);
  const std::size_t complete = pending_.size() - utf8_incomplete_tail(pending_);
  std::string text = pending_.substr(0, complete);
  pending_.erase(0, complete);
  return text;
}

std::string StreamDecoder::flush() { return std::exchange(pending_, {}); }

}  // namespace segue::text
