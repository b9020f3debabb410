// SPDX-License-Identifier: Apache-2.0
#include "engine/load_model.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "text/vocabulary.h"

namespace segue::engine {
namespace {

Result<LoadedModel> with_tokenizer(const std::string& path,
                                   std::unique_ptr<model::LanguageModel> model,
                                   Result<std::unique_ptr<text::Tokenizer>> tokenizer) {
  if (!tokenizer.ok()) return tokenizer.error();
  if ((*tokenizer)->vocab_size() > model->config().vocab) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("'{}': the tokenizer has {} tokens, the embedding {} rows", path,
                             (*tokenizer)->vocab_size(), model->config().vocab)};
  }
  return LoadedModel{std::move(model), std::move(tokenizer).value()};
}

/// Four control tokens, the 256 bytes, then names without meaning: every id decodes to something
/// and every text can be encoded.
Result<text::Vocabulary> placeholder_vocabulary(std::int64_t size) {
  constexpr std::int64_t kSmallest = 4 + 256;
  if (size < kSmallest) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("vocab_size is {}; random weights need at least {} tokens: 4 control "
                             "tokens and the bytes",
                             size, kSmallest)};
  }
  text::Vocabulary vocabulary;
  vocabulary.model = "llama";
  const auto add = [&](std::string_view token, text::TokenType type) {
    vocabulary.tokens.add(token);
    vocabulary.types.push_back(static_cast<std::int32_t>(type));
    vocabulary.scores.push_back(0.0f);
  };
  for (const char* control : {"<pad>", "<eos>", "<bos>"}) add(control, text::TokenType::kControl);
  add("<unk>", text::TokenType::kUnknown);
  for (int byte = 0; byte < 256; ++byte)
    add(fmt::format("<0x{:02X}>", byte), text::TokenType::kByte);
  for (std::int64_t id = kSmallest; id < size; ++id)
    add(fmt::format("<{}>", id), text::TokenType::kNormal);
  vocabulary.eos = 1;
  vocabulary.bos = 2;
  vocabulary.unk = 3;
  vocabulary.add_bos = true;
  return vocabulary;
}

Result<std::unique_ptr<text::Tokenizer>> placeholder_tokenizer(const std::string& path,
                                                               const model::Config& config) {
  Result<text::Vocabulary> vocabulary = placeholder_vocabulary(config.vocab);
  if (!vocabulary.ok()) {
    return Error{vocabulary.error().code,
                 fmt::format("'{}': {}", path, vocabulary.error().message)};
  }
  return text::Tokenizer::create(std::move(vocabulary).value());
}

constexpr std::string_view kRandom = "random:";

struct RandomModel {
  std::uint64_t seed;
  std::string config_path;
};

/// `model` begins with kRandom.
Result<RandomModel> parse_random(std::string_view model) {
  const std::string_view text = model.substr(kRandom.size());
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  const auto digits = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || digits == text.size() || text[digits] != ':') {
    return Error{
        ErrorCode::kUsage,
        fmt::format("model is 'random:{}'; allowed: random:SEED:PATH with a seed from 0 to "
                    "2^64 - 1",
                    text)};
  }
  return RandomModel{seed, std::string(text.substr(digits + 1))};
}

Result<LoadedModel> random_model(const RandomModel& random, core::ThreadPool& pool,
                                 const model::LoadOptions& options) {
  const std::string& path = random.config_path;
  const Result<model::Config> config = model::read_config(path);
  if (!config.ok()) return config.error();
  Result<std::unique_ptr<text::Tokenizer>> tokenizer = placeholder_tokenizer(path, *config);
  if (!tokenizer.ok()) return tokenizer.error();
  Result<std::unique_ptr<model::LanguageModel>> model =
      model::LanguageModel::load(*config, *model::random_tensors(random.seed), pool, options);
  if (!model.ok()) return model.error();
  return with_tokenizer(path, std::move(model).value(), std::move(tokenizer));
}

}  // namespace

Result<model::Config> read_model_config(const std::string& model) {
  if (!model.starts_with(kRandom)) return model::read_config(model);
  const Result<RandomModel> random = parse_random(model);
  if (!random.ok()) return random.error();
  return model::read_config(random->config_path);
}

Result<std::unique_ptr<text::Tokenizer>> open_tokenizer(const std::string& model) {
  if (!model.starts_with(kRandom)) return text::Tokenizer::open(model);
  const Result<RandomModel> random = parse_random(model);
  if (!random.ok()) return random.error();
  const Result<model::Config> config = model::read_config(random->config_path);
  if (!config.ok()) return config.error();
  return placeholder_tokenizer(random->config_path, *config);
}

Result<LoadedModel> load_model(const std::string& model, core::ThreadPool& pool,
                               const model::LoadOptions& options) {
  if (model.starts_with(kRandom)) {
    const Result<RandomModel> random = parse_random(model);
    if (!random.ok()) return random.error();
    return random_model(*random, pool, options);
  }
  Result<std::unique_ptr<model::LanguageModel>> loaded =
      model::LanguageModel::open(model, pool, options);
  if (!loaded.ok()) return loaded.error();
  return with_tokenizer(model, std::move(loaded).value(), text::Tokenizer::open(model));
}

}  // namespace segue::engine
