// SPDX-License-Identifier: Apache-2.0
// The tokenizer.* keys of a GGUF file as a Vocabulary. Absent keys take the defaults that the
// format's converters rely on.
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "text/vocabulary.h"

namespace segue::text {
namespace {

/// Reads keys one after another and keeps the first error, so that a list of reads stays a list.
class Reader {
 public:
  explicit Reader(const gguf::File& file) : file_(file) {}

  bool has(std::string_view name) const { return file_.has(key(name)); }

  void text(std::string_view name, std::string& out) { take(file_.text(key(name), out), out); }
  void flag(std::string_view name, bool& out) { take(file_.boolean(key(name), out), out); }
  void id(std::string_view name, std::int32_t& out) {
    std::int64_t value = out;
    take(file_.integer(key(name), value), value);
    // A file says "none" with -1 as u32 or i32.
    if (value == std::numeric_limits<std::uint32_t>::max()) value = -1;
    if (value < -1 || value > std::numeric_limits<std::int32_t>::max()) {
      fail({ErrorCode::kInvalidFile,
            fmt::format("{}: {} is {}, which is no token id", file_.path(), key(name), value)});
      return;
    }
    out = static_cast<std::int32_t>(value);
  }
  void strings(std::string_view name, StringTable& out) {
    Result<std::vector<std::string_view>> texts = file_.strings(key(name));
    if (!texts) return fail(texts.error());
    std::size_t bytes = 0;
    for (std::string_view text : *texts) bytes += text.size();
    out.reserve(texts->size(), bytes);
    for (std::string_view text : *texts) out.add(text);
  }
  void floats(std::string_view name, std::vector<float>& out) {
    take(file_.floats(key(name)), out);
  }
  void integers(std::string_view name, std::vector<std::int32_t>& out) {
    Result<std::vector<std::int64_t>> values = file_.integers(key(name));
    if (!values) return fail(values.error());
    out.reserve(values->size());
    // What does not fit is no token type either; 0 is refused later with the token's id.
    for (std::int64_t value : *values)
      out.push_back(value > 0 && value < 100 ? static_cast<std::int32_t>(value) : 0);
  }
  Status status() const { return error_ ? Status(*error_) : Status(); }

 private:
  static std::string key(std::string_view name) { return "tokenizer." + std::string(name); }
  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  template <class T, class U>
  void take(Result<T> result, U& out) {
    if (!result) return fail(result.error());
    out = U(std::move(result).value());
  }

  const gguf::File& file_;
  std::optional<Error> error_;
};

}  // namespace

Result<Vocabulary> vocabulary_from_gguf(const gguf::File& file) {
  Result<std::string_view> model = file.text("tokenizer.ggml.model");
  if (!model) return model.error();
  Vocabulary vocabulary;
  vocabulary.model = *model;
  Reader reader(file);
  reader.text("ggml.pre", vocabulary.pre);
  const bool spm = vocabulary.model == "llama";
  if (spm) {
    vocabulary.bos = 1;
    vocabulary.eos = 2;
    vocabulary.unk = 0;
    vocabulary.add_bos = true;
    vocabulary.add_space_prefix = true;
  } else if (vocabulary.model == "gemma4") {
    if (vocabulary.pre.empty()) vocabulary.pre = "gemma4";  // converters write no name
  } else {
    // Of these pre-tokenizers only those of Llama 3 put it before a text that has no flag for it.
    vocabulary.add_bos = vocabulary.pre.starts_with("llama") && reader.has("ggml.bos_token_id");
  }
  reader.strings("ggml.tokens", vocabulary.tokens);
  if (spm) reader.floats("ggml.scores", vocabulary.scores);
  if (vocabulary.model == "gpt2" || vocabulary.model == "gemma4")
    reader.strings("ggml.merges", vocabulary.merges);
  if (reader.has("ggml.token_type")) reader.integers("ggml.token_type", vocabulary.types);
  reader.id("ggml.bos_token_id", vocabulary.bos);
  reader.id("ggml.eos_token_id", vocabulary.eos);
  reader.id("ggml.eot_token_id", vocabulary.eot);
  reader.id("ggml.unknown_token_id", vocabulary.unk);
  reader.flag("ggml.add_bos_token", vocabulary.add_bos);
  reader.flag("ggml.add_eos_token", vocabulary.add_eos);
  reader.flag("ggml.add_space_prefix", vocabulary.add_space_prefix);
  // The model does not work without, whatever a converter made of the flag.
  if (vocabulary.model == "gemma4") vocabulary.add_bos = true;
  reader.text("chat_template", vocabulary.chat_template);
  if (Status status = reader.status(); !status) return status.error();
  Result<std::string_view> architecture = file.text("general.architecture", "");
  if (architecture) vocabulary.architecture = *architecture;
  const auto count = static_cast<std::int64_t>(vocabulary.tokens.size());
  const std::string size_key = vocabulary.architecture + ".vocab_size";
  const Result<std::int64_t> claimed = file.integer(size_key, count);
  if (!claimed) return claimed.error();
  if (*claimed != count) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': {} is {}, tokenizer.ggml.tokens has {} tokens", file.path(),
                             size_key, *claimed, count)};
  }
  return vocabulary;
}

}  // namespace segue::text
