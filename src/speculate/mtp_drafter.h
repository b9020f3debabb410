// SPDX-License-Identifier: Apache-2.0
// Drafts with the assistant of the target: it reads the target's own cache and final hidden rows,
// so it keeps nothing of a sequence from step to step (multi-token prediction: Gloeckle et al.
// 2024; that a head on the target's hidden row drafts well: Li et al. 2024, "EAGLE").
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kv/cache.h"
#include "model/assistant.h"
#include "speculate/drafter.h"
#include "speculate/sampler.h"

namespace segue::speculate {

class MtpDrafter final : public Drafter {
 public:
  /// `cache` is the target's. Both must outlive this. `workgroups` 0: as many as threads.
  MtpDrafter(model::Assistant& assistant, const kv::Cache& cache, int workgroups)
      : assistant_(assistant), cache_(cache), workgroups_(workgroups) {}

  std::string_view name() const override { return "mtp"; }
  bool wants_hidden() const override { return true; }

  /// Jobs without a hidden row get no draft.
  void draft(std::span<DraftJob> jobs) override;

 private:
  bool begin();
  bool draft_chain();
  void draft_in_steps();

  model::Assistant& assistant_;
  const kv::Cache& cache_;
  int workgroups_;
  std::vector<DraftJob*> active_;                    // that want one token more
  std::vector<model::AssistantSequence> sequences_;  // [active]
  std::vector<std::int32_t> tokens_;                 // [active]
  std::vector<float> hidden_;                        // [active, backbone]
  std::vector<std::int32_t> chain_;                  // [active, positions]
  SampleScratch scratch_;
};

}  // namespace segue::speculate
