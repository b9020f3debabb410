// SPDX-License-Identifier: Apache-2.0
// Stop texts are searched in the new tail of the text only; the held-back part is the longest
// suffix that begins one.
#include "engine/output.h"

#include <algorithm>
#include <utility>

namespace segue::engine {

Output::Output(const text::Tokenizer& tokenizer, std::vector<std::string> stop,
               std::function<void(std::string_view text)> on_text)
    : decoder_(tokenizer), stop_(std::move(stop)), on_text_(std::move(on_text)) {
  std::erase_if(stop_, [](const std::string& text) { return text.empty(); });
  for (const std::string& text : stop_) longest_ = std::max(longest_, text.size());
}

bool Output::push(std::int32_t token) {
  const std::size_t before = text_.size();
  text_ += decoder_.push(token);
  const std::size_t from = before > longest_ ? before - longest_ : 0;
  std::size_t earliest = std::string::npos;
  for (const std::string& stop : stop_) earliest = std::min(earliest, text_.find(stop, from));
  if (earliest != std::string::npos) {
    text_.resize(earliest);
    stopped_ = true;
    show(text_.size());
    return true;
  }
  std::size_t held = 0;
  for (const std::string& stop : stop_) {
    for (std::size_t n = std::min(stop.size() - 1, text_.size()); n > held; --n) {
      if (std::string_view(text_).ends_with(std::string_view(stop).substr(0, n))) {
        held = n;
        break;
      }
    }
  }
  show(text_.size() - held);
  return false;
}

void Output::finish() {
  if (!stopped_) text_ += decoder_.flush();
  show(text_.size());
}

void Output::show(std::size_t until) {
  if (until <= shown_) return;
  if (on_text_) on_text_(std::string_view(text_).substr(shown_, until - shown_));
  shown_ = until;
}

}  // namespace segue::engine
