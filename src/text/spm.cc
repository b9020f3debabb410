// SPDX-License-Identifier: Apache-2.0
// The "llama" tokenizer model: characters are merged to the tokens of highest score, a character
// without a token becomes one byte token per byte. (SentencePiece: Kudo and Richardson, 2018, arXiv
// 1808.06226.)
#include <bit>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "text/byte_fallback.h"
#include "text/merges.h"
#include "text/model.h"

namespace segue::text {
namespace {

/// Larger scores give smaller numbers; 0 and -0 the same one.
std::uint32_t priority_of(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);
  const std::uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

class SpmModel final : public TokenModel {
 public:
  SpmModel(const Vocabulary& vocabulary, const TokenMap& map)
      : vocabulary_(vocabulary), map_(map) {}

  Status init() {
    const std::size_t count = vocabulary_.tokens.size();
    if (vocabulary_.scores.size() != count) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("the vocabulary has {} tokens but {} scores", count,
                               vocabulary_.scores.size())};
    }
    for (std::size_t id = 0; id < count; ++id) {
      if (std::isnan(vocabulary_.scores[id])) {
        return Error{ErrorCode::kInvalidFile,
                     fmt::format("token {} has a score that is no number", id)};
      }
    }
    Result<ByteTokens> bytes = ByteTokens::of(vocabulary_);
    if (!bytes) return bytes.error();
    bytes_ = std::move(bytes).value();
    if (vocabulary_.unk < 0 && missing_bytes() > 0) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("the vocabulary has neither an unknown token nor a byte token for "
                               "{} of the 256 bytes",
                               missing_bytes())};
    }
    return {};
  }

  void encode(std::string_view fragment, bool after_special, Scratch& scratch,
              std::vector<std::int32_t>& out) const override {
    std::string& text = scratch.bytes;
    text.clear();
    if (vocabulary_.add_space_prefix && after_special) text += kSpaceMark;
    append_marked(fragment, text);
    Merger& merger = scratch.merger;
    const std::string_view view = text;
    merger.start(view, [](std::string_view) { return -1; });
    merger.run([&](const Symbol& left, const Symbol& right) -> Merge {
      const std::int32_t token =
          text_token(vocabulary_, map_, view.substr(left.begin, right.end - left.begin));
      if (token < 0) return {};
      return {token, priority_of(vocabulary_.scores[static_cast<std::size_t>(token)])};
    });
    merger.for_each([&](const Symbol& symbol) {
      emit(view.substr(symbol.begin, symbol.end - symbol.begin), symbol.token, scratch, out);
    });
  }

  void decode(std::int32_t id, std::string& out) const override {
    append_decoded(vocabulary_, id, out);
  }

  int missing_bytes() const override { return bytes_.missing(); }

 private:
  void emit(std::string_view text, std::int32_t merged, Scratch& scratch,
            std::vector<std::int32_t>& out) const {
    const std::int32_t token = merged >= 0 ? merged : text_token(vocabulary_, map_, text);
    if (token >= 0) {
      out.push_back(token);
      return;
    }
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::int32_t byte_token = bytes_[text[i]];
      if (byte_token < 0) {
        out.push_back(vocabulary_.unk);
        scratch.lost_bytes += static_cast<std::int64_t>(text.size() - i);
        return;
      }
      out.push_back(byte_token);
    }
  }

  const Vocabulary& vocabulary_;
  const TokenMap& map_;
  ByteTokens bytes_;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> create_spm(const Vocabulary& vocabulary, const TokenMap& map) {
  auto model = std::make_unique<SpmModel>(vocabulary, map);
  if (Status status = model->init(); !status) return status.error();
  return std::unique_ptr<TokenModel>(std::move(model));
}

}  // namespace segue::text
