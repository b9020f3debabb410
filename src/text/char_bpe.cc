// SPDX-License-Identifier: Apache-2.0
// The "gemma4" tokenizer model: spaces become marks, characters are merged in the order in which
// training found the pairs, a character without a token becomes one byte token per byte. (BPE:
// Sennrich et al., 2016, arXiv 1508.07909; byte fallback: SentencePiece, Kudo and Richardson, 2018,
// arXiv 1808.06226.)
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "text/byte_fallback.h"
#include "text/merges.h"
#include "text/model.h"
#include "text/utf8.h"

namespace segue::text {
namespace {

class CharBpeModel final : public TokenModel {
 public:
  CharBpeModel(const Vocabulary& vocabulary, const TokenMap& map, ByteTokens bytes, Merges merges)
      : vocabulary_(vocabulary),
        map_(map),
        bytes_(std::move(bytes)),
        merges_(std::move(merges)),
        cuts_newlines_(vocabulary.pre == "gemma4") {}

  void encode(std::string_view fragment, bool after_special, Scratch& scratch,
              std::vector<std::int32_t>& out) const override {
    std::string& text = scratch.bytes;
    text.clear();
    if (vocabulary_.add_space_prefix && after_special) text += kSpaceMark;
    append_marked(fragment, text);
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string_view run = rest.substr(0, run_bytes(rest));
      rest.remove_prefix(run.size());
      const std::int32_t whole =
          cuts_newlines_ && run.front() == '\n' ? text_token(vocabulary_, map_, run) : -1;
      if (whole >= 0) {
        out.push_back(whole);
      } else {
        encode_run(run, scratch.merger, out);
      }
    }
  }

  void decode(std::int32_t id, std::string& out) const override {
    const std::string_view text = vocabulary_.tokens[static_cast<std::size_t>(id)];
    const auto type = static_cast<TokenType>(vocabulary_.types[static_cast<std::size_t>(id)]);
    if (type == TokenType::kByte) {
      out += static_cast<char>(byte_of_token(text));
    } else {
      append_unmarked(text, out);
    }
  }

  int missing_bytes() const override { return bytes_.missing(); }

 private:
  /// What is merged together: all of it, or a run of newlines, or what lies before the next one.
  std::size_t run_bytes(std::string_view text) const {
    if (!cuts_newlines_) return text.size();
    const std::size_t end = text.front() == '\n' ? text.find_first_not_of('\n') : text.find('\n');
    return std::min(end, text.size());
  }

  void encode_run(std::string_view text, Merger& merger, std::vector<std::int32_t>& out) const {
    merger.clear();
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t bytes = std::max<std::size_t>(1, utf8_character(text, begin));
      merger.add(static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(begin + bytes),
                 text_token(vocabulary_, map_, text.substr(begin, bytes)));
      begin += bytes;
    }
    merger.run([&](const Symbol& left, const Symbol& right) {
      return merges_.find(left.token, right.token);
    });
    const std::vector<Symbol>& symbols = merger.symbols();
    for (std::int32_t i = symbols.empty() ? -1 : 0; i >= 0;
         i = symbols[static_cast<std::size_t>(i)].next) {
      const Symbol& symbol = symbols[static_cast<std::size_t>(i)];
      if (symbol.token >= 0) {
        out.push_back(symbol.token);
        continue;
      }
      for (char byte : text.substr(symbol.begin, symbol.end - symbol.begin))
        out.push_back(bytes_[byte]);
    }
  }

  const Vocabulary& vocabulary_;
  const TokenMap& map_;
  ByteTokens bytes_;
  Merges merges_;
  bool cuts_newlines_;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> create_char_bpe(const Vocabulary& vocabulary,
                                                    const TokenMap& map) {
  if (!vocabulary.pre.empty() && vocabulary.pre != "gemma4") {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("unknown pre-tokenizer \"{}\" of a gemma4 vocabulary (known: gemma4)",
                             vocabulary.pre)};
  }
  Result<ByteTokens> bytes = ByteTokens::of(vocabulary);
  if (!bytes) return bytes.error();
  if (bytes->missing() > 0) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("the vocabulary has no byte token for {} of the 256 bytes, <0x{:02X}> "
                             "among them (only tokenizers with byte fallback are read)",
                             bytes->missing(), bytes->first_missing())};
  }
  Result<Merges> merges = Merges::of(vocabulary, map);
  if (!merges) return merges.error();
  return std::unique_ptr<TokenModel>(std::make_unique<CharBpeModel>(
      vocabulary, map, std::move(bytes).value(), std::move(merges).value()));
}

}  // namespace segue::text
