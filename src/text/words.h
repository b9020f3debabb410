// SPDX-License-Identifier: Apache-2.0
// Cutting text into the words that byte-level BPE works on. Each pre-tokenizer is a list of regular
// expressions, applied one after another. PCRE2 is behind words.cc only.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "segue/error.h"

namespace segue::text {

/// Immutable; may be used from several threads at once.
class WordSplitter {
 public:
  /// `pre` as in tokenizer.ggml.pre; kUnsupported with the known names otherwise.
  static Result<WordSplitter> create(std::string_view pre);
  WordSplitter(WordSplitter&&) noexcept;
  WordSplitter& operator=(WordSplitter&&) noexcept;
  ~WordSplitter();

  /// Replaces `words` by consecutive views that cover `text`; bytes that are not UTF-8 are words of
  /// their own. `scratch` is overwritten.
  void split(std::string_view text, std::vector<std::string_view>& words,
             std::vector<std::string_view>& scratch) const;

  /// Does a word that is a token as a whole skip the merges?
  bool whole_words_first() const { return whole_words_first_; }

 private:
  struct Expression;
  WordSplitter();
  std::vector<std::unique_ptr<const Expression>> expressions_;
  bool whole_words_first_ = false;
};

}  // namespace segue::text
