// SPDX-License-Identifier: Apache-2.0
// One class template for both precisions: the arithmetic is written once.
#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"

namespace segue::attention {
namespace {

float load(const std::byte* p, KvType type) {
  if (type == KvType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return type == KvType::kF16 ? core::f16_to_f32(bits) : core::bf16_to_f32(bits);
}

/// K and V rows of one sequence and kv head by position.
class Keys {
 public:
  Keys(const Params& params, int sequence, int kv_head)
      : view_(params.kv),
        table_(params.tables[sequence]),
        head_offset_(kv_head * params.kv.head_stride) {}

  void read_k(std::int64_t position, float* row /* [head_dim] */) const {
    const std::byte* block = view_.k + block_offset(position);
    const int t = static_cast<int>(position % view_.page_size);
    for (int d = 0; d < view_.head_dim; ++d)
      row[d] = load(block + view_.k_offset(t, d), view_.type);
  }
  void read_v(std::int64_t position, float* row /* [head_dim] */) const {
    const std::byte* block = view_.v + block_offset(position);
    const int t = static_cast<int>(position % view_.page_size);
    for (int d = 0; d < view_.head_dim; ++d)
      row[d] = load(block + view_.v_offset(t, d), view_.type);
  }

 private:
  std::int64_t block_offset(std::int64_t position) const {
    const std::int64_t logical = position / view_.page_size;
    DCHECK(logical < table_.count);
    // As in the other kernels, an entry outside the pool stands for its nearest page.
    const std::int32_t page = std::clamp(table_.pages[logical], 0, view_.pages - 1);
    return page * view_.page_stride + head_offset_;
  }

  const kv::View& view_;
  const kv::PageTable& table_;
  std::int64_t head_offset_;
};

/// Where a tile's results go; null: not wanted.
template <class Real>
struct Outputs {
  Real* out = nullptr;           // [rows, q_heads, head_dim]
  Real* lse = nullptr;           // [rows, q_heads]
  Real* absolute_sum = nullptr;  // as out
  Real* score_sum = nullptr;     // as lse
};

template <class Real>
Real capped(const Params& params, Real score) {
  if (params.softcap <= 0) return score;
  const auto cap = static_cast<Real>(params.softcap);
  return cap * std::tanh(score / cap);
}

/// Sums in `lanes` interleaved accumulators: one for the plain softmax, several for speed in
/// double.
template <class Real, int lanes, class Term>
Real sum_of(int count, const Term& term) {
  Real sums[lanes] = {};
  int d = 0;
  for (; d + lanes <= count; d += lanes) {
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += term(d + lane);
  }
  for (; d < count; ++d) sums[0] += term(d);
  for (int lane = 1; lane < lanes; ++lane) sums[0] += sums[lane];
  return sums[0];
}

template <class Real>
Real dot(const float* q, const float* k, int count) {
  return sum_of < Real, std::is_same_v<Real, float> ? 1 : 8 > (count, [=](int d) {
                                                            return static_cast<Real>(q[d]) *
                                                                   static_cast<Real>(k[d]);
                                                          });
}

double absolute_dot(const float* q, const float* k, int count) {
  return sum_of<double, 8>(count, [=](int d) {
    return std::abs(static_cast<double>(q[d]) * static_cast<double>(k[d]));
  });
}

/// All query rows and heads of one (row tile, kv head): per query the scores of its visible keys,
/// their maximum, then sums in ascending key order.
template <class Real>
class TileRun {
 public:
  TileRun(const Params& params, const RowTile& tile, int kv_head)
      : params_(params),
        tile_(tile),
        shape_(params.plan->shape),
        kv_head_(static_cast<std::size_t>(kv_head)),
        dim_(static_cast<std::size_t>(shape_.head_dim)),
        group_(static_cast<std::size_t>(shape_.group())),
        queries_(static_cast<std::size_t>(tile.rows) * group_),
        first_(shape_.first_key(tile.position)),
        keys_(static_cast<std::size_t>(tile.position + tile.rows - first_)),
        cache_(params, tile.sequence, kv_head),
        row_(dim_),
        scores_(queries_ * keys_),
        maximum_(queries_, -std::numeric_limits<Real>::infinity()) {}

  void run(const Outputs<Real>& outputs) {
    score(outputs);
    if (params_.sinks != nullptr) {
      for (std::size_t query = 0; query < queries_; ++query) {
        maximum_[query] = std::max(maximum_[query], sink(query));
      }
    }
    weigh(outputs);
  }

 private:
  std::size_t index(std::size_t query) const {
    const std::size_t row = static_cast<std::size_t>(tile_.token) + query / group_;
    return row * static_cast<std::size_t>(shape_.q_heads) + kv_head_ * group_ + query % group_;
  }
  bool visible(std::size_t query, std::int64_t key) const {
    const std::int64_t position = tile_.position + static_cast<std::int64_t>(query / group_);
    return key >= shape_.first_key(position) && key <= position;
  }
  Real sink(std::size_t query) const {
    return static_cast<Real>(params_.sinks[kv_head_ * group_ + query % group_]);
  }

  void score(const Outputs<Real>& outputs) {
    for (std::size_t i = 0; i < keys_; ++i) {
      const std::int64_t key = first_ + static_cast<std::int64_t>(i);
      cache_.read_k(key, row_.data());
      for (std::size_t query = 0; query < queries_; ++query) {
        if (!visible(query, key)) continue;
        const float* q = params_.q + index(query) * dim_;
        const auto scale = static_cast<Real>(params_.scale);
        const Real value = capped(params_, dot<Real>(q, row_.data(), shape_.head_dim) * scale);
        scores_[query * keys_ + i] = value;
        maximum_[query] = std::max(maximum_[query], value);
        if (outputs.score_sum != nullptr) {
          const double sum =
              absolute_dot(q, row_.data(), shape_.head_dim) * std::abs(params_.scale);
          Real& largest = outputs.score_sum[index(query)];
          largest = std::max(largest, static_cast<Real>(sum));
        }
      }
    }
  }

  void weigh(const Outputs<Real>& outputs) {
    std::vector<Real> sums(queries_, 0);
    std::vector<Real> out(queries_ * dim_, 0);
    std::vector<Real> absolute(outputs.absolute_sum != nullptr ? queries_ * dim_ : 0, 0);
    for (std::size_t i = 0; i < keys_; ++i) {
      const std::int64_t key = first_ + static_cast<std::int64_t>(i);
      cache_.read_v(key, row_.data());
      for (std::size_t query = 0; query < queries_; ++query) {
        if (!visible(query, key)) continue;
        const Real p = std::exp(scores_[query * keys_ + i] - maximum_[query]);
        sums[query] += p;
        Real* sum = out.data() + query * dim_;
        for (std::size_t d = 0; d < dim_; ++d) sum[d] += p * static_cast<Real>(row_[d]);
        if (absolute.empty()) continue;
        Real* magnitude = absolute.data() + query * dim_;
        for (std::size_t d = 0; d < dim_; ++d)
          magnitude[d] += p * std::abs(static_cast<Real>(row_[d]));
      }
    }
    for (std::size_t query = 0; query < queries_; ++query) {
      Real sum = sums[query];
      if (params_.sinks != nullptr) sum += std::exp(sink(query) - maximum_[query]);
      const std::size_t at = index(query);
      for (std::size_t d = 0; d < dim_; ++d) {
        outputs.out[at * dim_ + d] = out[query * dim_ + d] / sum;
        if (!absolute.empty())
          outputs.absolute_sum[at * dim_ + d] = absolute[query * dim_ + d] / sum;
      }
      if (outputs.lse != nullptr) outputs.lse[at] = maximum_[query] + std::log(sum);
    }
  }

  const Params& params_;
  const RowTile& tile_;
  const Shape& shape_;
  std::size_t kv_head_;
  std::size_t dim_;
  std::size_t group_;
  std::size_t queries_;
  std::int64_t first_;  // key that any row sees
  std::size_t keys_;    // from there to the last row's
  Keys cache_;
  std::vector<float> row_;
  std::vector<Real> scores_;  // [queries, keys]
  std::vector<Real> maximum_;
};

template <class Real>
void run(const Params& params, Stream& stream, const Outputs<Real>& outputs) {
  const Plan& plan = *params.plan;
  const int heads = plan.shape.kv_heads;
  const auto task = [&](std::int64_t index, int) {
    const RowTile& tile = plan.tiles[static_cast<std::size_t>(index / heads)];
    TileRun<Real>(params, tile, static_cast<int>(index % heads)).run(outputs);
  };
  const std::int64_t tasks = static_cast<std::int64_t>(plan.tiles.size()) * heads;
  if (stream.pool != nullptr) {
    stream.pool->for_each(tasks, task);
  } else {
    for (std::int64_t index = 0; index < tasks; ++index) task(index, 0);
  }
}

std::size_t heads_of(const Params& params) {
  return static_cast<std::size_t>(params.plan->rows) *
         static_cast<std::size_t>(params.plan->shape.q_heads);
}

bool supports_everything(const Shape&) { return true; }

}  // namespace

ReferenceResult reference_result(const Params& params, Stream& stream) {
  const std::size_t heads = heads_of(params);
  const std::size_t elements = heads * static_cast<std::size_t>(params.plan->shape.head_dim);
  ReferenceResult result;
  result.out.resize(elements);
  result.absolute_sum.resize(elements);
  result.lse.resize(heads);
  result.score_sum.resize(heads);
  run<double>(
      params, stream,
      {result.out.data(), result.lse.data(), result.absolute_sum.data(), result.score_sum.data()});
  return result;
}

void reference_attention(const Params& params, Stream& stream) {
  const std::size_t heads = heads_of(params);
  std::vector<double> out(heads * static_cast<std::size_t>(params.plan->shape.head_dim));
  std::vector<double> lse(heads);
  run<double>(params, stream, {.out = out.data(), .lse = lse.data()});
  for (std::size_t i = 0; i < out.size(); ++i) params.out[i] = static_cast<float>(out[i]);
  if (params.lse == nullptr) return;
  for (std::size_t i = 0; i < lse.size(); ++i) params.lse[i] = static_cast<float>(lse[i]);
}

void plain_attention(const Params& params, Stream& stream) {
  run<float>(params, stream, {.out = params.out, .lse = params.lse});
}

const Kernel kReference{
    .name = "reference",
    .bits_class = "reference",
    .device = DeviceKind::kCpu,
    .isa = core::IsaLevel::kPortable,
    .supports = supports_everything,
    .launch = reference_attention,
};

}  // namespace segue::attention
