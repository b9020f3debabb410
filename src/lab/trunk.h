// SPDX-License-Identifier: Apache-2.0
// Trunk: one sequence on a loop of its own, prefilled to one depth after the other. What a
// measurement compares are forks of it, so all alternatives start from the same cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/loop.h"
#include "segue/error.h"

namespace segue::lab {

struct TrunkOptions {
  std::int64_t depth = 0;             // the largest that will be asked for
  std::int64_t room = 0;              // tokens that a fork may reach beyond its depth
  std::string text{};                 // filler, repeated; empty: pseudo-random tokens
  std::function<bool()> cancelled{};  // asked between and within steps; may be empty
  std::function<void(std::int64_t rows)> prefilled{};  // after each step of `grow`; may be empty
};

/// kUsage when the model has fewer positions than depth and room need: known before it is loaded.
Status check_room(const model::Config& config, std::int64_t depth, std::int64_t room);

class Trunk {
 public:
  /// `loop.max_sequences`: forks alive at once; `loop.context` follows from the options. Refuses
  /// what check_room and Loop::create do, and what no context can be filled with: a text or a
  /// vocabulary without tokens for it.
  static Result<std::unique_ptr<Trunk>> create(engine::Runtime& runtime, engine::LoopOptions loop,
                                               TrunkOptions options);

  engine::Loop& loop() { return *loop_; }

  /// What a prompt costs these drafters is paid by the trunk, once, in every `grow` from now on.
  void prepare(std::span<speculate::Drafter* const> drafters);

  /// Prefills until `depth` keys are cached and the token after them is known. Depths ascend.
  Status grow(std::int64_t depth);

  /// Stands at the depth, ignores the end of text, and finishes `room` tokens beyond the depth.
  Result<engine::Sequence> fork() { return loop_->fork(base_); }

  /// What the target says after the current depth without speculation: a finished fork's tokens.
  Result<std::vector<std::int32_t>> own_tokens();

  /// kCancelled once `cancelled` says so.
  Status check_cancelled() const;

 private:
  explicit Trunk(TrunkOptions options) : options_(std::move(options)) {}
  Status fill(const text::Tokenizer& tokenizer);
  Status finish(engine::Sequence& sequence,
                const std::function<void(std::int64_t rows)>& stepped = {});

  TrunkOptions options_;
  std::unique_ptr<engine::Loop> loop_;
  std::vector<std::int32_t> filler_;  // [depth] and more
  engine::Sequence base_;
  speculate::Controller unused_;
};

}  // namespace segue::lab
