// SPDX-License-Identifier: Apache-2.0
// Engine: a loaded model that completes requests, alone or several at once. Tokens depend on the
// request only: not on speculation, on the requests beside it, on threads or on how attention was
// split.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "segue/error.h"
#include "segue/request.h"
#include "segue/types.h"

namespace segue {

struct EngineOptions {
  std::string model;        // path of a GGUF file
  std::string assistant;    // of the model: its folder or GGUF file; empty: none
  std::string draft_model;  // of a small model with the same vocabulary that drafts; empty: none
  Device device = Device::kCpu;  // of model and draft model; an assistant needs the CPU
  int threads = 0;               // 0: all CPUs this process may use
  KvType kv = KvType::kBF16;
  int page_size = 0;         // tokens, a multiple of 8; 0: default
  int prefill_chunk = 512;   // prompt rows per step
  std::int64_t context = 0;  // largest prompt + completion; 0: what the model was trained for
  int max_sequences = 1;     // requests in flight at once; others wait
  int decode_rows =
      0;  // 1 + k that the policy pr45450 is told; 0: the most that a request can ask for
  std::string policy = "segue";
  std::string kernel;  // forced attention kernel; empty: the planner's choice
  std::function<void(double fraction)> load_progress;
  std::function<void(std::string_view line)> trace;  // one JSON document per step, or empty
  // Set to true: create() ends with kCancelled, requests in flight end as kCancelled, in the middle
  // of a step too, whose rows are forgotten then.
  const std::atomic<bool>* cancel = nullptr;
};

/// What requests of an engine may ask for, known before any weight is read.
struct Limits {
  std::int64_t vocab = 0;    // token ids are below
  std::int64_t context = 0;  // largest prompt + completion
  bool assistant = false;    // SpecMode::kMtp needs it
  bool draft_model = false;  // SpecMode::kDraft needs it

  /// kUsage when a request can never work, kTooLong when its prompt_tokens do not fit. What a
  /// prompt's text becomes is not known here.
  Status check(const Request& request) const;
  /// kTooLong for more than the context holds.
  Status check_length(std::int64_t prompt_tokens) const;
};

class Engine {
 public:
  /// Checks options against each other and against the models' configs without reading weights;
  /// create() begins with it.
  static Result<Limits> limits(const EngineOptions& options);

  /// What a person should know before a chat with this model: that it has no chat template and
  /// whose turns encode_chat() writes instead, and why. Empty: by its template. Reads no weights.
  /// kUsage when nothing tells a format, kUnsupported for a template that is unknown.
  static Result<std::string> chat_note(const std::string& model);

  /// Loads the model and reserves the KV cache; what cannot fit is refused here, with the sizes.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One request. A prompt that continues the previous one reuses its cache.
  Result<Completion> generate(const Request& request);

  /// All requests, up to max_sequences at once; results in the order of the requests.
  std::vector<Result<Completion>> generate_batch(std::span<const Request> requests);

  /// One line for people: model, device, threads, KV type, who drafts for these requests, and the
  /// path of their largest steps at both ends of the context.
  std::string start_line(std::span<const Request> requests) const;

  /// How attention has run so far, by kind of layer, kernel and path.
  struct AttentionUse {
    std::string kind;  // of layer
    int layers = 0;
    std::string kernel;
    std::string path;
    std::int64_t steps = 0;
  };
  const std::vector<AttentionUse>& attention() const;

  std::string model_name() const;
  /// As given to create(), with what a 0 of threads, page_size, context and decode_rows came to.
  const EngineOptions& options() const;
  /// Of the CPU or GPU that the model runs on.
  std::string device_name() const;
  double load_s() const;

  std::vector<std::int32_t> tokenize(std::string_view text, bool parse_special) const;
  /// How many bytes of `text` have no token in the vocabulary and are left out of a prompt.
  std::int64_t lost_bytes(std::string_view text, bool parse_special) const;
  /// No text of more bytes fits the context, unless some of them are lost: as many tokens as it
  /// holds, all of them the longest.
  std::int64_t most_text_bytes() const;

  /// A conversation as Request::prompt_tokens, in the model's chat format and ready for the answer.
  /// Roles: "system", "user", "assistant". What contents spell never becomes a control token.
  /// Fails as chat_note() does.
  struct Message {
    std::string role;
    std::string content;
  };
  Result<std::vector<std::int32_t>> encode_chat(std::span<const Message> messages) const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace segue
