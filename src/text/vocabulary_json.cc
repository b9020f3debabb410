// SPDX-License-Identifier: Apache-2.0
// tokenizer.json and the files beside it as a Vocabulary. The steps around the vocabulary are read
// in pipeline_json.cc.
#include <filesystem>
#include <system_error>
#include <unordered_map>

#include <fmt/format.h>

#include "core/file.h"
#include "core/json.h"
#include "text/byte_fallback.h"
#include "text/pipeline_json.h"
#include "text/vocabulary.h"

namespace segue::text {
namespace {

using core::Json;

const Json* find(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

/// A token text of the config files: a string, or an object with its content.
const std::string* token_text(const Json* value) {
  if (value == nullptr) return nullptr;
  if (const Json* content = find(*value, "content")) value = content;
  return value->as_string();
}

/// Fills a Vocabulary from the parsed files. Members are called in order; each may rely on those
/// before.
class Builder {
 public:
  explicit Builder(const std::string& folder) : folder_(folder) {}

  Status read_tokenizer(const Json& json) {
    Result<Pipeline> pipeline = read_pipeline(json);
    if (!pipeline) return in_file("tokenizer.json", pipeline.error());
    pipeline_ = std::move(pipeline).value();
    vocabulary_.model = pipeline_.model;
    vocabulary_.pre = pipeline_.pre;
    vocabulary_.add_space_prefix = pipeline_.space_prefix;
    vocabulary_.leftmost_special = true;
    const Json& model = *json.find("model");
    if (Status read = read_texts(model, find(json, "added_tokens")); !read) return read;
    if (Status read = read_merges(find(model, "merges")); !read) return read;
    if (Status read = place(find(model, "unk_token"), "model.unk_token", vocabulary_.unk); !read)
      return read;
    if (vocabulary_.unk >= 0) set_type(vocabulary_.unk, TokenType::kUnknown);
    return {};
  }

  Status read_tokenizer_config(const Json& json) {
    if (Status read = place(find(json, "bos_token"), "bos_token", vocabulary_.bos); !read)
      return read;
    if (Status read = place(find(json, "eos_token"), "eos_token", vocabulary_.eos); !read)
      return read;
    if (Status read = flag(json, "add_bos_token", vocabulary_.add_bos); !read) return read;
    if (Status read = flag(json, "add_eos_token", vocabulary_.add_eos); !read) return read;
    const Json* source = find(json, "chat_template");
    if (source == nullptr) return {};
    if (source->as_string() != nullptr) {
      vocabulary_.chat_template = *source->as_string();
      return {};
    }
    // Several templates with names.
    if (source->is_array()) {
      for (const Json& named : *source->as_array()) {
        const Json* name = find(named, "name");
        const Json* text = find(named, "template");
        if (name != nullptr && name->as_string() != nullptr && *name->as_string() == "default" &&
            text != nullptr && text->as_string() != nullptr) {
          vocabulary_.chat_template = *text->as_string();
          return {};
        }
      }
    }
    return invalid("tokenizer_config.json", fmt::format("chat_template is {} (allowed: a text, or "
                                                        "an array with one named \"default\")",
                                                        shown(source)));
  }

  /// eos_token_id of `json`, one id or several, where it has any.
  Status read_stops(const char* file, const Json& json) {
    const Json* value = find(json, "eos_token_id");
    if (value == nullptr) {
      const Json* text = find(json, "text_config");
      value = text == nullptr ? nullptr : find(*text, "eos_token_id");
    }
    return ids(file, "eos_token_id", value, vocabulary_.stops);
  }

  /// suppress_tokens of generation_config.json, as transformers' generation loop knows them.
  Status read_suppressed(const Json& json) {
    return ids("generation_config.json", "suppress_tokens", find(json, "suppress_tokens"),
               vocabulary_.suppressed);
  }

  bool has_stops() const { return !vocabulary_.stops.empty(); }

  /// `chat_template`: of its own file, which counts before the config's.
  Result<Vocabulary> finish(const std::string& chat_template) {
    if (!chat_template.empty()) vocabulary_.chat_template = chat_template;
    if (pipeline_.first) {
      if (Status read = place_text(*pipeline_.first, "post_processor", vocabulary_.bos); !read)
        return read.error();
      vocabulary_.add_bos = true;
    }
    if (pipeline_.last) {
      if (Status read = place_text(*pipeline_.last, "post_processor", vocabulary_.eos); !read)
        return read.error();
      vocabulary_.add_eos = true;
    }
    // Gemma 4's tokenizer adds nothing; its template prints bos, and so must plain prompts have it.
    if (vocabulary_.chat_template.find("bos_token") != std::string::npos && vocabulary_.bos >= 0)
      vocabulary_.add_bos = true;
    if (vocabulary_.eos < 0 && !vocabulary_.stops.empty())
      vocabulary_.eos = vocabulary_.stops.front();
    return std::move(vocabulary_);
  }

 private:
  Error invalid(const char* file, std::string_view problem) const {
    return {ErrorCode::kInvalidFile, fmt::format("'{}/{}': {}", folder_, file, problem)};
  }
  Error invalid(std::string_view problem) const { return invalid("tokenizer.json", problem); }
  Error in_file(const char* file, const Error& error) const {
    return {error.code, fmt::format("'{}/{}': {}", folder_, file, error.message)};
  }
  /// One id or an array of them; null is none.
  Status ids(const char* file, std::string_view name, const Json* value,
             std::vector<std::int32_t>& out) const {
    if (value == nullptr) return {};
    const Json::Array one{*value};
    for (const Json& item : value->is_array() ? *value->as_array() : one) {
      const std::int64_t* id = item.as_int();
      if (id == nullptr || *id < 0 || *id >= count()) {
        return invalid(file, fmt::format("{} is {} (allowed: ids from 0 to {})", name, shown(value),
                                         count() - 1));
      }
      out.push_back(static_cast<std::int32_t>(*id));
    }
    return {};
  }
  std::int64_t count() const { return static_cast<std::int64_t>(vocabulary_.tokens.size()); }
  void set_type(std::int32_t id, TokenType type) {
    vocabulary_.types[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(type);
  }

  /// A token as the two lists of the file have it.
  struct Entry {
    const std::string* text = nullptr;
    TokenType type = TokenType::kNormal;
  };

  /// Puts `text` at place `id` of `entries`.
  Status put(const std::string& text, const Json* id, TokenType type, std::vector<Entry>& entries) {
    const std::int64_t* number = id == nullptr ? nullptr : id->as_int();
    const auto most = static_cast<std::int64_t>(entries.size()) - 1;
    if (number == nullptr || *number < 0 || *number > most) {
      return invalid(fmt::format("token {} has id {}, the file has room for 0 to {}",
                                 shown_text(text), shown(id), most));
    }
    const auto place = static_cast<std::size_t>(*number);
    if (const auto [known, added] = ids_.emplace(text, *number); !added && known->second != *number)
      return invalid(
          fmt::format("token {} has the ids {} and {}", shown_text(text), known->second, *number));
    Entry& entry = entries[place];
    if (entry.text != nullptr && *entry.text != text) {
      return invalid(fmt::format("the tokens {} and {} both have id {}", shown_text(*entry.text),
                                 shown_text(text), *number));
    }
    entry = {&text, type};
    return {};
  }

  Status read_texts(const Json& model, const Json* added) {
    const Json* vocab = find(model, "vocab");
    if (vocab == nullptr || !vocab->is_object() || vocab->as_object()->empty())
      return invalid(
          fmt::format("model.vocab is {} (allowed: an object of ids by token)", shown(vocab)));
    if (added != nullptr && !added->is_array())
      return invalid(fmt::format("added_tokens is {} (allowed: an array)", shown(added)));
    // Ids are dense, so none is above the number of entries; what is in both lists leaves a gap at
    // the end.
    const std::size_t in_vocab = vocab->as_object()->size();
    std::vector<Entry> entries(in_vocab + (added == nullptr ? 0 : added->as_array()->size()));
    ids_.reserve(entries.size());
    for (const auto& [text, id] : *vocab->as_object()) {
      if (Status read = put(text, &id, TokenType::kNormal, entries); !read) return read;
    }
    if (added != nullptr) {
      for (const Json& token : *added->as_array()) {
        if (Status read = add_token(token, entries); !read) return read;
      }
    }
    while (!entries.empty() && entries.back().text == nullptr) entries.pop_back();
    std::size_t bytes = 0;
    for (std::size_t id = 0; id < entries.size(); ++id) {
      if (entries[id].text == nullptr)
        return invalid(fmt::format("no token has id {}, but there are larger ones up to {}", id,
                                   entries.size() - 1));
      bytes += entries[id].text->size();
    }
    vocabulary_.tokens.reserve(entries.size(), bytes);
    for (const Entry& entry : entries) {
      vocabulary_.tokens.add(*entry.text);
      vocabulary_.types.push_back(static_cast<std::int32_t>(entry.type));
    }
    return {};
  }

  Status add_token(const Json& token, std::vector<Entry>& entries) {
    const Json* content = find(token, "content");
    if (content == nullptr || content->as_string() == nullptr)
      return invalid(
          fmt::format("added_tokens has {} (allowed: objects with id and content)", shown(&token)));
    const std::string& text = *content->as_string();
    const auto is_set = [&](std::string_view name) {
      const Json* value = find(token, name);
      return value != nullptr && value->as_bool() != nullptr && *value->as_bool();
    };
    for (const std::string_view option : {"single_word", "lstrip", "rstrip"}) {
      if (!is_set(option)) continue;
      return Error{ErrorCode::kUnsupported,
                   fmt::format("'{}/tokenizer.json': added token {} has {} true (read: false)",
                               folder_, shown_text(text), option)};
    }
    const bool changes =
        text.find(' ') != std::string::npos || text.find(kSpaceMark) != std::string::npos;
    if (is_set("normalized") && changes && pipeline_.model == "gemma4") {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("'{}/tokenizer.json': added token {} is normalized and has a space "
                               "(read: only without)",
                               folder_, shown_text(text))};
    }
    const TokenType type = is_set("special") ? TokenType::kControl : TokenType::kUserDefined;
    return put(text, find(token, "id"), type, entries);
  }

  Status read_merges(const Json* merges) {
    if (merges == nullptr || !merges->is_array())
      return invalid(fmt::format("model.merges is {} (allowed: an array)", shown(merges)));
    std::string joined;
    std::size_t rank = 0;
    for (const Json& merge : *merges->as_array()) {
      const Json::Array* parts = merge.as_array();
      if (merge.as_string() != nullptr) {
        joined = *merge.as_string();
      } else if (parts != nullptr && parts->size() == 2 && (*parts)[0].as_string() != nullptr &&
                 (*parts)[1].as_string() != nullptr) {
        joined.assign(*(*parts)[0].as_string()).append(" ").append(*(*parts)[1].as_string());
      } else {
        joined.clear();
      }
      const std::size_t space = joined.find(' ');
      if (space == std::string::npos || space == 0 || space + 1 == joined.size() ||
          joined.find(' ', space + 1) != std::string::npos) {
        return invalid(
            fmt::format("merge {} is {} (allowed: \"a b\" or [\"a\", \"b\"], two texts "
                        "without spaces)",
                        rank, shown(&merge)));
      }
      vocabulary_.merges.add(joined);
      ++rank;
    }
    return {};
  }

  Status flag(const Json& json, std::string_view name, bool& out) const {
    const Json* value = find(json, name);
    if (value == nullptr) return {};
    if (value->as_bool() == nullptr)
      return invalid("tokenizer_config.json",
                     fmt::format("{} is {} (allowed: true, false)", name, shown(value)));
    out = *value->as_bool();
    return {};
  }

  Status place(const Json* value, std::string_view name, std::int32_t& out) const {
    if (value == nullptr) return {};
    const std::string* text = token_text(value);
    if (text == nullptr)
      return Error{ErrorCode::kInvalidFile, fmt::format("'{}': {} is {} (allowed: a token's text)",
                                                        folder_, name, shown(value))};
    return place_text(*text, name, out);
  }

  Status place_text(const std::string& text, std::string_view name, std::int32_t& out) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("'{}': {} is {}, which is no token of tokenizer.json", folder_, name,
                               shown_text(text))};
    }
    out = static_cast<std::int32_t>(found->second);
    return {};
  }

  static std::string shown_text(const std::string& text) {
    const Json json(text);
    return shown(&json);
  }

  const std::string& folder_;
  Pipeline pipeline_;
  Vocabulary vocabulary_;
  std::unordered_map<std::string_view, std::int64_t> ids_;  // views into the parsed tokenizer.json
};

/// An object, or null for a file that is not there.
Result<Json> parsed(const TokenizerFiles& files, const char* name, const std::string& text) {
  if (text.empty()) return Json();
  Result<Json> json = Json::parse(text, Json::Repeats::kRefused);
  if (!json || !json->is_object()) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}/{}': {}", files.folder, name,
                             json ? "is no JSON object" : json.error().message)};
  }
  return json;
}

Status read_if_there(const std::filesystem::path& path, std::string& out) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  Result<std::string> text = core::read_file(path.string());
  if (!text) return text.error();
  out = std::move(text).value();
  return {};
}

}  // namespace

Result<Vocabulary> vocabulary_from_json(const TokenizerFiles& files) {
  const Result<Json> tokenizer = parsed(files, "tokenizer.json", files.tokenizer);
  if (!tokenizer) return tokenizer.error();
  if (tokenizer->is_null()) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}/tokenizer.json' is empty", files.folder)};
  }
  Builder builder(files.folder);
  if (Status read = builder.read_tokenizer(*tokenizer); !read) return read.error();

  const Result<Json> tokenizer_config =
      parsed(files, "tokenizer_config.json", files.tokenizer_config);
  if (!tokenizer_config) return tokenizer_config.error();
  if (Status read = builder.read_tokenizer_config(*tokenizer_config); !read) return read.error();

  // generation_config.json has all stops where it has any.
  const Result<Json> generation = parsed(files, "generation_config.json", files.generation_config);
  if (!generation) return generation.error();
  if (Status read = builder.read_stops("generation_config.json", *generation); !read)
    return read.error();
  if (Status read = builder.read_suppressed(*generation); !read) return read.error();
  if (!builder.has_stops()) {
    const Result<Json> config = parsed(files, "config.json", files.config);
    if (!config) return config.error();
    if (Status read = builder.read_stops("config.json", *config); !read) return read.error();
  }
  return builder.finish(files.chat_template);
}

Result<Vocabulary> vocabulary_from_folder(const std::string& folder) {
  const std::filesystem::path path(folder);
  TokenizerFiles files;
  files.folder = folder;
  Result<std::string> tokenizer = core::read_file((path / "tokenizer.json").string());
  if (!tokenizer) return tokenizer.error();
  files.tokenizer = std::move(tokenizer).value();
  const std::pair<const char*, std::string*> others[] = {
      {"tokenizer_config.json", &files.tokenizer_config},
      {"generation_config.json", &files.generation_config},
      {"config.json", &files.config},
      {"chat_template.jinja", &files.chat_template}};
  for (const auto& [name, text] : others) {
    if (Status read = read_if_there(path / name, *text); !read) return read.error();
  }
  return vocabulary_from_json(files);
}

}  // namespace segue::text
