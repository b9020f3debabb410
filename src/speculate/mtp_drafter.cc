// SPDX-License-Identifier: Apache-2.0
// One pass of the assistant per draft position over the sequences that still want a token.
#include "speculate/mtp_drafter.h"

#include <algorithm>

#include "core/check.h"

namespace segue::speculate {

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
  const auto vocab = static_cast<std::size_t>(assistant_.config().text.vocab);
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
  for (std::size_t drafted = 0;; ++drafted) {
    tokens_.clear();
    for (const DraftJob* job : active_)
      tokens_.push_back(drafted == 0 ? job->context.back() : job->out[drafted - 1]);
    const model::Assistant::Output output = assistant_.step(tokens_, hidden_.data());
    hidden_.clear();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < active_.size(); ++i) {
      DraftJob& job = *active_[i];
      const SampleRow row{{output.logits + i * vocab, vocab},
                          job.context,
                          job.out.first(drafted),
                          static_cast<std::int64_t>(job.context.size() + drafted),
                          job.suppressed};
      job.out[drafted] = sample(job.sampling, row, scratch_);
      job.draft.tokens = static_cast<int>(drafted) + 1;
      if (!job.wants_more(drafted + 1)) continue;
      const float* next = output.hidden + i * backbone;
      hidden_.insert(hidden_.end(), next, next + backbone);
      active_[kept++] = &job;
    }
    const bool fewer = kept < active_.size();
    active_.resize(kept);
    if (active_.empty() || (fewer && !begin())) return;
  }
}

}  // namespace segue::speculate
