// SPDX-License-Identifier: Apache-2.0
// Loading, whatever the device; the forward passes are cpu_assistant.cc and gpu_assistant.cc.
#include "model/assistant.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/check.h"
#include "model/assistant_step.h"

namespace segue::model {

Result<std::unique_ptr<Assistant>> Assistant::load(const std::string& path,
                                                   const LanguageModel& target,
                                                   core::ThreadPool& pool,
                                                   const WeightOptions& options) {
  const bool gpu = target.place().device == Device::kCuda;
  // A GPU's matrices are dequantised from what the file has.
  const WeightOptions host{options.isa, options.dequantise && !gpu, options.cancelled};
  Result<LoadedAssistant> loaded = load_assistant(path, host, pool);
  if (!loaded.ok()) return loaded.error();
  Result<std::vector<int>> reads = fit(loaded->config, target.config());
  if (!reads.ok()) return reads.error();
  if (Status status = check_place(target.place(), loaded->config); !status.ok())
    return status.error();
  AssistantParts parts{std::move(loaded).value(), std::move(reads).value(), target, pool};
  if (gpu) return gpu_assistant(std::move(parts));
  return cpu_assistant(std::move(parts), options.isa);
}

Status Assistant::chain(const DraftChain& args) {
  const auto count = std::ssize(args.tokens);
  const std::int64_t vocab = config_.text.vocab;
  std::vector<std::int32_t> tokens(args.tokens.begin(), args.tokens.end());
  const float* hidden = args.hidden;
  std::vector<float> feedback, logits(static_cast<std::size_t>(vocab));
  for (int position = 0; position < args.positions; ++position) {
    const Result<Output> output = step(tokens, hidden);
    if (!output.ok()) return output.error();
    for (std::int64_t row = 0; row < count; ++row) {
      std::copy_n(output->logits + row * vocab, vocab, logits.begin());
      for (const std::int32_t id : args.suppressed)
        logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
      const auto best =
          static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
      tokens[static_cast<std::size_t>(row)] = args.out[row * args.positions + position] = best;
    }
    feedback.assign(output->hidden, output->hidden + count * config_.backbone);
    hidden = feedback.data();
  }
  return {};
}

void DraftRows::set(std::span<const AssistantSequence> from) {
  sequences.clear();
  positions.clear();
  for (const AssistantSequence& sequence : from) {
    CHECK(sequence.depth >= 1);
    sequences.push_back({sequence.depth - 1, 1, false});
    positions.push_back(static_cast<std::int32_t>(sequence.depth));
  }
}

attention::PlanInput draft_plan_input(const AssistantConfig& config, int kind,
                                      const kv::PoolSpec& pool, const DraftRows& rows) {
  const LayerKind& facts = config.text.kinds[static_cast<std::size_t>(kind)];
  attention::PlanInput input;
  input.shape = {config.text.q_heads, facts.kv_heads, facts.head_dim, facts.window,
                 pool.type,           pool.layout,    pool.page_size};
  input.sequences = rows.sequences;
  return input;
}

}  // namespace segue::model
