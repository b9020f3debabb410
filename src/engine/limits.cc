// SPDX-License-Identifier: Apache-2.0
#include "engine/limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/plan.h"
#include "engine/load_model.h"
#include "engine/runtime.h"
#include "kv/sizing.h"
#include "model/assistant_config.h"
#include "speculate/sampler.h"
#include "text/chat.h"

namespace segue {
namespace {

Error usage(std::string message) { return {ErrorCode::kUsage, std::move(message)}; }

int page_size_of(const EngineOptions& options) {
  return options.page_size == 0 ? kv::kDefaultPageSize : options.page_size;
}

}  // namespace

namespace engine {

Status check_sizes(int page_size, int prefill_chunk) {
  constexpr int kLargestPage = 1 << 16;
  if (page_size < 8 || page_size > kLargestPage || page_size % 8 != 0) {
    return usage(
        fmt::format("page size is {}; allowed: multiples of 8 up to {}", page_size, kLargestPage));
  }
  if (prefill_chunk < 1)
    return usage(fmt::format("prefill chunk is {}; allowed: 1 and more", prefill_chunk));
  return {};
}

Status check_drafter(SpecMode mode, bool assistant, bool draft_model) {
  if (mode == SpecMode::kMtp && !assistant)
    return usage("spec 'mtp' needs an assistant (--assistant)");
  if (mode == SpecMode::kDraft && !draft_model)
    return usage("spec 'draft' needs a draft model (--draft-model)");
  return {};
}

Result<model::Place> check_place(Device device, int threads, KvType kv,
                                 const attention::Kernel* kernel) {
  Result<model::Place> place = model::find_place(device, threads);
  if (!place.ok()) return place;
  if (Status status = model::check_place(*place, kv, kernel); !status.ok()) return status.error();
  return place;
}

Result<model::Config> check_models(const std::string& model, const std::string& assistant,
                                   const std::string& draft_model, const model::Place& place) {
  Result<model::Config> config = read_model_config(model);
  if (!config.ok()) return config;
  if (Status status = model::check_place(place, *config); !status.ok()) return status.error();
  if (!assistant.empty()) {
    const Result<model::AssistantConfig> drafts = model::read_assistant_config(assistant);
    if (!drafts.ok()) return drafts.error();
    if (const Result<std::vector<int>> kinds = model::fit(*drafts, *config); !kinds.ok())
      return kinds.error();
    if (Status status = model::check_place(place, *drafts); !status.ok()) return status.error();
  }
  if (!draft_model.empty()) {
    const Result<model::Config> drafts = read_model_config(draft_model);
    if (!drafts.ok()) return drafts.error();
    if (Status status = model::check_place(place, *drafts); !status.ok()) return status.error();
    if (drafts->vocab != config->vocab) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("draft model '{}' has {} rows of embeddings, model '{}' has {}; "
                               "they must be equal",
                               draft_model, drafts->vocab, model, config->vocab)};
    }
  }
  return config;
}

int verify_rows(const EngineOptions& options) {
  return options.decode_rows > 0 ? options.decode_rows : 1 + kMaxK;
}

Result<attention::Plan> plan_step(const EngineOptions& options, const model::Config& config,
                                  const model::Place& place, int kind,
                                  const attention::SequenceRows& rows) {
  attention::PlanInput input;
  input.shape = model::attention_shape(place, config, kind, options.kv, page_size_of(options));
  input.sequences = std::span(&rows, 1);
  const Result<attention::Policy> policy = attention::parse_policy(options.policy);
  if (!policy.ok()) return policy.error();
  input.policy = *policy;
  input.decode_rows = verify_rows(options);
  if (!options.kernel.empty()) {
    const Result<const attention::Kernel*> kernel = attention::find_kernel(options.kernel);
    if (!kernel.ok()) return kernel.error();
    input.kernel = *kernel;
  }
  attention::Plan plan;
  const attention::DeviceFacts facts = model::device_facts(place, input.shape, input.kernel);
  if (Status status = attention::plan(input, facts, plan); !status.ok()) return status.error();
  return plan;
}

}  // namespace engine

int most_drafts(const Request& request) {
  constexpr int kDefaultFixedK = 4;
  if (request.spec == SpecMode::kOff) return 0;
  if (request.draft_tokens > 0) return request.draft_tokens;
  return request.spec == SpecMode::kAuto ? engine::kMaxK : kDefaultFixedK;
}

Status Limits::check(const Request& request) const {
  if (Status status = speculate::validate(request.sampling); !status.ok()) return status;
  if (request.max_tokens < -1) {
    return usage(
        fmt::format("max_tokens is {}; allowed: -1 (until the end) and more", request.max_tokens));
  }
  if (request.draft_tokens < 0 || request.draft_tokens > engine::kMaxK) {
    return usage(fmt::format("draft tokens is {}; allowed: 0 (default) to {}", request.draft_tokens,
                             engine::kMaxK));
  }
  if (Status status = engine::check_drafter(request.spec, assistant, draft_model); !status.ok())
    return status;
  for (const std::int32_t token : request.prompt_tokens) {
    if (token < 0 || token >= vocab)
      return usage(fmt::format("prompt token {}; allowed: 0 to {}", token, vocab - 1));
  }
  return check_length(static_cast<std::int64_t>(request.prompt_tokens.size()));
}

Status Limits::check_length(std::int64_t prompt_tokens) const {
  if (prompt_tokens <= context) return {};
  return Error{ErrorCode::kTooLong,
               fmt::format("the prompt has {} tokens, the context (--ctx) holds {}", prompt_tokens,
                           context)};
}

Result<Limits> Engine::limits(const EngineOptions& options) {
  if (options.max_sequences < 1 || options.max_sequences > 4096) {
    return usage(
        fmt::format("requests in flight is {}; allowed: 1 to 4096", options.max_sequences));
  }
  if (options.context < 0)
    return usage(fmt::format("context is {}; allowed: 0 (the model's) and more", options.context));
  if (Status status = engine::check_sizes(page_size_of(options), options.prefill_chunk);
      !status.ok())
    return status.error();
  const Result<int> threads = engine::resolve_threads(options.threads);
  if (!threads.ok()) return threads.error();
  if (const auto policy = attention::parse_policy(options.policy); !policy.ok())
    return policy.error();
  const attention::Kernel* forced = nullptr;
  if (!options.kernel.empty()) {
    const auto kernel = attention::find_kernel(options.kernel);
    if (!kernel.ok()) return kernel.error();
    forced = *kernel;
  }
  const Result<model::Place> place =
      engine::check_place(options.device, *threads, options.kv, forced);
  if (!place.ok()) return place.error();
  const Result<model::Config> config =
      engine::check_models(options.model, options.assistant, options.draft_model, *place);
  if (!config.ok()) return config.error();
  if (options.context > config->context) {
    return usage(
        fmt::format("context (--ctx) is {}; allowed: 0 to {}, for which the model was trained",
                    options.context, config->context));
  }
  const std::int64_t context = options.context > 0 ? options.context : config->context;
  const int rows = engine::verify_rows(options);
  const attention::SequenceRows deepest{std::max<std::int64_t>(0, context - rows), rows, false};
  for (int kind = 0; kind < static_cast<int>(config->kinds.size()); ++kind) {
    if (const auto plan = engine::plan_step(options, *config, *place, kind, deepest); !plan.ok())
      return plan.error();
  }
  return Limits{.vocab = config->vocab,
                .context = context,
                .assistant = !options.assistant.empty(),
                .draft_model = !options.draft_model.empty()};
}

Result<std::string> Engine::chat_note(const std::string& model) {
  const auto tokenizer = engine::open_tokenizer(model);
  if (!tokenizer.ok()) return tokenizer.error();
  const Result<text::ChatTemplate> format = text::ChatTemplate::detect((*tokenizer)->vocabulary());
  if (!format.ok()) return format.error();
  return format->note();
}

}  // namespace segue
