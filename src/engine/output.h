// SPDX-License-Identifier: Apache-2.0
// Output: generated tokens to text, with stop texts. Text that could still become a stop text is
// held back, so what a stream has shown never has to be taken back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace segue::engine {

class Output {
 public:
  /// `tokenizer` must outlive this. Empty stop texts are ignored.
  Output(const text::Tokenizer& tokenizer, std::vector<std::string> stop,
         std::function<void(std::string_view text)> on_text);

  /// Adds one token. True when a stop text is complete: the text ends before it and no more may be
  /// pushed.
  bool push(std::int32_t token);

  /// The end of generation: releases what was held back (unless a stop text matched).
  void finish();

  const std::string& text() const { return text_; }

 private:
  void show(std::size_t until);

  text::StreamDecoder decoder_;
  std::vector<std::string> stop_;
  std::function<void(std::string_view text)> on_text_;
  std::string text_;
  std::size_t shown_ = 0;    // bytes of text_ that on_text has seen
  std::size_t longest_ = 0;  // of the stop texts
  bool stopped_ = false;
};

}  // namespace segue::engine
