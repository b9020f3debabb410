// SPDX-License-Identifier: Apache-2.0
// What is refused before weights are read: options and requests against each other and against the
// configs of the models, for the engine and for the lab. What only the weights or the tokenizer
// tell is not known here.
#pragma once

#include <cstdint>
#include <string>

#include "attention/plan.h"
#include "model/config.h"
#include "model/place.h"
#include "segue/engine.h"
#include "segue/error.h"

namespace segue::engine {

inline constexpr int kMaxK = 8;  // largest k of a request

/// kUsage for sizes that no cache or step can have.
Status check_sizes(int page_size, int prefill_chunk);

/// Where models run; `kernel`: forced, or null. As model::find_place and model::check_place.
Result<model::Place> check_place(Device device, int threads, KvType kv,
                                 const attention::Kernel* kernel = nullptr);

/// The config of `model`, and whether assistant and draft model (empty: none) belong to it. Reads
/// no weights. kUnsupported for models that do not fit together or do not run at `place`.
Result<model::Config> check_models(const std::string& model, const std::string& assistant,
                                   const std::string& draft_model, const model::Place& place = {});

/// kUsage when the mode needs a model that there is not.
Status check_drafter(SpecMode mode, bool assistant, bool draft_model);

/// What the planner says of a step of one sequence in the layers of this kind. kUsage when a kernel
/// was forced that cannot run them.
Result<attention::Plan> plan_step(const EngineOptions& options, const model::Config& config,
                                  const model::Place& place, int kind,
                                  const attention::SequenceRows& rows);
/// 1 + k that policies are told.
int verify_rows(const EngineOptions& options);

}  // namespace segue::engine
