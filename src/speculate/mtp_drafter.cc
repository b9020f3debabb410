// SPDX-License-Identifier: Apache-2.0
// One pass of the assistant per draft position over the sequences that still want a token; all
// positions at once where the device would wait between them for nothing but the likeliest token.
#include "speculate/mtp_drafter.h"

#include <algorithm>

#include "core/check.h"

namespace segue::speculate {
namespace {

/// Is its next token the likeliest one that is not suppressed?
bool takes_the_likeliest(const DraftJob& job) {
  return job.sampling.temperature == 0 && job.sampling.repeat_penalty == 1;
}

}  // namespace

/// Plans for the active jobs. False when no kernel can.
bool MtpDrafter::begin() {
  sequences_.clear();
  for (const DraftJob* job : active_) {
    sequences_.push_back(
        {kv::SequenceId{job->target_cache}, static_cast<std::int64_t>(job->context.size()) - 1});
  }
  return assistant_.begin(cache_, sequences_, workgroups_).ok();
}

void MtpDrafter::draft(std::span<DraftJob> jobs) {
  const auto backbone = static_cast<std::size_t>(assistant_.config().backbone);
  active_.clear();
  hidden_.clear();
  for (DraftJob& job : jobs) {
    CHECK(job.out.size() <= kMaxDraft);
    job.draft = {};
    // One key at least, and all tokens but the newest cached.
    if (job.out.empty() || job.hidden.size() != backbone || job.context.size() < 2 ||
        cache_.length(kv::SequenceId{job.target_cache}) + 1 != std::ssize(job.context)) {
      continue;
    }
    active_.push_back(&job);
    hidden_.insert(hidden_.end(), job.hidden.begin(), job.hidden.end());
  }
  if (active_.empty() || !begin()) return;
  if (!draft_chain()) draft_in_steps();
}

/// False when the assistant has no use for chains, or some draft has to be sampled.
bool MtpDrafter::draft_chain() {
  const DraftJob& first = *active_.front();
  std::size_t positions = 0;
  tokens_.clear();
  for (const DraftJob* job : active_) {
    if (!takes_the_likeliest(*job) || job->suppressed.data() != first.suppressed.data())
      return false;
    positions = std::max(positions, job->out.size());
    tokens_.push_back(job->context.back());
  }
  if (!assistant_.chains()) return false;
  chain_.resize(active_.size() * positions);
  const model::DraftChain chain{tokens_, hidden_.data(), first.suppressed,
                                static_cast<int>(positions), chain_.data()};
  if (!assistant_.chain(chain).ok()) return true;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    DraftJob& job = *active_[i];
    std::size_t drafted = 0;
    for (; job.wants_more(drafted); ++drafted) job.out[drafted] = chain_[i * positions + drafted];
    job.draft.tokens = static_cast<int>(drafted);
  }
  return true;
}

void MtpDrafter::draft_in_steps() {
  const auto backbone = static_cast<std::size_t>(assistant_.config().backbone);
  const auto vocab = static_cast<std::size_t>(assistant_.config().text.vocab);
  for (std::size_t drafted = 0;; ++drafted) {
    tokens_.clear();
    for (const DraftJob* job : active_)
      tokens_.push_back(drafted == 0 ? job->context.back() : job->out[drafted - 1]);
    const Result<model::Assistant::Output> output = assistant_.step(tokens_, hidden_.data());
    if (!output.ok()) return;
    hidden_.clear();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < active_.size(); ++i) {
      DraftJob& job = *active_[i];
      const SampleRow row{{output->logits + i * vocab, vocab},
                          job.context,
                          job.out.first(drafted),
                          static_cast<std::int64_t>(job.context.size() + drafted),
                          job.suppressed};
      job.out[drafted] = sample(job.sampling, row, scratch_);
      job.draft.tokens = static_cast<int>(drafted) + 1;
      if (!job.wants_more(drafted + 1)) continue;
      const float* next = output->hidden + i * backbone;
      hidden_.insert(hidden_.end(), next, next + backbone);
      active_[kept++] = &job;
    }
    const bool fewer = kept < active_.size();
    active_.resize(kept);
    if (active_.empty() || (fewer && !begin())) return;
  }
}

}  // namespace segue::speculate
