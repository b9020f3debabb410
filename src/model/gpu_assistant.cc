// SPDX-License-Identifier: Apache-2.0
// The assistant on a GPU, in the stream of its target: its layers read the target's K and V where
// they lie. A draft is some fifty launches; a chain of them has one wait at its end.
#include "model/assistant_step.h"
#ifdef SEGUE_CUDA

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "attention/cuda/launch.h"
#include "core/check.h"
#include "model/gpu_layer.h"
#include "model/gpu_model.h"
#include "model/gpu_step.h"
#include "model/gpu_weights.h"
#include "model/step.h"
#include "ops/cuda/draft.h"
#include "ops/cuda/rows.h"

namespace segue::model {
namespace {

namespace gpu = ops::cuda;

/// One kind of layer of the assistant in the step at hand.
struct KindState {
  PlannedAttention planned;
  kv::View keys;        // of the layer of the target that is read
  Rows<float> cos_sin;  // [rows, 2, rotary / 2]
};

class GpuAssistant final : public Assistant {
 public:
  GpuAssistant(AssistantParts& parts, GpuAssistantWeights weights)
      : Assistant(std::move(parts.loaded.config)),
        target_(parts.target),
        embedding_(*gpu_target(parts.target).embedding),
        stream_(device::Stream::borrowed(gpu_target(parts.target).stream->handle())),
        weights_(std::move(weights)),
        reads_(std::move(parts.reads)),
        kinds_(text().kinds.size()) {}

  std::int64_t weight_bytes() const override { return weights_.bytes(); }
  Status begin(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
               int workgroups) override;
  Result<Output> step(std::span<const std::int32_t> tokens, const float* hidden) override;
  bool chains() const override { return true; }
  Status chain(const DraftChain& args) override;

 private:
  const Config& text() const { return config().text; }
  int multiprocessors() const { return target_.place().gpu.multiprocessors; }
  Status plan(const kv::Cache& cache, std::span<const AssistantSequence> sequences, int kind,
              int workgroups);
  void grow();
  void send(std::span<const std::int32_t> tokens, const float* hidden, int positions);
  void draft(const gpu::Pick* picks, bool goes_on);
  void run_layer(std::size_t layer);
  void centroid_head();
  LayerLaunch launch() const { return {text(), layer_rows_, count_, multiprocessors(), stream_}; }

  const LanguageModel& target_;
  const gpu::Matrix& embedding_;  // the target's
  device::Stream stream_;         // the target's
  GpuAssistantWeights weights_;
  std::vector<int> reads_;        // [kinds] the kind of the target whose K and V are read
  std::vector<KindState> kinds_;  // of the assistant
  DraftRows step_;
  std::int64_t count_ = 0;  // sequences of the step
  bool in_flight_ = false;  // begun, and nothing has waited since

  HostRows<std::int32_t> host_positions_;
  Rows<std::int32_t> positions_;    // [count]
  HostRows<gpu::Pick> host_picks_;  // [1 + drafts, count]
  Rows<gpu::Pick> picks_;           // the same
  HostRows<float> host_feedback_;   // [count, backbone]
  Rows<float> feedback_;            // the same
  LayerRows layer_rows_;
  Rows<std::uint16_t> joined_;  // [count, 2 * backbone] bf16
  Rows<float> logits_;          // [count, vocab]
  Rows<float> scores_;          // [count, centroids]
  Rows<std::int32_t> chosen_;   // [count, centroid_top]
  Rows<std::int32_t> suppressed_;
  HostRows<float> host_logits_, host_hidden_;
};

/// All buffers of a draft, while nothing is in flight.
void GpuAssistant::grow() {
  layer_rows_.of(weights_.layers, count_);
  joined_.of(count_ * 2 * config().backbone);
  feedback_.of(count_ * config().backbone);
  host_feedback_.of(count_ * config().backbone);
  logits_.of(count_ * text().vocab);
  scores_.of(count_ * config().centroids);
  chosen_.of(count_ * config().centroid_top);
}

Status GpuAssistant::plan(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
                          int kind, int workgroups) {
  const auto index = static_cast<std::size_t>(kind);
  KindState& state = kinds_[index];
  const KvPlace place = target_.last_kv_layer(reads_[index]);
  state.planned.tables.clear();
  for (const AssistantSequence& sequence : sequences)
    state.planned.tables.push_back(cache.table(sequence.id, place.pool));
  state.keys = cache.view(place.pool, place.layer);
  const attention::PlanInput input =
      draft_plan_input(config(), kind, cache.spec(place.pool), step_);
  attention::DeviceFacts facts = device_facts(target_.place(), input.shape, nullptr);
  if (workgroups > 0) facts.workgroups = workgroups;
  if (Status status = state.planned.set(input, facts, stream_); !status.ok()) return status;
  const int rotary = text().kinds[index].rotary;
  gpu::angles({positions_.data(), weights_.inv_freq[index], state.cos_sin.of(count_ * rotary),
               count_, rotary / 2},
              stream_);
  return {};
}

Status GpuAssistant::begin(const kv::Cache& cache, std::span<const AssistantSequence> sequences,
                           int workgroups) {
  try {
    if (in_flight_) stream_.synchronize();
    in_flight_ = true;
    count_ = std::ssize(sequences);
    step_.set(sequences);
    grow();
    std::ranges::copy(step_.positions, host_positions_.of(count_));
    device::copy_to_device(positions_.of(count_), host_positions_.data(),
                           static_cast<std::size_t>(count_) * sizeof(std::int32_t), stream_);
    for (int kind = 0; kind < static_cast<int>(kinds_.size()); ++kind) {
      if (Status status = plan(cache, sequences, kind, workgroups); !status.ok()) return status;
    }
    return {};
  } catch (const device::DeviceError& error) {
    return Error{ErrorCode::kDevice, error.what()};
  }
}

/// What the first of `positions` drafts takes; picks of all of them begin at 0.
void GpuAssistant::send(std::span<const std::int32_t> tokens, const float* hidden, int positions) {
  CHECK(std::ssize(tokens) == count_);
  const std::int64_t picks = (1 + std::int64_t{positions}) * count_;
  gpu::Pick* const host = host_picks_.of(picks);
  std::ranges::transform(tokens, host, gpu::pick_of);
  std::fill(host + count_, host + picks, gpu::Pick{0});
  device::copy_to_device(picks_.of(picks), host, static_cast<std::size_t>(picks) * sizeof(*host),
                         stream_);
  const std::int64_t width = count_ * config().backbone;
  std::copy_n(hidden, width, host_feedback_.data());
  device::copy_to_device(feedback_.data(), host_feedback_.data(),
                         static_cast<std::size_t>(width) * sizeof(float), stream_);
}

void GpuAssistant::run_layer(std::size_t layer) {
  const GpuLayer& w = weights_.layers[layer];
  const Layer& place_of = text().layers[layer];
  KindState& state = kinds_[static_cast<std::size_t>(place_of.kind)];
  launch().product(w.qkv, layer_rows_.normed.data(), layer_rows_.qkv.data());
  gpu::Heads heads;
  heads.qkv = layer_rows_.qkv.data();
  heads.q_norm = w.q_norm;
  heads.eps = text().rms_eps;
  heads.cos_sin = state.cos_sin.data();
  heads.rope = text().kind_of(place_of).rope(text().q_heads, text().rope_pairs);
  heads.q_heads = text().q_heads;
  heads.q = layer_rows_.q.data();
  heads.rows = count_;
  gpu::heads(heads, stream_);
  attention::DeviceParams params;
  params.plan = &*state.planned.on_device;
  params.q = layer_rows_.q.data();
  params.out = layer_rows_.attended.data();
  params.kv = state.keys;
  params.shape = state.planned.plan.shape;
  params.multiprocessors = multiprocessors();
  params.early_reads = true;
  state.planned.plan.kernel->launch_on_gpu(params, stream_);
  const bool last = layer + 1 == weights_.layers.size();
  enqueue_layer_end(launch(),
                    {w, last ? weights_.output_norm : weights_.layers[layer + 1].attention_norm});
}

/// One draft position of all sequences: logits_, and feedback_ when another follows.
void GpuAssistant::draft(const gpu::Pick* picks, bool goes_on) {
  gpu::draft_input({&embedding_, picks, target_.config().embedding_scale, feedback_.data(),
                    joined_.data(), count_},
                   stream_);
  launch().product(weights_.pre, joined_.data(), layer_rows_.x.data());
  enqueue_first_norm(launch(), weights_.layers.front().attention_norm);
  for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer) run_layer(layer);
  if (goes_on) launch().product(weights_.post, layer_rows_.normed.data(), feedback_.data());
  if (config().centroids > 0) return centroid_head();
  launch().product(weights_.head, layer_rows_.normed.data(), logits_.data());
}

void GpuAssistant::centroid_head() {
  launch().product(weights_.centroids, layer_rows_.normed.data(), scores_.data());
  gpu::CentroidHead args;
  args.head = &weights_.head;
  args.x = layer_rows_.normed.data();
  args.scores = scores_.data();
  args.ordering = weights_.ordering.as<std::int32_t>();
  args.chosen = chosen_.data();
  args.logits = logits_.data();
  args.rows = count_;
  args.vocab = text().vocab;
  args.centroids = static_cast<int>(config().centroids);
  args.top = config().centroid_top;
  gpu::centroid_head(args, stream_);
}

Result<Assistant::Output> GpuAssistant::step(std::span<const std::int32_t> tokens,
                                             const float* hidden) {
  try {
    send(tokens, hidden, 0);
    draft(picks_.data(), true);
    const std::int64_t logits = count_ * text().vocab;
    const std::int64_t width = count_ * config().backbone;
    device::copy_to_host(host_logits_.of(logits), logits_.data(),
                         static_cast<std::size_t>(logits) * sizeof(float), stream_);
    device::copy_to_host(host_hidden_.of(width), feedback_.data(),
                         static_cast<std::size_t>(width) * sizeof(float), stream_);
    stream_.synchronize();
    in_flight_ = false;
    return Output{host_logits_.data(), host_hidden_.data()};
  } catch (const device::DeviceError& error) {
    return Error{ErrorCode::kDevice, error.what()};
  }
}

Status GpuAssistant::chain(const DraftChain& args) {
  try {
    const auto suppressed = static_cast<int>(args.suppressed.size());
    if (suppressed > 0) {
      device::copy_to_device(suppressed_.of(suppressed), args.suppressed.data(),
                             args.suppressed.size_bytes(), stream_);
    }
    send(args.tokens, args.hidden, args.positions);
    for (int position = 0; position < args.positions; ++position) {
      gpu::Pick* const picks = picks_.data() + position * count_;
      draft(picks, position + 1 < args.positions);
      gpu::suppress({logits_.data(), suppressed_.data(), suppressed, count_, text().vocab},
                    stream_);
      gpu::largest({logits_.data(), picks + count_, count_, text().vocab}, stream_);
    }
    gpu::Pick* const host = host_picks_.data();
    device::copy_to_host(host, picks_.data() + count_,
                         static_cast<std::size_t>(args.positions * count_) * sizeof(*host),
                         stream_);
    stream_.synchronize();
    in_flight_ = false;
    for (std::int64_t row = 0; row < count_; ++row) {
      for (int position = 0; position < args.positions; ++position)
        args.out[row * args.positions + position] = gpu::token_of(host[position * count_ + row]);
    }
    return {};
  } catch (const device::DeviceError& error) {
    return Error{ErrorCode::kDevice, error.what()};
  }
}

}  // namespace

Result<std::unique_ptr<Assistant>> gpu_assistant(AssistantParts parts) {
  const AssistantConfig& config = parts.loaded.config;
  const std::int64_t needed = gpu_bytes(parts.loaded.weights);
  if (Status status = fits_on_gpu(parts.target.place(), needed, config.path); !status.ok())
    return status.error();
  try {
    GpuAssistantWeights weights = upload_weights(parts.loaded.weights, config.text, parts.pool,
                                                 *gpu_target(parts.target).stream);
    return std::unique_ptr<Assistant>(new GpuAssistant(parts, std::move(weights)));
  } catch (const device::DeviceError& error) {
    return Error{ErrorCode::kDevice, fmt::format("'{}': {}", config.path, error.what())};
  }
}

}  // namespace segue::model
#else
#include "device/device.h"

namespace segue::model {

Result<std::unique_ptr<Assistant>> gpu_assistant(AssistantParts /*parts*/) {
  return device::gpu_facts().error();
}

}  // namespace segue::model
#endif
