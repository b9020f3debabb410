// SPDX-License-Identifier: Apache-2.0
// A small model with a cache of its own drafts: it reads the committed tokens that it has not seen,
// then samples one token per forward pass, with the target's noise, for all sequences of the step
// together (Leviathan et al. 2022; the shared noise: Daliri et al. 2024). Drafts are written behind
// the committed rows of its cache and never committed before the target has accepted them, so a
// rejected draft costs nothing to forget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/cache.h"
#include "model/lm.h"
#include "segue/error.h"
#include "speculate/drafter.h"
#include "speculate/sampler.h"

namespace segue::speculate {

struct ModelDrafterOptions {
  KvType kv = KvType::kBF16;
  int page_size = kv::kDefaultPageSize;
  int chunk = 512;           // rows that catching up feeds at once
  std::int64_t context = 0;  // tokens that a sequence of the target may reach
  int sequences = 1;         // alive at once
  std::int64_t budget_bytes = 0;
  int workgroups = 0;                 // 0: threads
  std::function<bool()> cancelled{};  // asked while the model runs, or empty: no drafts
};

class ModelDrafter final : public Drafter {
 public:
  /// Sizes and reserves the cache. The model must have the target's vocabulary and outlive this; a
  /// sequence longer than what it was trained for gets no drafts.
  static Result<std::unique_ptr<ModelDrafter>> create(model::LanguageModel& model,
                                                      const ModelDrafterOptions& options);

  std::string_view name() const override { return "draft"; }
  std::int64_t behind(std::int64_t sequence, std::span<const std::int32_t> context) const override;
  void prepare(std::int64_t sequence, std::span<const std::int32_t> context) override;
  void draft(std::span<DraftJob> jobs) override;
  void rewind(std::int64_t sequence, std::int64_t tokens) override;
  void fork(std::int64_t from, std::int64_t to) override;
  void forget(std::int64_t sequence) override;

  const kv::Cache& cache() const { return cache_; }

 private:
  struct Text {  // one sequence
    kv::SequenceId id;
    std::vector<std::int32_t> drafts;  // whose rows lie behind the committed ones
  };

  ModelDrafter(model::LanguageModel& model, const ModelDrafterOptions& options, kv::Cache cache);
  Text& text_of(std::int64_t sequence);
  std::int64_t settle(Text& text, std::span<const std::int32_t> context);
  bool read(Text& text, std::span<const std::int32_t> tokens);
  bool first_tokens(std::span<DraftJob* const> jobs);
  bool next_tokens(std::span<DraftJob* const> jobs, int position);
  bool forward(std::span<DraftJob* const> jobs, int position);

  model::LanguageModel& model_;
  ModelDrafterOptions options_;
  kv::Cache cache_;
  std::int64_t longest_;  // tokens that fit a sequence of the cache and the model's positions
  std::unordered_map<std::int64_t, Text> texts_;
  SampleScratch scratch_;
  std::vector<model::SequenceInput> inputs_;
  std::vector<DraftJob*> active_;
};

}  // namespace segue::speculate
