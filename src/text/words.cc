// SPDX-License-Identifier: Apache-2.0
#include "text/words.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <span>
#include <string>

#include <fmt/format.h>

#include "core/check.h"
#include "text/utf8.h"

namespace segue::text {
namespace {

// White_Space of Unicode for use inside a class. (PCRE2's own \s has U+180E too, which is no white
// space since 6.3.)
#define SPACE \
  R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"

struct PreTokenizer {
  std::string_view name;
  bool whole_words_first;
  std::span<const std::string_view> expressions;
};

// One digit at a time, then the words of GPT-2.
constexpr std::array<std::string_view, 2> kSmolLm{
    R"(\p{N})",
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" SPACE R"(]+|[)" SPACE
    R"(]+(?![^)" SPACE R"(]))",
};
constexpr std::array<std::string_view, 1> kLlama3{
    R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|)"
    R"(\p{N}{1,3}| ?[^\p{L}\p{N})" SPACE R"(]+[\r\n]*|[)" SPACE R"(]*[\r\n]+|[)" SPACE
    R"(]+(?![^)" SPACE R"(])|[)" SPACE R"(]+)",
};
#undef SPACE

constexpr std::array<PreTokenizer, 5> kPreTokenizers{{
    {"smollm", false, kSmolLm},
    {"gpt-2", false, std::span(kSmolLm).last(1)},
    {"llama-bpe", true, kLlama3},
    {"llama3", true, kLlama3},
    {"llama-v3", true, kLlama3},
}};

/// Whole well-formed runs, and the bytes between them one by one.
void split_at_invalid(std::string_view text, std::vector<std::string_view>& out) {
  std::size_t begin = 0;
  std::size_t end = 0;
  while (end < text.size()) {
    if (const std::size_t bytes = utf8_character(text, end); bytes > 0) {
      end += bytes;
      continue;
    }
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    out.push_back(text.substr(end, 1));
    begin = ++end;
  }
  if (end > begin) out.push_back(text.substr(begin));
}

}  // namespace

struct WordSplitter::Expression {
  explicit Expression(std::string_view pattern) {
    int error = 0;
    PCRE2_SIZE position = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF,
                         &error, &position, nullptr);
    CHECK(code != nullptr);
    // Without a compiler for this machine the interpreter does the same, slower.
    static_cast<void>(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE));
    limits = pcre2_match_context_create(nullptr);
    CHECK(limits != nullptr);
    pcre2_set_match_limit(
        limits, UINT32_MAX);  // the steps of one match grow with the length of a run of spaces
  }
  ~Expression() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;

  /// Appends the matches in `piece` (UTF-8) and what lies between them.
  void split(std::string_view piece, pcre2_match_data* data,
             std::vector<std::string_view>& out) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(piece.data());
    std::size_t done = 0;
    while (done < piece.size()) {
      int matched =
          pcre2_match(code, subject, piece.size(), done, PCRE2_NO_UTF_CHECK, data, limits);
      if (matched == PCRE2_ERROR_JIT_STACKLIMIT) {
        matched = pcre2_match(code, subject, piece.size(), done, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                              data, limits);
      }
      if (matched < 0) break;  // no further match
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
      if (ends[0] > done) out.push_back(piece.substr(done, ends[0] - done));
      if (ends[1] > ends[0]) out.push_back(piece.substr(ends[0], ends[1] - ends[0]));
      DCHECK(ends[1] > ends[0]);  // no expression matches the empty string
      done = ends[1];
    }
    if (done < piece.size()) out.push_back(piece.substr(done));
  }

  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
};

WordSplitter::WordSplitter() = default;
WordSplitter::WordSplitter(WordSplitter&&) noexcept = default;
WordSplitter& WordSplitter::operator=(WordSplitter&&) noexcept = default;
WordSplitter::~WordSplitter() = default;

Result<WordSplitter> WordSplitter::create(std::string_view pre) {
  std::string known;
  for (const PreTokenizer& candidate : kPreTokenizers) {
    if (candidate.name == pre) {
      WordSplitter splitter;
      splitter.whole_words_first_ = candidate.whole_words_first;
      for (std::string_view pattern : candidate.expressions) {
        splitter.expressions_.push_back(std::make_unique<const Expression>(pattern));
      }
      return splitter;
    }
    known += known.empty() ? "" : ", ";
    known += candidate.name;
  }
  return Error{ErrorCode::kUnsupported,
               fmt::format("unknown pre-tokenizer \"{}\" (known: {})", pre, known)};
}

void WordSplitter::split(std::string_view text, std::vector<std::string_view>& words,
                         std::vector<std::string_view>& scratch) const {
  words.clear();
  split_at_invalid(text, words);
  for (const auto& expression : expressions_) {
    std::swap(words, scratch);
    words.clear();
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
        pcre2_match_data_create_from_pattern(expression->code, nullptr), &pcre2_match_data_free);
    CHECK(data != nullptr);
    for (std::string_view piece : scratch) {
      if (utf8_character(piece, 0) == 0) {
        words.push_back(piece);  // a byte that is not UTF-8
      } else {
        expression->split(piece, data.get(), words);
      }
    }
  }
}

}  // namespace segue::text
