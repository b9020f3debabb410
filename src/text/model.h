// SPDX-License-Identifier: Apache-2.0
// One interface for the tokenizer models behind Tokenizer: a fragment of plain text to ids, and the
// bytes of a token. Cutting at special tokens, bos and eos is not theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "segue/error.h"
#include "text/merge.h"
#include "text/token_map.h"
#include "text/vocabulary.h"

namespace segue::text {

/// Buffers of one encode call.
struct Scratch {
  Merger merger;
  std::string bytes;
  std::vector<std::string_view> words;
  std::vector<std::string_view> pieces;
  std::int64_t lost_bytes = 0;  // that no token has; counted on from call to call
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;

  /// Appends the ids of `fragment`, at most kMaxFragmentBytes, to `out`. `after_special`: it begins
  /// the text or follows a special token.
  virtual void encode(std::string_view fragment, bool after_special, Scratch& scratch,
                      std::vector<std::int32_t>& out) const = 0;
  /// Appends the bytes that token `id`, neither control nor unknown, stands for.
  virtual void decode(std::int32_t id, std::string& out) const = 0;
  /// How many of the 256 byte values have no token of their own.
  virtual int missing_bytes() const = 0;
};

inline constexpr std::size_t kMaxFragmentBytes = std::size_t{1} << 29;

/// `vocabulary` and `map` (of its tokens) must outlive the result; types has one entry per token.
Result<std::unique_ptr<TokenModel>> create_spm(const Vocabulary& vocabulary, const TokenMap& map);
Result<std::unique_ptr<TokenModel>> create_bpe(const Vocabulary& vocabulary, const TokenMap& map);
Result<std::unique_ptr<TokenModel>> create_char_bpe(const Vocabulary& vocabulary,
                                                    const TokenMap& map);

}  // namespace segue::text
