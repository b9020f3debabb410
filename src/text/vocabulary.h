// SPDX-License-Identifier: Apache-2.0
// The vocabulary of a model as plain data: what a tokenizer is made from. Filled from GGUF metadata
// (vocabulary_gguf.cc), from the files of a Hugging Face folder (vocabulary_json.cc) or by hand in
// tests; judged by Tokenizer::create, not here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "format/gguf/gguf.h"
#include "segue/error.h"

namespace segue::text {

/// Many short strings in one buffer. Views stay valid until the next `add` or the end of the table.
class StringTable {
 public:
  StringTable() = default;
  StringTable(std::initializer_list<std::string_view> texts) {
    for (std::string_view text : texts) add(text);
  }

  void reserve(std::size_t count, std::size_t bytes) {
    ends_.reserve(count);
    bytes_.reserve(bytes);
  }
  void add(std::string_view text) {
    bytes_.append(text);
    ends_.push_back(bytes_.size());
  }
  std::size_t size() const { return ends_.size(); }
  std::size_t bytes() const { return bytes_.size(); }
  std::string_view operator[](std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(bytes_).substr(begin, ends_[index] - begin);
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

/// Kinds of token, numbered as in GGUF.
enum class TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // never produced by plain text: only where special tokens are parsed
  kUserDefined = 4,  // cut out of every text before anything else
  kUnused = 5,
  kByte = 6,  // "<0xXX>", one byte
};

struct Vocabulary {
  /// "llama" (SentencePiece-style), "gpt2" (byte-level BPE) or "gemma4" (BPE over characters with
  /// byte fallback).
  std::string model;
  /// How "gpt2" cuts text into words. "gemma4": cut at runs of newlines if this is "gemma4" too,
  /// not at all if it is empty. "llama" has no such step and ignores it.
  std::string pre;
  StringTable tokens;               // [tokens] texts by id
  std::vector<float> scores;        // [tokens], "llama" only
  std::vector<std::int32_t> types;  // [tokens] as TokenType; empty: all normal
  StringTable merges;               // "left right", best first, not for "llama"
  std::int32_t bos = -1;            // -1: none
  std::int32_t eos = -1;
  std::int32_t eot = -1;  // end of turn, where the file names it
  std::int32_t unk = -1;
  std::vector<std::int32_t> stops;       // further ids that end a generation
  std::vector<std::int32_t> suppressed;  // ids that are never generated
  bool add_bos = false;                  // prompts begin with bos
  bool add_eos = false;                  // prompts end with eos
  bool add_space_prefix =
      false;  // a space goes before the text and after each special token, not for "gpt2"
  bool leftmost_special = false;  // of overlapping special tokens the leftmost counts (special.h)
  std::string chat_template;      // as in the file; empty: none
  std::string architecture;       // as in the file; only chat.h looks at it
};

/// Reads the tokenizer.* keys. What is absent gets the default of the tokenizer model. kInvalidFile
/// when the file has no tokenizer or a key of the wrong type.
Result<Vocabulary> vocabulary_from_gguf(const gguf::File& file);

/// The texts of a Hugging Face folder that concern its tokenizer; empty: there is no such file.
struct TokenizerFiles {
  std::string folder = {};             // for messages
  std::string tokenizer = {};          // tokenizer.json
  std::string tokenizer_config = {};   // tokenizer_config.json
  std::string generation_config = {};  // generation_config.json
  std::string config = {};             // config.json
  std::string chat_template = {};      // chat_template.jinja
};

/// Reads a tokenizer.json of type BPE, byte-level or with byte fallback, with bos, eos, stop ids
/// and chat template from the other files. Whatever in it would change ids and is not understood is
/// kUnsupported, by name and with what is read instead; contradictions are kInvalidFile.
Result<Vocabulary> vocabulary_from_json(const TokenizerFiles& files);
/// The same from a folder; kNotFound without tokenizer.json.
Result<Vocabulary> vocabulary_from_folder(const std::string& folder);

}  // namespace segue::text
