// SPDX-License-Identifier: Apache-2.0
// The forward pass on a GPU: the launches of a step on one stream, one wait at its end for the
// logits. Weights are what it reads: 2 bytes each, once, whatever the rows of a verify step.
#ifdef SEGUE_CUDA
#include "model/gpu_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "attention/cuda/launch.h"
#include "core/check.h"
#include "kv/sizing.h"
#include "model/gpu_graphs.h"
#include "model/gpu_layer.h"
#include "model/gpu_step.h"
#include "model/gpu_weights.h"
#include "model/per_layer_table.h"
#include "model/step.h"
#include "ops/cuda/rows.h"

namespace segue::model {
namespace {

namespace gpu = ops::cuda;

/// With more rows than this the GPU takes longer than the launches.
constexpr std::int64_t kGraphRows = 128;
/// A step of so many rows takes long enough to be cancelled within, and each of its layers longer
/// than its launches.
constexpr std::int64_t kLongRows = 2048;
/// As many decode rows as one sequence verifies: such a step is sure to come again.
constexpr std::int64_t kLoneRows = 16;

/// Attention of the layers of one kind.
struct Group {
  PlannedAttention planned;
  Rows<float> cos_sin;       // [rows, 2, rotary / 2]
  Rows<std::int64_t> slots;  // [rows]
  HostRows<std::int64_t> host_slots;
  attention::cuda::Grid grid;
  // Around attention in one layer: events keep kernels from overlapping. It is another one in every
  // step, or in every recorded one, and stands for all of them.
  device::Event start, end;
  int timed = 0;  // index among the layers of the kind
};

static_assert(gpu::kMaximaBlock == StepOutput::kMaximaBlock);

class GpuModel final : public LanguageModel {
 public:
  GpuModel(const Config& config, const Place& place) : LanguageModel(config, place) {}

  Status load(TensorSource& source, core::ThreadPool& pool, const LoadOptions& options);

  std::int64_t weight_bytes() const override { return weights_.bytes(); }
  void embed_token(std::int32_t token, float* out) const override;
  void reserve_logits(std::int64_t rows) override;
  Result<StepOutput> forward(const StepInput& input) override;
  GpuTarget target() const { return {&weights_.embedding, &stream_}; }

 protected:
  const device::Stream* stream() const override { return &stream_; }

 private:
  Result<StepOutput> run(const StepInput& input);
  Status plan(const StepInput& input);
  Status plan_group(const StepInput& input, int kind);
  void reserve(std::int64_t rows);
  void send_rows(const StepInput& input);
  void send_per_layer();
  void enqueue_per_layer();
  std::int64_t per_layer_width() const {
    return std::int64_t{config_.layer_count()} * config_.per_layer_input;
  }
  std::int64_t blocks() const {
    return (config_.vocab + gpu::kMaximaBlock - 1) / gpu::kMaximaBlock;
  }
  void describe(const StepInput& input);
  bool enqueue(const StepInput& input);
  bool cancelled_in(const StepInput& input, int layer);
  void run_layer(const StepInput& input, int layer);
  void attend(const StepInput& input, int layer);
  LayerLaunch launch() const {
    return {config_, layer_rows_, rows_, place().gpu.multiprocessors, stream_};
  }

  device::Stream stream_;
  GpuWeights weights_;
  std::optional<PerLayerTable> table_;  // on the host
  std::deque<Group> groups_;            // [kinds]
  std::vector<GroupRecord> records_;

  // Of a step:
  StepRows step_;
  std::int64_t rows_ = 0;
  std::int64_t wanted_ = 0;           // rows that asked for logits
  HostRows<std::int32_t> host_rows_;  // tokens, positions, chosen
  Rows<std::int32_t> device_rows_;    // the same
  LayerRows layer_rows_;
  HostRows<std::uint16_t> host_per_layer_;  // [rows, layers, per_layer_input] bf16 of the table
  Rows<std::uint16_t> per_layer_tokens_;    // the same
  Rows<float> per_layer_;                   // [rows, layers, per_layer_input] what layers add
  Rows<float> logits_, hidden_;             // [wanted, vocab], [wanted, hidden]
  Rows<float> maxima_;                      // [wanted, blocks of the vocabulary]
  HostRows<float> host_logits_, host_hidden_, host_maxima_;
  std::array<device::Event, 2> layer_ends_;  // of even and odd layers
  GraphKey key_;
  GpuGraphs graphs_;
};

Status GpuModel::load(TensorSource& source, core::ThreadPool& pool, const LoadOptions& options) {
  const auto part = [&](double from) -> std::function<void(double)> {
    if (!options.progress) return {};
    return [&options, from](double fraction) { options.progress(from + fraction / 2); };
  };
  Result<Weights> host =
      load_weights(source, config_, {options.isa, false, options.cancelled}, pool, part(0));
  if (!host.ok()) return host.error();
  if (Status status = fits_on_gpu(place(), gpu_bytes(*host), source.path()); !status.ok())
    return status;
  Result<GpuWeights> weights =
      upload_weights(*host, config_, pool, stream_, part(0.5), options.cancelled);
  if (!weights.ok()) return weights.error();
  weights_ = std::move(weights).value();
  place_.weights = forms_text(weights_.layers);
  if (config_.per_layer_input > 0) {
    table_.emplace(std::move(*host), pool);
    place_.weights += ", per-layer embeddings on the host";
  }
  groups_.resize(config_.kinds.size());
  records_ = group_records(config_);
  return {};
}

void GpuModel::embed_token(std::int32_t token, float* out) const {
  const auto bytes = static_cast<std::size_t>(config_.hidden) * sizeof(float);
  const device::Buffer id(sizeof(token));
  const device::Buffer row(bytes);
  device::copy_to_device(id.as<>(), &token, sizeof(token), stream_);
  gpu::embed(
      {&weights_.embedding, id.as<std::int32_t>(), config_.embedding_scale, row.as<float>(), 1},
      stream_);
  device::copy_to_host(out, row.as<>(), bytes, stream_);
  stream_.synchronize();
}

void GpuModel::reserve_logits(std::int64_t rows) {
  reserve(rows);
  logits_.of(rows * config_.vocab);
  host_logits_.of(rows * config_.vocab);
  hidden_.of(rows * config_.hidden);
  host_hidden_.of(rows * config_.hidden);
  maxima_.of(rows * blocks());
  host_maxima_.of(rows * blocks());
}

/// Buffers of a step, all but those of rows that want logits.
void GpuModel::reserve(std::int64_t rows) {
  host_rows_.of(3 * rows);
  device_rows_.of(3 * rows);
  layer_rows_.of(weights_.layers, rows);
  host_per_layer_.of(rows * per_layer_width());
  per_layer_tokens_.of(rows * per_layer_width());
  per_layer_.of(rows * per_layer_width());
  for (std::size_t kind = 0; kind < groups_.size(); ++kind) {
    groups_[kind].slots.of(rows);
    groups_[kind].host_slots.of(rows);
    groups_[kind].cos_sin.of(rows * config_.kinds[kind].rotary);
  }
}

Status GpuModel::plan_group(const StepInput& input, int kind) {
  Group& group = groups_[static_cast<std::size_t>(kind)];
  const attention::PlanInput asked = plan_input(input, config_, kind, step_.sequences);
  attention::DeviceFacts device = device_facts(place(), asked.shape, input.kernel);
  if (input.workgroups > 0) device.workgroups = input.workgroups;
  std::vector<kv::PageTable>& tables = group.planned.tables;
  tables.clear();
  for (const SequenceInput& sequence : input.sequences)
    tables.push_back(input.cache->table(sequence.id, kind));
  if (Status status = group.planned.set(asked, device, stream_); !status.ok()) return status;
  group.grid = in_steps(attention::cuda::grid_of(group.planned.on_device->live()),
                        group.planned.capacity.items, place().gpu.multiprocessors);
  const int page_size = input.cache->spec(kind).page_size;
  std::int64_t* slot = group.host_slots.data();
  for (std::size_t i = 0; i < input.sequences.size(); ++i) {
    for (std::size_t row = 0; row < input.sequences[i].tokens.size(); ++row) {
      const std::int64_t position = input.sequences[i].depth + static_cast<std::int64_t>(row);
      CHECK(position / page_size < tables[i].count);
      *slot++ =
          std::int64_t{tables[i].pages[position / page_size]} * page_size + position % page_size;
    }
  }
  device::copy_to_device(group.slots.data(), group.host_slots.data(),
                         static_cast<std::size_t>(rows_) * sizeof(std::int64_t), stream_);
  records_[static_cast<std::size_t>(kind)].plan = &group.planned.plan;
  records_[static_cast<std::size_t>(kind)].attention_us = 0;
  return {};
}

/// Tokens, positions and the rows that want logits.
void GpuModel::send_rows(const StepInput& input) {
  std::int32_t* const tokens = host_rows_.data();
  std::int32_t* const chosen = tokens + 2 * rows_;
  std::ranges::copy(step_.positions, tokens + rows_);
  std::int64_t row = 0;
  std::int64_t next = 0;
  for (const SequenceInput& sequence : input.sequences) {
    std::ranges::copy(sequence.tokens, tokens + row);
    row += static_cast<std::int64_t>(sequence.tokens.size());
    for (int i = sequence.logits; i > 0; --i) chosen[next++] = static_cast<std::int32_t>(row - i);
  }
  const std::int64_t count = 2 * rows_ + wanted_;
  device::copy_to_device(device_rows_.data(), tokens,
                         static_cast<std::size_t>(count) * sizeof(std::int32_t), stream_);
}

/// The rows of the table: the host knows the tokens, and a graph reads what is in the buffer.
void GpuModel::send_per_layer() {
  table_->read({host_rows_.data(), static_cast<std::size_t>(rows_)}, host_per_layer_.data());
  device::copy_to_device(per_layer_tokens_.data(), host_per_layer_.data(),
                         static_cast<std::size_t>(rows_ * per_layer_width()) * 2, stream_);
}

/// What every layer adds, from the first layer's input in x.
void GpuModel::enqueue_per_layer() {
  gpu::AddNorm as_it_is;
  as_it_is.x = layer_rows_.x.data();
  as_it_is.out = layer_rows_.normed.data();
  as_it_is.rows = rows_;
  as_it_is.width = config_.hidden;
  gpu::add_norm(as_it_is, stream_);
  launch().product(weights_.per_layer_projection, layer_rows_.normed.data(), per_layer_.data());
  gpu::PerLayer args;
  args.tokens = per_layer_tokens_.data();
  args.projected = per_layer_.data();
  args.norm = weights_.per_layer_norm;
  args.token_scale = std::sqrt(static_cast<float>(config_.per_layer_input));
  args.projected_scale = 1.0f / std::sqrt(static_cast<float>(config_.hidden));
  args.eps = config_.rms_eps;
  args.rows = rows_;
  args.layers = config_.layer_count();
  args.width = config_.per_layer_input;
  gpu::per_layer(args, stream_);
}

void GpuModel::attend(const StepInput& input, int layer) {
  const Layer& place_of = config_.layers[static_cast<std::size_t>(layer)];
  Group& group = groups_[static_cast<std::size_t>(place_of.kind)];
  attention::DeviceParams params;
  params.plan = &*group.planned.on_device;
  params.q = layer_rows_.q.data();
  params.out = layer_rows_.attended.data();
  params.kv = input.cache->view(place_of.kind, place_of.kv_layer);
  params.shape = group.planned.plan.shape;
  params.scale = config_.attention_scale;
  params.multiprocessors = place().gpu.multiprocessors;
  params.grid = rows_ <= kGraphRows ? &group.grid : nullptr;
  const auto of_kind =
      std::count_if(config_.layers.begin(), config_.layers.begin() + layer,
                    [&](const Layer& earlier) { return earlier.kind == place_of.kind; });
  const bool timed = of_kind == group.timed;
  if (timed) group.start.record(stream_);
  group.planned.plan.kernel->launch_on_gpu(params, stream_);
  if (timed) group.end.record(stream_);
}

void GpuModel::run_layer(const StepInput& input, int layer) {
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(layer)];
  const Layer& place_of = config_.layers[static_cast<std::size_t>(layer)];
  const LayerKind& kind = config_.kind_of(place_of);
  const Group& group = groups_[static_cast<std::size_t>(place_of.kind)];
  launch().product(w.qkv, layer_rows_.normed.data(), layer_rows_.qkv.data());
  gpu::Heads heads;
  heads.qkv = layer_rows_.qkv.data();
  heads.q_norm = w.q_norm;
  heads.k_norm = w.k_norm;
  heads.v_norm = config_.v_norm;
  heads.v_from_k = kind.v_from_k;
  heads.eps = config_.rms_eps;
  heads.cos_sin = group.cos_sin.data();
  heads.slots = group.slots.data();
  heads.rope = kind.rope(config_.q_heads, config_.rope_pairs);
  heads.q_heads = config_.q_heads;
  // Without heads of its own: queries only.
  if (place_of.owns_kv) heads.kv = input.cache->view(place_of.kind, place_of.kv_layer);
  heads.q = layer_rows_.q.data();
  heads.rows = rows_;
  gpu::heads(heads, stream_);
  attend(input, layer);
  const bool last = layer + 1 == config_.layer_count();
  LayerEnd end{
      w, last ? nullptr : weights_.layers[static_cast<std::size_t>(layer) + 1].attention_norm};
  if (config_.per_layer_input > 0)
    end.per_layer = per_layer_.data() + std::int64_t{layer} * config_.per_layer_input;
  enqueue_layer_end(launch(), end);
}

Status GpuModel::plan(const StepInput& input) {
  step_.set(input);
  reserve(rows_);
  if (wanted_ > 0) reserve_logits(wanted_);
  send_rows(input);
  if (table_) send_per_layer();
  for (int kind = 0; kind < static_cast<int>(config_.kinds.size()); ++kind) {
    if (Status status = plan_group(input, kind); !status.ok()) return status;
  }
  return {};
}

/// What the launches of the step depend on, but for the contents of buffers.
void GpuModel::describe(const StepInput& input) {
  key_.clear();
  key_.add(rows_);
  key_.add(wanted_);
  for (const void* address : layer_rows_.addresses()) key_.add(address);
  for (const void* address :
       {static_cast<const void*>(device_rows_.data()), static_cast<const void*>(logits_.data()),
        static_cast<const void*>(hidden_.data()), static_cast<const void*>(host_logits_.data()),
        static_cast<const void*>(host_hidden_.data()), static_cast<const void*>(maxima_.data()),
        static_cast<const void*>(host_maxima_.data()),
        static_cast<const void*>(per_layer_tokens_.data()),
        static_cast<const void*>(per_layer_.data())}) {
    key_.add(address);
  }
  for (std::size_t kind = 0; kind < groups_.size(); ++kind) {
    const Group& group = groups_[kind];
    key_.add(group.planned.plan.kernel);
    key_.add(group.grid);
    key_.add(*group.planned.on_device);
    key_.add(group.cos_sin.data());
    key_.add(group.slots.data());
    const int index = static_cast<int>(kind);
    key_.add(input.cache->view(index, 0));
    key_.add(input.cache->view(index, config_.kv_layers(index) - 1));
  }
}

/// After the launches of a layer: waits for the layer before, so that launches are never further
/// ahead of a long step than that, and asks.
bool GpuModel::cancelled_in(const StepInput& input, int layer) {
  if (!input.cancelled || rows_ < kLongRows) return false;
  const auto parity = static_cast<std::size_t>(layer % 2);
  layer_ends_[parity].record(stream_);
  if (layer > 0) layer_ends_[1 - parity].synchronize();
  return input.cancelled();
}

/// All launches of the step, its logits to the host included; false when it was cancelled.
/// Allocates nothing: it may be recorded.
bool GpuModel::enqueue(const StepInput& input) {
  for (std::size_t kind = 0; kind < groups_.size(); ++kind) {
    const int rotary = config_.kinds[kind].rotary;
    gpu::angles({device_rows_.data() + rows_, weights_.inv_freq[kind], groups_[kind].cos_sin.data(),
                 rows_, rotary / 2},
                stream_);
  }
  gpu::embed({&weights_.embedding, device_rows_.data(), config_.embedding_scale,
              layer_rows_.x.data(), rows_},
             stream_);
  if (config_.per_layer_input > 0) enqueue_per_layer();
  enqueue_first_norm(launch(), weights_.layers.front().attention_norm);
  for (int layer = 0; layer < config_.layer_count(); ++layer) {
    run_layer(input, layer);
    if (cancelled_in(input, layer)) return false;
  }
  const std::int64_t logits = wanted_ * config_.vocab;
  const std::int64_t hidden = wanted_ * config_.hidden;
  if (wanted_ > 0) {
    gpu::head_norm(
        {layer_rows_.x.data(), device_rows_.data() + 2 * rows_, weights_.output_norm,
         layer_rows_.normed.data(), hidden_.data(), config_.rms_eps, wanted_, config_.hidden},
        stream_);
    gpu::product({&weights_.head(), layer_rows_.normed.data(), logits_.data(), wanted_},
                 place().gpu.multiprocessors, stream_);
    if (config_.final_softcap > 0)
      gpu::softcap(logits_.data(), config_.final_softcap, logits, stream_);
    gpu::block_maxima({logits_.data(), maxima_.data(), wanted_, config_.vocab}, stream_);
    device::copy_to_host(host_maxima_.data(), maxima_.data(),
                         static_cast<std::size_t>(wanted_ * blocks()) * sizeof(float), stream_);
    device::copy_to_host(host_logits_.data(), logits_.data(),
                         static_cast<std::size_t>(logits) * sizeof(float), stream_);
    device::copy_to_host(host_hidden_.data(), hidden_.data(),
                         static_cast<std::size_t>(hidden) * sizeof(float), stream_);
  }
  return true;
}

Result<StepOutput> GpuModel::run(const StepInput& input) {
  rows_ = row_count(input);
  wanted_ = logits_count(input);
  if (Status status = plan(input); !status.ok()) return status.error();
  double recording_us = 0;
  if (rows_ <= kGraphRows) {
    describe(input);
    const bool returns = rows_ == wanted_ && rows_ <= kLoneRows;
    recording_us = graphs_.run(key_, returns, stream_, [&] { enqueue(input); });
  } else if (!enqueue(input)) {
    stream_.synchronize();
    return step_cancelled();
  }
  stream_.synchronize();
  for (std::size_t kind = 0; kind < groups_.size(); ++kind) {
    Group& group = groups_[kind];
    records_[kind].attention_us = group.end.us_since(group.start) * records_[kind].layers;
    group.timed = (group.timed + 1) % records_[kind].layers;
  }
  return StepOutput{
      host_logits_.data(), host_hidden_.data(), host_maxima_.data(), wanted_, records_,
      recording_us};
}

Result<StepOutput> GpuModel::forward(const StepInput& input) {
  try {
    return run(input);
  } catch (const device::DeviceError& error) {
    return Error{ErrorCode::kDevice, error.what()};
  }
}

}  // namespace

GpuTarget gpu_target(const LanguageModel& model) {
  CHECK(model.place().device == Device::kCuda);
  return static_cast<const GpuModel&>(model).target();
}

Result<std::unique_ptr<LanguageModel>> load_gpu_model(const Config& config, TensorSource& source,
                                                      core::ThreadPool& pool,
                                                      const LoadOptions& options) {
  const Result<Place> place = find_place(Device::kCuda, pool.threads());
  if (!place.ok()) return place.error();
  if (Status status = check_place(*place, config); !status.ok()) return status.error();
  // No form is smaller than the file's and larger than bf16.
  const std::int64_t least =
      std::min(gpu_weight_bytes(config), source.total_bytes() - per_layer_bytes(source, config));
  if (Status status = fits_on_gpu(*place, least, source.path()); !status.ok())
    return status.error();
  try {
    auto model = std::make_unique<GpuModel>(config, *place);
    if (Status status = model->load(source, pool, options); !status.ok()) return status.error();
    return std::unique_ptr<LanguageModel>(std::move(model));
  } catch (const device::DeviceError& error) {
    return Error{ErrorCode::kDevice, fmt::format("'{}': {}", source.path(), error.what())};
  }
}

}  // namespace segue::model
#else
#include "device/device.h"
#include "model/gpu_model.h"

namespace segue::model {

Result<std::unique_ptr<LanguageModel>> load_gpu_model(const Config& /*config*/,
                                                      TensorSource& /*source*/,
                                                      core::ThreadPool& /*pool*/,
                                                      const LoadOptions& /*options*/) {
  return device::gpu_facts().error();
}

}  // namespace segue::model
#endif
