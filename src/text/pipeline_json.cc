// SPDX-License-Identifier: Apache-2.0
#include "text/pipeline_json.h"

#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "text/byte_fallback.h"
#include "text/utf8.h"

namespace segue::text {
namespace {

using core::Json;

// As in the files of Llama 3; words.cc has the same for PCRE2.
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

Error refused(std::string_view what, const Json* found, std::string_view read) {
  return {ErrorCode::kUnsupported, fmt::format("{} is {} (read: {})", what, shown(found), read)};
}

const Json* find(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}
bool is_text(const Json& json, std::string_view key, std::string_view text) {
  const Json* value = find(json, key);
  return value != nullptr && value->as_string() != nullptr && *value->as_string() == text;
}
bool is_flag(const Json& json, std::string_view key, bool flag) {
  const Json* value = find(json, key);
  return value != nullptr && value->as_bool() != nullptr && *value->as_bool() == flag;
}
bool is_type(const Json& json, std::string_view type) { return is_text(json, "type", type); }
bool has_pattern(const Json& json, std::string_view kind, std::string_view text) {
  const Json* pattern = find(json, "pattern");
  return pattern != nullptr && is_text(*pattern, kind, text);
}

/// The steps of a component, one or a Sequence of them under `list`; null: none.
std::vector<const Json*> steps_of(const Json* component, std::string_view list) {
  std::vector<const Json*> steps;
  if (component == nullptr) return steps;
  const Json* items = is_type(*component, "Sequence") ? find(*component, list) : nullptr;
  if (items == nullptr || !items->is_array()) return {component};
  for (const Json& item : *items->as_array()) steps.push_back(&item);
  return steps;
}

bool marks_spaces(const Json& step) {
  return is_type(step, "Replace") && has_pattern(step, "String", " ") &&
         is_text(step, "content", kSpaceMark);
}

/// Characters with byte fallback: spaces become marks, a mark may go in front, nothing is cut.
Status read_characters(const Json& tokenizer, Pipeline& out) {
  const Json* normalizer = find(tokenizer, "normalizer");
  std::vector<const Json*> steps = steps_of(normalizer, "normalizers");
  if (steps.size() == 2 && is_type(*steps[0], "Prepend") &&
      is_text(*steps[0], "prepend", kSpaceMark)) {
    out.space_prefix = true;
    steps.erase(steps.begin());
  }
  if (steps.size() != 1 || !marks_spaces(*steps[0])) {
    return refused("normalizer", normalizer,
                   "Replace \" \" by U+2581, and before it Prepend U+2581, for a model with byte "
                   "fallback");
  }
  const Json* pre = find(tokenizer, "pre_tokenizer");
  steps = steps_of(pre, "pretokenizers");
  // After the normalizer there is no space left to split at.
  const bool nothing = steps.empty() || (steps.size() == 1 && is_type(*steps[0], "Split") &&
                                         has_pattern(*steps[0], "String", " "));
  if (!nothing)
    return refused("pre_tokenizer", pre, "null or Split at \" \", for a model with byte fallback");
  out.model = "gemma4";
  return {};
}

/// Byte-level: which of the known ways to cut words.
Status read_words(const Json& tokenizer, bool whole_words_first, Pipeline& out) {
  if (const Json* normalizer = find(tokenizer, "normalizer"); normalizer != nullptr)
    return refused("normalizer", normalizer, "null, for a byte-level model");
  const Json* pre = find(tokenizer, "pre_tokenizer");
  const std::vector<const Json*> steps = steps_of(pre, "pretokenizers");
  const bool bytes = !steps.empty() && is_type(*steps.back(), "ByteLevel") &&
                     is_flag(*steps.back(), "add_prefix_space", false);
  // Absent in old files, where it is on.
  const bool words = bytes && !is_flag(*steps.back(), "use_regex", false);
  if (words && steps.size() == 1) {
    out.pre = "gpt-2";
  } else if (words && steps.size() == 2 && is_type(*steps[0], "Digits") &&
             is_flag(*steps[0], "individual_digits", true)) {
    out.pre = "smollm";
  } else if (bytes && !words && steps.size() == 2 && is_type(*steps[0], "Split") &&
             has_pattern(*steps[0], "Regex", kLlama3Pattern) &&
             is_text(*steps[0], "behavior", "Isolated") && !is_flag(*steps[0], "invert", true)) {
    out.pre = "llama-bpe";
  } else {
    return refused("pre_tokenizer", pre,
                   "ByteLevel without prefix space, alone (GPT-2), after Digits (SmolLM) or after "
                   "the Split of Llama 3; or byte_fallback true in the model");
  }
  if (whole_words_first != (out.pre == "llama-bpe")) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("model.ignore_merges is {} (read: {} with the pre-tokenizer {})",
                             whole_words_first, !whole_words_first, out.pre)};
  }
  out.model = "gpt2";
  return {};
}

/// The template of a single text: at most one special token on either side.
Status read_template(const Json& step, Pipeline& out) {
  constexpr std::string_view kRead = "at most one special token before and one behind the text";
  const Json* items = find(step, "single");
  if (items == nullptr || !items->is_array()) return refused("post_processor.single", items, kRead);
  bool after_text = false;
  for (const Json& item : *items->as_array()) {
    if (find(item, "Sequence") != nullptr && !after_text) {
      after_text = true;
      continue;
    }
    const Json* special = find(item, "SpecialToken");
    const Json* id = special == nullptr ? nullptr : find(*special, "id");
    std::optional<std::string>& place = after_text ? out.last : out.first;
    if (id == nullptr || id->as_string() == nullptr || place.has_value())
      return refused("post_processor.single", items, kRead);
    place = *id->as_string();
  }
  if (!after_text) return refused("post_processor.single", items, kRead);
  return {};
}

Status read_post_processor(const Json& tokenizer, Pipeline& out) {
  const Json* processor = find(tokenizer, "post_processor");
  for (const Json* step : steps_of(processor, "processors")) {
    if (is_type(*step, "ByteLevel")) continue;  // moves offsets only
    if (!is_type(*step, "TemplateProcessing") || out.first || out.last)
      return refused("post_processor", step, "null, ByteLevel or one TemplateProcessing");
    if (Status read = read_template(*step, out); !read) return read;
  }
  return {};
}

/// What our models do anyway; anything else would show other text than Hugging Face.
Status check_decoder(const Json& tokenizer, const Pipeline& pipeline) {
  const Json* decoder = find(tokenizer, "decoder");
  for (const Json* step : steps_of(decoder, "decoders")) {
    const bool known =
        pipeline.model == "gpt2"
            ? is_type(*step, "ByteLevel")
            : is_type(*step, "ByteFallback") || is_type(*step, "Fuse") ||
                  (is_type(*step, "Replace") && has_pattern(*step, "String", kSpaceMark) &&
                   is_text(*step, "content", " ")) ||
                  (is_type(*step, "Strip") && pipeline.space_prefix &&
                   is_text(*step, "content", " "));
    if (!known) {
      return refused("decoder", step,
                     pipeline.model == "gpt2"
                         ? "ByteLevel"
                         : "Replace U+2581 by \" \", ByteFallback, Fuse, and Strip after Prepend");
    }
  }
  return {};
}

}  // namespace

std::string shown(const Json* value) {
  constexpr std::size_t kMost = 160;
  if (value == nullptr) return "null";
  std::string text = value->dump();
  if (text.size() <= kMost) return text;
  text.resize(kMost);
  text.resize(kMost - utf8_incomplete_tail(text));
  return text + "...";
}

Result<Pipeline> read_pipeline(const Json& tokenizer) {
  const Json* model = find(tokenizer, "model");
  if (model == nullptr || !is_type(*model, "BPE")) {
    return refused("model.type", model == nullptr ? nullptr : find(*model, "type"), "\"BPE\"");
  }
  for (const std::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (find(*model, affix) != nullptr && !is_text(*model, affix, ""))
      return refused(fmt::format("model.{}", affix), find(*model, affix), "null or \"\"");
  }
  double dropout = 0;
  const Json* random = find(*model, "dropout");
  if (random != nullptr && (!random->as_double(dropout) || dropout != 0))
    return refused("model.dropout", random, "null or 0");
  const bool whole_words_first = is_flag(*model, "ignore_merges", true);
  Pipeline pipeline;
  if (is_flag(*model, "byte_fallback", true)) {
    if (whole_words_first)
      return refused("model.ignore_merges", find(*model, "ignore_merges"),
                     "false, for a model with byte fallback");
    if (Status read = read_characters(tokenizer, pipeline); !read) return read.error();
  } else if (Status read = read_words(tokenizer, whole_words_first, pipeline); !read) {
    return read.error();
  }
  if (Status read = read_post_processor(tokenizer, pipeline); !read) return read.error();
  if (Status read = check_decoder(tokenizer, pipeline); !read) return read.error();
  return pipeline;
}

}  // namespace segue::text
