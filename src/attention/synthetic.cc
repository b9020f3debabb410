// SPDX-License-Identifier: Apache-2.0
// Random contents by counter, so that a row's numbers depend on nothing but its content and
// position.
#include "attention/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "core/check.h"
#include "core/dtype.h"
#include "core/hash.h"

namespace segue::attention {
namespace {

constexpr std::size_t kGuard = 256;  // bytes on both sides of every buffer
constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kNanByte{0xFF};  // all bits set is a NaN in f32, f16 and bf16
constexpr std::size_t kAlignment = 64;
constexpr std::int64_t kAskEvery = 256;  // keys between two questions whether to stop

std::uint64_t mix(std::uint64_t x) {  // splitmix64 (Steele, Lea, Flood 2014)
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

enum class Tensor : std::uint64_t { kQ = 1, kK = 2, kV = 3, kSink = 4 };

/// Uniform numbers of variance 1 for one row of one head.
void fill_row(std::uint64_t content, Tensor tensor, std::int64_t position, int head, float factor,
              float* row, int count) {
  std::uint64_t state =
      mix(mix(content * 8 + static_cast<std::uint64_t>(tensor)) ^
          (static_cast<std::uint64_t>(position) << 10) ^ static_cast<std::uint64_t>(head));
  const float scale = factor * 1.7320508f / 32768.0f;
  for (int i = 0; i < count; i += 4) {
    state += 0x9e3779b97f4a7c15ull;
    std::uint64_t bits = mix(state);
    for (int j = i; j < std::min(i + 4, count); ++j, bits >>= 16) {
      row[j] = scale * static_cast<float>(static_cast<std::int16_t>(bits & 0xffff));
    }
  }
}

/// Bytes between guards; `fill` outside and inside until written.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::byte fill)
      : bytes_(bytes), memory_(new std::byte[bytes + 2 * kGuard + kAlignment]) {
    void* p = memory_.get() + kGuard;
    std::size_t space = bytes + kGuard + kAlignment;
    data_ = static_cast<std::byte*>(std::align(kAlignment, bytes, p, space));
    CHECK(data_ != nullptr);
    std::memset(data_ - kGuard, static_cast<int>(kGuardByte), kGuard);
    std::memset(data_ + bytes, static_cast<int>(kGuardByte), kGuard);
    std::memset(data_, static_cast<int>(fill), bytes);
  }
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

  std::string check(std::string_view name) const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (data_[bytes_ + i] != kGuardByte)
        return fmt::format("{}: byte {} behind its end was written", name, i);
      if (*(data_ - 1 - i) != kGuardByte)
        return fmt::format("{}: byte {} before its start was written", name, i + 1);
    }
    return "";
  }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> memory_;
  std::byte* data_ = nullptr;
};

void store(std::byte* p, float value, KvType type) {
  if (type == KvType::kF32) {
    std::memcpy(p, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits =
      type == KvType::kF16 ? core::f32_to_f16(value) : core::f32_to_bf16(value);
  std::memcpy(p, &bits, sizeof(bits));
}

std::uint64_t digest(const Guarded& buffer) {
  core::Hash64 hash;
  hash.update(buffer.data(), buffer.size());
  return hash.digest();
}

}  // namespace

struct Synthetic::State {
  SyntheticOptions options;
  std::int64_t rows = 0;
  std::vector<std::vector<std::int32_t>> pages;
  std::vector<kv::PageTable> tables;
  std::vector<Guarded> cache;  // K, V
  kv::View view;
  std::vector<float> q;
  std::vector<float> sinks;
  std::array<std::uint64_t, 2> digests{};

  std::int64_t first_key(const SequenceRows& rows_of) const {
    return options.shape.first_key(rows_of.depth);
  }

  /// Logical pages in use get physical numbers, the others absurd ones.
  void make_tables() {
    constexpr std::array<std::int32_t, 3> kAbsurd{-1, 1 << 30,
                                                  std::numeric_limits<std::int32_t>::min()};
    const std::int64_t page = options.shape.page_size;
    std::int32_t used = 0;
    for (const SequenceRows& sequence : options.sequences) {
      const std::int64_t live = (sequence.kv_len() + page - 1) / page;
      std::vector<std::int32_t>& table = pages.emplace_back(static_cast<std::size_t>(live + 3));
      for (std::size_t i = 0; i < table.size(); ++i) table[i] = kAbsurd[i % kAbsurd.size()];
      if (sequence.rows == 0) continue;
      for (std::int64_t i = first_key(sequence) / page; i < live; ++i)
        table[static_cast<std::size_t>(i)] = used++;
    }
    const std::int32_t total = options.scattered ? used + used / 4 + 2 : used;
    std::vector<std::int32_t> order(static_cast<std::size_t>(total));
    std::iota(order.begin(), order.end(), 0);
    if (options.scattered) std::shuffle(order.begin(), order.end(), std::mt19937(7));
    for (std::vector<std::int32_t>& table : pages) {
      for (std::int32_t& entry : table) {
        if (entry >= 0 && entry < used) entry = order[static_cast<std::size_t>(entry)];
      }
      tables.push_back({table.data(), static_cast<std::int32_t>(table.size())});
    }
    view = dense_view(options.shape);
    view.pages = total;
    if (!options.interleaved) return;
    for (std::int64_t* stride : {&view.page_stride, &view.head_stride, &view.token_stride})
      *stride *= 2;
  }

  void write_key(std::size_t sequence, std::int64_t position, std::vector<float>& row) {
    const Shape& shape = options.shape;
    const std::int64_t page = pages[sequence][static_cast<std::size_t>(position / shape.page_size)];
    const int t = static_cast<int>(position % shape.page_size);
    for (int head = 0; head < shape.kv_heads; ++head) {
      const std::int64_t block = page * view.page_stride + head * view.head_stride;
      fill_row(options.contents[sequence], Tensor::kK, position, head, 1.0f, row.data(),
               shape.head_dim);
      for (int d = 0; d < shape.head_dim; ++d) {
        store(view.k + block + view.k_offset(t, d), row[static_cast<std::size_t>(d)], shape.kv);
      }
      fill_row(options.contents[sequence], Tensor::kV, position, head, 1.0f, row.data(),
               shape.head_dim);
      for (int d = 0; d < shape.head_dim; ++d) {
        store(view.v + block + view.v_offset(t, d), row[static_cast<std::size_t>(d)], shape.kv);
      }
    }
  }

  void make_cache() {
    const auto bytes =
        static_cast<std::size_t>(view.page_stride) * static_cast<std::size_t>(view.pages);
    cache.emplace_back(bytes, kNanByte);
    cache.emplace_back(bytes, kNanByte);
    view.k = cache[0].data();
    view.v = options.interleaved ? view.k + std::int64_t{view.head_dim} * kv_type_bytes(view.type)
                                 : cache[1].data();
    std::vector<float> row(static_cast<std::size_t>(options.shape.head_dim));
    for (std::size_t i = 0; i < options.sequences.size(); ++i) {
      const SequenceRows& sequence = options.sequences[i];
      if (sequence.rows == 0) continue;
      const std::int64_t end = options.nan_from >= 0
                                   ? std::min(sequence.depth + options.nan_from, sequence.kv_len())
                                   : sequence.kv_len();
      for (std::int64_t position = first_key(sequence); position < end; ++position) {
        if (position % kAskEvery == 0 && options.cancelled && options.cancelled()) return;
        write_key(i, position, row);
      }
    }
    digests = {digest(cache[0]), digest(cache[1])};
  }

  void make_queries() {
    const Shape& shape = options.shape;
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    q.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.q_heads) * dim);
    float* p = q.data();
    for (std::size_t i = 0; i < options.sequences.size(); ++i) {
      for (int row = 0; row < options.sequences[i].rows; ++row) {
        for (int head = 0; head < shape.q_heads; ++head, p += dim) {
          fill_row(options.contents[i], Tensor::kQ, options.sequences[i].depth + row, head,
                   options.spread, p, shape.head_dim);
        }
      }
    }
    if (options.sinks) {
      sinks.resize(static_cast<std::size_t>(shape.q_heads));
      fill_row(0, Tensor::kSink, 0, 0, 3.0f, sinks.data(), shape.q_heads);
    }
  }
};

Synthetic::Synthetic(SyntheticOptions options) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.options = std::move(options);
  for (std::size_t i = state.options.contents.size(); i < state.options.sequences.size(); ++i) {
    state.options.contents.push_back(i);
  }
  for (const SequenceRows& sequence : state.options.sequences) state.rows += sequence.rows;
  state.make_tables();
  state.make_cache();
  state.make_queries();
}
Synthetic::Synthetic(Synthetic&&) noexcept = default;
Synthetic& Synthetic::operator=(Synthetic&&) noexcept = default;
Synthetic::~Synthetic() = default;

const SyntheticOptions& Synthetic::options() const { return state_->options; }
std::int64_t Synthetic::rows() const { return state_->rows; }

Params Synthetic::params() const {
  Params params;
  params.q = state_->q.data();
  params.sinks = state_->sinks.empty() ? nullptr : state_->sinks.data();
  params.kv = state_->view;
  params.tables = state_->tables.data();
  params.scale = 1.0f / std::sqrt(static_cast<float>(state_->options.shape.head_dim));
  params.softcap = state_->options.softcap;
  return params;
}

std::string Synthetic::check_untouched() const {
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string_view name = i == 0 ? "K" : "V";
    if (std::string wrong = state_->cache[i].check(name); !wrong.empty()) return wrong;
    if (digest(state_->cache[i]) != state_->digests[i]) return fmt::format("{} was changed", name);
  }
  return "";
}

LaunchResult launch(const Synthetic& problem, const Plan& plan, core::ThreadPool& pool,
                    const Kernel* kernel) {
  const Shape& shape = plan.shape;
  const auto heads =
      static_cast<std::size_t>(problem.rows()) * static_cast<std::size_t>(shape.q_heads);
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto partials = static_cast<std::size_t>(plan.partials);
  Guarded out(heads * dim * sizeof(float), kNanByte);
  Guarded lse(heads * sizeof(float), kNanByte);
  Guarded partial_m(partials * sizeof(float), kNanByte);
  Guarded partial_l(partials * sizeof(float), kNanByte);
  Guarded partial_o(partials * dim * sizeof(float), kNanByte);

  Params params = problem.params();
  params.plan = &plan;
  params.out = out.floats();
  params.lse = lse.floats();
  params.partial_m = partial_m.floats();
  params.partial_l = partial_l.floats();
  params.partial_o = partial_o.floats();
  Stream stream{&pool};
  (kernel != nullptr ? kernel : plan.kernel)->launch(params, stream);

  LaunchResult result;
  result.out.assign(out.floats(), out.floats() + heads * dim);
  result.lse.assign(lse.floats(), lse.floats() + heads);
  for (const auto& [buffer, name] : {std::pair<const Guarded*, std::string_view>{&out, "out"},
                                     {&lse, "lse"},
                                     {&partial_m, "partial_m"},
                                     {&partial_l, "partial_l"},
                                     {&partial_o, "partial_o"}}) {
    if (result.overrun.empty()) result.overrun = buffer->check(name);
  }
  return result;
}

}  // namespace segue::attention
