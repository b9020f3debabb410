// SPDX-License-Identifier: Apache-2.0
// Both models step through the text in the same small chunks; distributions are compared in double.
#include "lab/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/limits.h"
#include "engine/runtime.h"
#include "kv/cache.h"
#include "lab/stats.h"

namespace segue::lab {
namespace {

constexpr int kChunk = 32;

/// A model with a cache of one sequence, advanced chunk by chunk.
class Stepper {
 public:
  static Result<Stepper> create(engine::Runtime& runtime, KvType kv, std::int64_t tokens,
                                std::int64_t budget_bytes) {
    const kv::Demand demand{1, tokens, kChunk};
    Result<std::vector<kv::PoolSpec>> specs =
        kv::size_pools(runtime.model->pool_specs(kv, kv::kDefaultPageSize), demand, budget_bytes);
    if (!specs.ok()) return specs.error();
    kv::CacheOptions options;
    options.max_rows = kChunk;
    Result<kv::Cache> cache = kv::Cache::create(std::move(specs).value(), options);
    if (!cache.ok()) return cache.error();
    return Stepper(runtime, std::move(cache).value());
  }

  /// Logits of every row of the next chunk.
  Result<const float*> step(std::span<const std::int32_t> tokens) {
    const auto rows = static_cast<std::int64_t>(tokens.size());
    if (Status status = cache_.reserve(sequence_, rows); !status.ok()) return status.error();
    const model::SequenceInput sequence{sequence_, cache_.length(sequence_), tokens, true,
                                        static_cast<int>(rows)};
    model::StepInput input;
    input.cache = &cache_;
    input.sequences = std::span(&sequence, 1);
    const Result<model::StepOutput> output = runtime_->model->forward(input);
    if (!output.ok()) return output.error();
    cache_.commit(sequence_, rows);
    return output->logits;
  }

  std::int64_t cache_bytes() const { return cache_.bytes(); }

 private:
  Stepper(engine::Runtime& runtime, kv::Cache cache)
      : runtime_(&runtime), cache_(std::move(cache)), sequence_(cache_.create_sequence()) {}
  engine::Runtime* runtime_;
  kv::Cache cache_;
  kv::SequenceId sequence_;
};

struct Distribution {
  std::span<const float> logits;
  double log_sum = 0;
  std::int32_t top = 0;

  explicit Distribution(std::span<const float> logits_in) : logits(logits_in) {
    top = static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
    double sum = 0;
    for (float logit : logits)
      sum += std::exp(static_cast<double>(logit) - logits[static_cast<std::size_t>(top)]);
    log_sum = logits[static_cast<std::size_t>(top)] + std::log(sum);
  }
  double log_probability(std::int64_t token) const {
    return logits[static_cast<std::size_t>(token)] - log_sum;
  }
};

struct Comparison {
  std::int64_t positions = 0;
  std::int64_t agreed = 0;
  double kl_sum = 0;
  double kl_max = 0;

  void add(bool same_top, double kl) {
    ++positions;
    agreed += same_top ? 1 : 0;
    kl_sum += kl;
    kl_max = std::max(kl_max, kl);
  }
  core::Json json() const {
    const auto n = static_cast<double>(positions);
    core::Json out = core::Json::object();
    return out.set("positions", positions)
        .set("top1_agreement", static_cast<double>(agreed) / n)
        .set("mean_kl", kl_sum / n)
        .set("max_kl", kl_max);
  }
};

double kl_full(const Distribution& reference, const Distribution& model) {
  double kl = 0;
  for (std::size_t i = 0; i < reference.logits.size(); ++i) {
    const double log_p = reference.logits[i] - reference.log_sum;
    kl += std::exp(log_p) * (log_p - (model.logits[i] - model.log_sum));
  }
  return std::max(0.0, kl);
}

/// KL over the recorded tokens and one bucket for all others.
std::optional<double> kl_recorded(const core::Json& ids, const core::Json& logprobs,
                                  const Distribution& model) {
  if (!ids.is_array() || !logprobs.is_array() ||
      ids.as_array()->size() != logprobs.as_array()->size())
    return {};
  double kl = 0;
  double rest_p = 1;
  double rest_q = 1;
  for (std::size_t i = 0; i < ids.as_array()->size(); ++i) {
    const std::int64_t* id = (*ids.as_array())[i].as_int();
    double log_p = 0;
    if (id == nullptr || *id < 0 || *id >= static_cast<std::int64_t>(model.logits.size()) ||
        !(*logprobs.as_array())[i].as_double(log_p)) {
      return {};
    }
    const double log_q = model.log_probability(*id);
    kl += std::exp(log_p) * (log_p - log_q);
    rest_p -= std::exp(log_p);
    rest_q -= std::exp(log_q);
  }
  if (rest_p > 1e-9 && rest_q > 1e-12) kl += rest_p * std::log(rest_p / rest_q);
  return std::max(0.0, kl);
}

class Recorded {
 public:
  static Result<Recorded> open(const core::Json& json, const std::string& source,
                               std::size_t positions) {
    const core::Json* ids = json.find("top_ids");
    const core::Json* logprobs = json.find("top_logprobs");
    const auto entries = [](const core::Json* field) {
      return field != nullptr && field->is_array() ? field->as_array()->size() : std::size_t{0};
    };
    if (entries(ids) < positions || entries(logprobs) < positions) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{}: top_ids has {} entries and top_logprobs {}; needed: one for "
                               "each of {} positions",
                               source, entries(ids), entries(logprobs), positions)};
    }
    return Recorded(*ids->as_array(), *logprobs->as_array(), source);
  }
  Status compare(std::size_t position, const Distribution& model, Comparison& out) const {
    const std::optional<double> kl = kl_recorded(ids_[position], logprobs_[position], model);
    const core::Json::Array* ids = ids_[position].as_array();
    if (!kl || ids->empty()) {
      return Error{
          ErrorCode::kInvalidFile,
          fmt::format("{}: position {} has top_ids {} and top_logprobs {}; needed: as "
                      "many token ids as numbers",
                      source_, position, excerpt(ids_[position]), excerpt(logprobs_[position]))};
    }
    out.add(*ids->front().as_int() == model.top, *kl);
    return {};
  }

 private:
  Recorded(const core::Json::Array& ids, const core::Json::Array& logprobs,
           const std::string& source)
      : ids_(ids), logprobs_(logprobs), source_(source) {}
  static std::string excerpt(const core::Json& json) { return json.dump().substr(0, 60); }

  const core::Json::Array& ids_;
  const core::Json::Array& logprobs_;
  const std::string& source_;
};

/// Checks everything but the distributions against the config of the model.
Result<std::vector<std::int32_t>> recorded_tokens(const core::Json& recorded,
                                                  const std::string& source,
                                                  const model::Config& config) {
  const core::Json* tokens = recorded.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("{}: {}; needed: 'tokens', an array of token ids", source,
                             tokens == nullptr ? "no 'tokens'" : "'tokens' is no array")};
  }
  std::vector<std::int32_t> out;
  for (const core::Json& token : *tokens->as_array()) {
    const std::int64_t* id = token.as_int();
    if (id == nullptr || *id < 0 || *id >= config.vocab) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{}: token {} is {}; allowed: 0 to {}", source, out.size(),
                               token.dump().substr(0, 60), config.vocab - 1)};
    }
    out.push_back(static_cast<std::int32_t>(*id));
  }
  return out;
}

Status check_length(std::span<const std::int32_t> tokens, const std::string& source,
                    const model::Config& config) {
  const auto count = std::ssize(tokens);
  if (count < 2) {
    return Error{ErrorCode::kInvalidFile, fmt::format("{} has {} token{}; at least 2 are needed",
                                                      source, count, count == 1 ? "" : "s")};
  }
  if (count > config.context) {
    return Error{ErrorCode::kTooLong, fmt::format("{} has {} tokens, the context holds {}", source,
                                                  count, config.context)};
  }
  return {};
}

Error reference_error(const Error& error) {
  return {error.code, fmt::format("float reference: {}", error.message)};
}

Result<core::Json> compare(engine::Runtime& runtime, engine::Runtime* exact_runtime,
                           std::span<const std::int32_t> tokens, const EvaluateOptions& options) {
  const std::int64_t vocab = runtime.model->config().vocab;
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::int64_t budget_bytes = runtime.cache_budget_bytes();
  if (exact_runtime != nullptr) budget_bytes -= exact_runtime->model->weight_bytes();
  Result<Stepper> model = Stepper::create(runtime, options.kv, count, budget_bytes);
  if (!model.ok()) return model.error();
  std::optional<Stepper> reference;
  if (exact_runtime != nullptr) {
    Result<Stepper> stepper =
        Stepper::create(*exact_runtime, KvType::kF32, count, budget_bytes - model->cache_bytes());
    if (!stepper.ok()) return reference_error(stepper.error());
    reference.emplace(std::move(stepper).value());
  }
  std::optional<Recorded> recorded;
  if (options.recorded != nullptr) {
    Result<Recorded> opened = Recorded::open(*options.recorded, options.source, tokens.size() - 1);
    if (!opened.ok()) return opened.error();
    recorded.emplace(std::move(opened).value());
  }
  double logprob_sum = 0;
  std::int64_t positions = 0;
  bool interrupted = false;
  Comparison to_recorded;
  Comparison to_float;
  for (std::int64_t first = 0; first < count; first += kChunk) {
    interrupted = options.cancelled && options.cancelled();
    if (interrupted) break;
    const auto chunk =
        tokens.subspan(static_cast<std::size_t>(first),
                       static_cast<std::size_t>(std::min<std::int64_t>(kChunk, count - first)));
    const Result<const float*> logits = model->step(chunk);
    if (!logits.ok()) return logits.error();
    const Result<const float*> exact =
        reference ? reference->step(chunk) : Result<const float*>(nullptr);
    if (!exact.ok()) return exact.error();
    for (std::size_t row = 0; row < chunk.size(); ++row) {
      const auto position = static_cast<std::size_t>(first) + row;
      const std::size_t offset = row * static_cast<std::size_t>(vocab);
      const Distribution mine(std::span(*logits + offset, static_cast<std::size_t>(vocab)));
      if (position + 1 == tokens.size()) break;  // the last row predicts nothing that we know
      logprob_sum += mine.log_probability(tokens[position + 1]);
      ++positions;
      if (recorded) {
        if (Status status = recorded->compare(position, mine, to_recorded); !status.ok())
          return status.error();
      }
      if (reference) {
        const Distribution theirs(std::span(*exact + offset, static_cast<std::size_t>(vocab)));
        to_float.add(theirs.top == mine.top, kl_full(theirs, mine));
      }
    }
    if (options.progress)
      options.progress(static_cast<double>(first + kChunk) / static_cast<double>(count));
  }
  core::Json json = core::Json::object();
  json.set("positions", positions).set("total_positions", count - 1);
  const double mean = logprob_sum / static_cast<double>(positions);
  if (positions > 0 && !std::isfinite(mean)) {
    return Error{ErrorCode::kInvalidFile,
                 "the logits are not finite: the weights of the file are damaged"};
  }
  json.set("device_name", runtime.model->place().name());
  json.set("mean_logprob", mean).set("perplexity", std::exp(-mean));
  if (recorded) json.set("recorded", to_recorded.json());
  if (reference) json.set("float_reference", to_float.json());
  json.set("interrupted", interrupted);
  return json;
}

}  // namespace

Result<Evaluation> evaluate(const std::string& path, const EvaluateOptions& options) {
  const Result<model::Place> place =
      engine::check_place(options.device, options.threads, options.kv);
  if (!place.ok()) return place.error();
  Result<std::vector<std::int32_t>> tokens = std::vector<std::int32_t>();
  if (options.recorded != nullptr) {
    const Result<model::Config> config = engine::check_models(path, {}, {}, *place);
    if (!config.ok()) return config.error();
    tokens = recorded_tokens(*options.recorded, options.source, *config);
    if (!tokens.ok()) return tokens.error();
    if (Status status = check_length(*tokens, options.source, *config); !status.ok())
      return status.error();
    if (const auto opened = Recorded::open(*options.recorded, options.source, tokens->size() - 1);
        !opened.ok()) {
      return opened.error();
    }
  }
  engine::RuntimeOptions load{.model = path,
                              .device = options.device,
                              .threads = options.threads,
                              .progress = options.load_progress,
                              .cancelled = options.cancelled};
  const Result<std::unique_ptr<engine::Runtime>> runtime = engine::Runtime::load(load);
  if (!runtime.ok()) return runtime.error();
  if (options.recorded == nullptr) {
    tokens = (*runtime)->tokenizer->encode_prompt(options.text, false);
    if (Status status = check_length(*tokens, options.source, (*runtime)->model->config());
        !status.ok()) {
      return status.error();
    }
  }
  Result<std::unique_ptr<engine::Runtime>> exact = std::unique_ptr<engine::Runtime>();
  if (options.against_float) {
    load.dequantise = true;
    exact = engine::Runtime::load(load);
    if (!exact.ok()) return exact.error();
  }
  Result<core::Json> figures = compare(**runtime, exact->get(), *tokens, options);
  if (!figures.ok()) return figures.error();
  if (options.recorded == nullptr)
    figures->set("lost_bytes", (*runtime)->tokenizer->lost_bytes(options.text, false));
  Evaluation result{std::move(figures).value(), {}};
  result.used.model = path;
  result.used.device = options.device;
  result.used.threads = (*runtime)->pool->threads();
  result.used.kv = options.kv;
  result.used.page_size = kv::kDefaultPageSize;
  result.used.prefill_chunk = kChunk;
  result.used.context = (*runtime)->model->config().context;
  return result;
}

std::string evaluation_table(const core::Json& figures) {
  std::string table =
      fmt::format("{} of {} positions, perplexity {:.3f}\n", *figures.find("positions")->as_int(),
                  *figures.find("total_positions")->as_int(), number(figures, "perplexity"));
  for (const auto& [key, name] :
       {std::pair{"recorded", "recorded"}, std::pair{"float_reference", "float reference"}}) {
    const core::Json* comparison = figures.find(key);
    if (comparison == nullptr) continue;
    table += fmt::format("{:<16} top-1 agreement {:.2f} %, mean KL {:.3g}, largest {:.3g}\n", name,
                         number(*comparison, "top1_agreement") * 100,
                         number(*comparison, "mean_kl"), number(*comparison, "max_kl"));
  }
  return table;
}

}  // namespace segue::lab
