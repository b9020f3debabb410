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
    append_decoded(vocabulary_, id, out);
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
    merger.start(
        text, [&](std::string_view character) { return text_token(vocabulary_, map_, character); });
    merger.run([&](const Symbol& left, const Symbol& right) {
      return merges_.find(left.token, right.token);
    });
    merger.for_each([&](const Symbol& symbol) {
      if (symbol.token >= 0) {
        out.push_back(symbol.token);
        return;
      }
      for (char byte : text.substr(symbol.begin, symbol.end - symbol.begin))
        out.push_back(bytes_[byte]);
    });
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
