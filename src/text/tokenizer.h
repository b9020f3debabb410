// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back: SentencePiece-style merging by score (Gemma 3, Llama 2), byte-level
// BPE (SmolLM2, Llama 3) and BPE over characters with byte fallback (Gemma 4). Ids equal those of
// llama.cpp for the same GGUF file, and of Hugging Face for the same tokenizer.json. Chat formats
// are in chat.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "segue/error.h"
#include "text/special.h"
#include "text/vocabulary.h"

namespace segue::text {

/// Immutable after creation; all const members may be called from several threads at once.
class Tokenizer {
 public:
  /// kInvalidFile when the vocabulary contradicts itself, kUnsupported for models and
  /// pre-tokenizers that are unknown.
  static Result<std::unique_ptr<Tokenizer>> create(Vocabulary vocabulary);
  /// Of a GGUF file, or of a Hugging Face folder (vocabulary.h).
  static Result<std::unique_ptr<Tokenizer>> open(const std::string& path);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Ids of `text`, any bytes, without bos and eos. `parse_special`: the texts of control tokens
  /// become those tokens; otherwise they are plain text. Time is nearly linear in the length,
  /// whatever the text. decode(encode(x)) == x, except that (1) "llama" and "gemma4" vocabularies
  /// read U+2581 as a space and may put a space in front (add_space_prefix), and (2) bytes that no
  /// token has (missing_bytes) are dropped, or become unk where that exists in "llama"
  /// vocabularies.
  std::vector<std::int32_t> encode(std::string_view text, bool parse_special) const;
  /// As encode with parse_special, but inside the `plain` ranges of `text` (ascending, disjoint)
  /// nothing becomes a control token: for text that quotes a user.
  std::vector<std::int32_t> encode(std::string_view text, std::span<const TextRange> plain) const;
  /// The same with bos in front (if add_bos) and eos behind (if add_eos).
  std::vector<std::int32_t> encode_prompt(std::string_view text, bool parse_special) const;
  std::vector<std::int32_t> encode_prompt(std::string_view text,
                                          std::span<const TextRange> plain) const;

  /// Bytes that token `id` stands for: possibly a part of a character. Control and unknown tokens
  /// are empty unless `special`; so are ids outside [0, vocab_size). Valid as long as the
  /// tokenizer.
  std::string_view piece(std::int32_t id, bool special = false) const;
  /// The pieces joined.
  std::string decode(std::span<const std::int32_t> ids, bool special = false) const;

  std::int32_t vocab_size() const;
  std::int32_t bos() const;  // -1: none
  std::int32_t eos() const;  // -1: none
  bool add_bos() const;
  /// Does generation end with this token? eos, end of turn, and the control tokens that other
  /// models of the family end a turn with. Ascending in `stop_ids`.
  bool is_stop(std::int32_t id) const;
  const std::vector<std::int32_t>& stop_ids() const;
  /// Tokens that are never generated, whatever their logits (suppress_tokens of a
  /// generation_config.json).
  const std::vector<std::int32_t>& suppressed_ids() const;
  /// Control or unknown: no text of its own.
  bool is_control(std::int32_t id) const;

  /// The token whose text in the vocabulary is exactly this.
  std::optional<std::int32_t> find(std::string_view token_text) const;
  /// Bytes of `text` that encode() drops or makes unk, because no token has them; 0 at no cost
  /// where every byte has one.
  std::int64_t lost_bytes(std::string_view text, bool parse_special) const;
  /// How many of the 256 byte values cannot be encoded.
  int missing_bytes() const;
  const Vocabulary& vocabulary() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

/// Joins pieces into text that never ends inside a character: what a stream may print. Holds back
/// at most 3 bytes.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive this.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool special = false)
      : tokenizer_(tokenizer), special_(special) {}

  /// Whatever became complete. Bytes that can never become UTF-8 are passed through as they are.
  std::string push(std::int32_t id);
  /// What was held back.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool special_;
  std::string pending_;
};

}  // namespace segue::text
